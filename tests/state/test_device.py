"""The command interface of one device: what it refuses, when things complete, and its books."""

import numpy as np
import pytest

from ondie.emu.clock import NEVER
from ondie.emu.drive import Drive
from ondie.emu.engine.core import counters as stats
from ondie.emu.engine.core import payload_log
from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.conservation import Imbalance
from ondie.emu.engine.run import build
from ondie.emu.nvme import command as queues
from ondie.emu.units import InputError
from tests.state.small import PAGE, commands, config, counter, device, random_writes
from tests.timing import harness as h

READ, WRITE, TRIM, FLUSH = range(4)
ROUND = {name.replace(".", "__"): value for name, value in h.TIMES.items()}


def test_a_log_entry_has_the_columns_of_the_log():
    assert payload_log.LogEntry._fields == payload_log.LOG.names


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and message.isprintable()
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"op": 4}, ["op = 4", "READ, WRITE, TRIM, FLUSH"]),
        ({"op": -1}, ["op = -1"]),
        ({"queue": 2}, ["queue = 2", "from 0 to 1"]),
        ({"queue": -1}, ["queue = -1"]),
        ({"offset": -PAGE}, [f"offset = {-PAGE}", f"from 0 to {358 * PAGE - 1}"]),
        ({"offset": -(2**63)}, ["offset = -9223372036854775808"]),
        ({"offset": 358 * PAGE}, [f"offset = {358 * PAGE}"]),
        ({"offset": 100}, ["offset = 100", f"multiple of the logical block size, {PAGE} bytes"]),
        ({"offset": 2**62}, ["offset = 4611686018427387904"]),
        ({"op": READ, "offset": 357 * PAGE, "size": 2 * PAGE}, [f"size = {2 * PAGE}", "last byte"]),
        ({"op": TRIM, "size": 2**62}, ["size = 4611686018427387904"]),
        ({"size": 0}, ["size = 0", "at least one logical block"]),
        ({"size": PAGE // 2}, [f"size = {PAGE // 2}", "multiple of the logical block size"]),
        ({"size": -3 * PAGE}, [f"size = {-3 * PAGE}"]),
        ({"size": 17 * PAGE}, ["must be at most 8192 bytes (frontend.max_transfer)"]),
        ({"op": FLUSH, "size": PAGE}, [f"size = {PAGE}", "FLUSH"]),
        ({"arrival": -1}, ["arrival = -1"]),
        ({"arrival": NEVER}, [f"arrival = {NEVER}"]),
        ({"fua": 2}, ["fua = 2", "0 or 1"]),
        ({"stream": 1}, ["stream = 1", "must be from 0 to 0"]),
        ({"priority": 3}, ["priority = 3"]),
        ({"fence_token": 9}, ["fence_token = 9"]),
        ({"atomic_unit": 8}, ["atomic_unit = 8"]),
        ({"data": 0}, ["data = 0", "keeps no payload"]),
    ],
    ids=str,
)
def test_bad_commands(item, words):
    """The command is named, with field, value and what is right; nothing of the batch is taken."""
    d = Drive(config(), queues=2)
    batch = np.zeros(2, queues.COMMAND)
    batch["op"], batch["size"], batch["data"] = WRITE, PAGE, -1
    for name, value in item.items():
        batch[name][1] = value
    refused(lambda: d.submit(batch), "command 1:", *words)
    assert d.outstanding == 0 and d.run() == 0
    d.check()


@pytest.mark.parametrize("size", [0, -512, 100, 768, 1024, 256])
def test_impossible_logical_blocks(size):
    """Pages of 512 bytes: a logical block is one of them."""
    refused(lambda: Drive(config(), block_bytes=size), f"block_bytes = {size}", "512")


def test_a_drive_has_a_queue():
    refused(lambda: Drive(config(), queues=0), "queues = 0")


def test_arrivals_are_sorted_and_not_in_the_past():
    d = device()
    late = commands([(WRITE, 0, 1), (WRITE, 1, 1)])
    late["arrival"] = [10, 9]
    refused(lambda: d.submit(late), "command 1: arrival = 9")
    d.submit(commands([(WRITE, 0, 1)], arrival=1000))
    refused(lambda: d.submit(commands([(WRITE, 0, 1)], arrival=999)), "arrival = 999", "1000")
    d.run_until(5000)
    refused(lambda: d.submit(commands([(WRITE, 0, 1)], arrival=4999)), "not before 5000")
    refused(lambda: d.run_until(4999), "t_ps = 4999")


def test_payload_slots():
    d = device(payload=True)
    refused(lambda: d.submit(commands([(WRITE, 0, 1)])), "data = -1", "must not be -1")
    refused(lambda: d.submit(commands([(READ, 0, 1)], slot=0)), "data = 0", "buffer of 0 bytes")
    d.buffer = np.zeros((4, PAGE), np.uint8)
    refused(lambda: d.submit(commands([(READ, 0, 2)], slot=3)), f"data = {3 * PAGE}")
    far = commands([(READ, 0, 2)], slot=2**53)
    refused(lambda: d.submit(far), f"data = {2**53 * PAGE}")
    refused(lambda: d.submit(commands([(READ, 0, 1)], slot=-2)), "data = -2")
    d.submit(commands([(READ, 0, 2)], slot=2))  # fits
    d.submit(commands([(READ, 0, 2)]))  # timing only
    d.run()
    d.check()


def test_wrong_dtype_and_wrong_lengths():
    d = device(payload=True)
    drive = Drive(config(), payload=True)
    refused(lambda: drive.submit(np.zeros(1)), "nvme.command.COMMAND")
    refused(lambda: drive.submit(np.zeros((1, 1), queues.COMMAND)), "one-dimensional")
    refused(lambda: d.write(0, b"abc"), "size = 3", "512")
    refused(lambda: d.read(0, 0), "size = 0")
    with pytest.raises(InputError, match="contiguous"):
        d.buffer = np.zeros((4, PAGE), np.uint8)[:, ::2]
    with pytest.raises(InputError, match="no payload"):
        device().buffer = np.zeros((4, PAGE), np.uint8)
    refused(lambda: device().read(0), "no payload")


def test_one_command_of_each_kind():
    """FLUSH and TRIM touch no flash: submission 0.4 + latency 0.2 + firmware 0.3 = 0.9 us. A read
    takes 18.296 us and a write 57.796 us from idle, as in tests/timing."""
    d = device(**ROUND)
    d.submit(commands([(FLUSH, 0, 0)], arrival=1000))
    d.run()
    d.submit(commands([(WRITE, 3, 1)], arrival=10**9))
    d.run()
    d.submit(commands([(READ, 3, 1)], arrival=2 * 10**9))
    d.run()
    d.submit(commands([(TRIM, 3, 1)], arrival=3 * 10**9))
    d.run()
    done = d.completions()
    assert (done["end"] - done["arrival"]).tolist() == h.ns(0.9, 57.796, 18.296, 0.9)
    assert (done["start"] == done["arrival"]).all()
    assert d.stored is not None and d.arrays.dev.mapped[0] == 0
    d.check()


def test_queue_depth_one_is_one_after_the_other():
    """Three reads of pages never written at depth 1: each starts when the one before has completed
    and takes 3.1 us; what arrived later starts at its arrival when the device is idle."""
    d = device(queue_depth=1, **ROUND)
    batch = commands([(READ, i, 1) for i in range(4)])
    batch["arrival"] = [0, 0, 1000, 20 * h.US]
    d.submit(batch)
    d.run()
    done = d.completions()
    t = 3_100 * h.NS
    assert done["start"].tolist() == [0, t, 2 * t, 20 * h.US]
    assert done["end"].tolist() == [t, 2 * t, 3 * t, 20 * h.US + t]
    assert done["tag"].tolist() == [0, 1, 2, 3]


def test_completions_come_in_order_of_completion_and_once():
    """A write is overtaken by the read behind it."""
    d = device()
    d.submit(commands([(WRITE, 0, 4), (READ, 100, 1), (WRITE, 8, 4), (READ, 200, 1)]))
    d.run()
    done = d.completions()
    assert done["tag"].tolist()[:2] == [1, 3]
    assert (np.diff(done["end"]) >= 0).all() and len(done) == 4
    assert len(d.completions()) == 0


def test_stepping_changes_nothing():
    """Run at once, event by event, and in steps of time: the same completions and the same
    clock."""
    rng = np.random.default_rng(3)
    batch = random_writes(rng, 60, 358, longest=8)
    batch["arrival"] = np.cumsum(rng.integers(0, 200 * h.US, 60))
    ends = []
    for way in ("at once", "events", "time", "small batches"):
        d = device()
        if way == "small batches":
            for part in np.array_split(batch, 7):
                d.submit(part)
        else:
            d.submit(batch)
        while way == "events" and d.run_until(NEVER - 1, max_events=1):
            pass
        while way == "time" and d.outstanding:
            d.run_until(d.now + 7 * h.US)
        d.run()
        d.check()
        ends.append(d.completions())
    for other in ends[1:]:
        assert (other == ends[0]).all()


def test_the_clock_stands_where_it_was_told_to():
    d = device()
    assert d.run_until(123_456) == 0 and d.now == 123_456
    d.submit(commands([(WRITE, 0, 1)], arrival=200_000))
    d.run_until(150_000)
    assert d.now == 150_000 and len(d.completions()) == 0
    d.run()
    assert d.completions()["start"].tolist() == [200_000]


def test_more_commands_than_the_ring_holds(monkeypatch):
    """A ring of 64 rows takes 500 commands in turns. At depth 1 they complete in order, so that
    the ring never waits for its oldest row: completions are those of a large ring."""
    batch = random_writes(np.random.default_rng(4), 500, 358, longest=4)
    big = device(queue_depth=1)
    big.submit(batch)
    big.run()
    monkeypatch.setattr(build, "ROWS", 64)
    small = device(queue_depth=1)
    assert len(small.arrays.row) == 64
    small.submit(batch)
    small.run()
    small.check()
    assert (small.completions() == big.completions()).all()


def test_read_your_writes():
    d = device(payload=True)
    data = np.arange(3 * PAGE, dtype=np.uint32).astype(np.uint8).reshape(3, PAGE)
    d.write(10, data)
    d.write(11, b"\x07" * PAGE)
    got = d.read(9, 5)
    assert (got[0] == 0).all() and (got[4] == 0).all()
    assert (got[1] == data[0]).all() and (got[2] == 7).all() and (got[3] == data[2]).all()
    assert len(d.completions()) == 0  # these are not submitted commands
    d.check()


def test_pages_come_from_and_go_to_their_slots():
    """Two writes of 3 pages from slots 5 and 9; one read of the 6 pages into slots 20..25, between
    pages that were never written: those are zeros, the rest of the buffer is left alone."""
    d = device(payload=True)
    rng = np.random.default_rng(6)
    d.buffer = rng.integers(1, 256, (32, PAGE)).astype(np.uint8)
    given = d.buffer.copy()
    writes = commands([(WRITE, 101, 3), (WRITE, 104, 3)], slot=5)
    writes["payload_slot"] = [5, 9]
    d.submit(writes)
    d.run()
    d.submit(commands([(READ, 100, 8)], arrival=d.now, slot=19))
    d.run()
    assert (d.buffer[20:23] == given[5:8]).all() and (d.buffer[23:26] == given[9:12]).all()
    assert (d.buffer[[19, 26]] == 0).all()
    rest = np.r_[0:19, 27:32]
    assert (d.buffer[rest] == given[rest]).all()


def test_read_and_write_beside_submitted_commands():
    """The caller's buffer and the device's own do not mix."""
    d = device(payload=True)
    d.buffer = np.full((4, PAGE), 5, np.uint8)
    d.submit(commands([(WRITE, 0, 2), (READ, 0, 2)], slot=0))
    d.write(100, b"\x09" * PAGE)
    assert (d.read(100) == 9).all() and (d.read(0, 2) == 5).all()
    assert sorted(d.completions()["tag"]) == [0, 1]
    d.check()


# --- the books: whatever is taken from them is noticed


def _lost_page(d):
    d.arrays.l2p[0, int(np.flatnonzero(d.arrays.l2p[0])[0])] = 0


def _two_owners(d):
    a, b = np.flatnonzero(d.arrays.l2p[0])[:2]
    d.arrays.l2p[0, a] = d.arrays.l2p[0, b]


def _lost_count(d):
    d.arrays.valid[np.flatnonzero(d.arrays.valid)[0]] -= 1


def _lost_block(d):
    d.arrays.pool.free_n[0] -= 1


def _lost_transaction(d):
    reg = d.arrays.reg[0]
    reg.free_txn = d.arrays.txn.next[reg.free_txn]


def _flying(d):
    d.arrays.block.flying[0] = 1


COUNTERS = (
    "COMMANDS", "COMMANDS_DONE", "READ_PAGES", "PROGRAM_PAGES", "GC_READ_PAGES",
    "GC_PROGRAM_PAGES", "HOST_READ_BYTES", "HOST_WRITE_BYTES", "ECC_DECODED_PAGES",
    "ECC_ENCODED_PAGES", "ARRAY_ERASES", "ERASED_BLOCKS",
)  # fmt: skip


def worked():
    d = device(payload=True)
    d.buffer = np.zeros((16, PAGE), np.uint8)
    batch = random_writes(np.random.default_rng(5), 700, 358, longest=4)
    batch["payload_slot"] = 0
    d.submit(batch)
    d.submit(commands([(READ, 0, 16), (TRIM, 4, 8)]))
    d.run()
    d.check()
    return d


@pytest.mark.parametrize(
    "fault",
    [_lost_page, _two_owners, _lost_count, _lost_block, _lost_transaction, _flying],
    ids=lambda f: f.__name__,
)
def test_check_notices_a_fault_in_the_tables(fault):
    d = worked()
    fault(d)
    with pytest.raises(Imbalance, match=", but "):
        d.check()


@pytest.mark.parametrize("name", COUNTERS)
def test_check_notices_a_counter_that_is_off(name):
    d = worked()
    assert counter(d, getattr(stats, name)) > 0
    d.arrays.count[0, getattr(stats, name)] -= 1
    with pytest.raises(Imbalance, match=", but "):
        d.check()


def test_check_notices_bytes_that_crossed_no_link():
    d = worked()
    for station in (s.HOST_STATIONS + s.DOWN, s.HOST_STATIONS + s.UP):
        d.arrays.fifo["size"][station] += 1
        with pytest.raises(Imbalance, match="the station link"):
            d.check()
        d.arrays.fifo["size"][station] -= 1
    d.arrays.bus.size_in[0] += 1
    with pytest.raises(Imbalance, match="into the dies"):
        d.check()


def test_check_notices_a_page_that_is_not_on_flash():
    d = worked()
    ppn = int(d.arrays.l2p[0].max()) - 1
    assert d.store is not None
    d.store.erase(ppn, 1)
    with pytest.raises(Imbalance, match=f"mapped to page {ppn}"):
        d.check()
