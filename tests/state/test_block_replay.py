"""Does a block trace become what a drive takes, and what comes back belong to it?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.nvme.request import NOT_YET
from ondie.emu.replay.block_trace import (
    Commands,
    Loop,
    capacity,
    fitted,
    partial_pages,
    replay_block,
    whole_sectors,
)
from ondie.emu.units import InputError
from ondie.traces import TraceError
from ondie.traces.block import FLUSH, READ, TRIM, WRITE
from tests.protocol.block_samples import columns
from tests.state.written import PAGE, config
from tests.timing.harness import US

MIB = 1 << 20
CLOSED = Loop(8)


def trace(*requests, **more):
    """(arrival_ps, op, offset, size) on one device."""
    return columns([(*r, 0) for r in requests], ("a",), **more)


@st.composite
def anywhere(draw):
    """Requests at any byte."""
    rows, now = [], 0
    for _ in range(draw(st.integers(1, 20))):
        op = draw(st.sampled_from([READ, WRITE, TRIM, FLUSH]))
        place = st.integers(0, 5000), st.integers(1, 3000)
        now += draw(st.integers(0, 5))
        rows.append((now, op, *((0, 0) if op == FLUSH else (draw(x) for x in place))))
    return rows


@given(anywhere())
def test_whole_sectors(rows):
    """Reads and writes cover every byte asked for, TRIMs no other one, both by whole sectors."""
    wanted = [r for r in rows if r[1] != TRIM or (r[2] + r[3]) // 512 > -(-r[2] // 512)]
    if not wanted:
        with pytest.raises(TraceError, match="no requests"):
            whole_sectors(trace(*rows))
        return
    got = whole_sectors(trace(*rows))
    assert len(got) == len(wanted)
    for (arrival, op, offset, size), *row in zip(
        wanted, got.arrival_ps, got.op, got.offset, got.size, strict=True
    ):
        first, last = int(row[2]), int(row[2] + row[3])
        assert (row[0], row[1]) == (arrival, op) and first % 512 == last % 512 == 0
        if op == TRIM:
            assert offset <= first < offset + 512 and offset + size - 512 < last <= offset + size
        elif op != FLUSH:
            assert offset - 512 < first <= offset
            assert offset + size <= last < offset + size + 512


@given(anywhere(), st.integers(1, 6), st.sampled_from([None, 4]))
def test_commands_and_back(rows, sectors, depth):
    """Commands of at most so many bytes cover their request one after the other; a request takes
    from the first start of its commands to the last end."""
    made = Commands(trace(*rows), sectors * 512, Loop(depth))
    chunk = np.concatenate(list(made.chunks()))
    assert len(chunk) == len(made)
    at = 0
    chunk["start"] = np.arange(len(chunk)) * 10
    chunk["end"] = chunk["start"] + 500 - 7 * (np.arange(len(chunk)) % 3)
    merged = made.merged(chunk)
    for (arrival, op, offset, size), whole in zip(rows, merged, strict=True):
        n = -(-size // (sectors * 512)) if op in (READ, WRITE) else 1
        mine = chunk[at : at + n]
        at += n
        assert (mine["op"] == op).all()
        assert (mine["arrival"] == (arrival if depth is None else NOT_YET)).all()
        assert mine["offset"][0] == offset and mine["size"].sum() == size
        assert (mine["offset"][1:] == mine["offset"][:-1] + mine["size"][:-1]).all()
        assert op >= TRIM or (mine["size"] <= sectors * 512).all()
        assert (whole["op"], whole["offset"], whole["size"]) == (op, offset, size)
        assert (whole["start"], whole["end"]) == (mine["start"].min(), mine["end"].max())
    assert at == len(chunk)


def test_a_large_request_takes_as_long_as_its_commands():
    """4 MiB by commands of 1 MiB, beside four requests of 1 MiB."""
    cfg = config()
    one = replay_block(trace((0, WRITE, 0, 4 * MIB), (0, READ, 0, PAGE)), cfg, Loop(8))
    four = [(0, WRITE, i * MIB, MIB) for i in range(4)]
    apart = replay_block(trace(*four, (0, READ, 0, PAGE)), cfg, Loop(8))
    assert len(one.requests) == 2 and len(apart.requests) == 5
    assert one.requests["end"][0] == apart.requests["end"][:4].max()
    assert one.requests["end"][1] == apart.requests["end"][4]
    assert "2 requests became 5 commands" in one.notes[0] and one.half is None
    assert apart.half is not None


def test_times_over_speed():
    """Twice as fast is half the time between requests; a drive that keeps up takes as long for
    each."""
    given = [(i * 400 * US, READ, i * PAGE, PAGE) for i in range(50)]
    slow, fast = (replay_block(trace(*given), config(), Loop(None, x)).requests for x in (1, 2))
    np.testing.assert_array_equal(slow["arrival"], np.arange(50) * 400 * US)
    np.testing.assert_array_equal(fast["arrival"], np.arange(50) * 200 * US)
    np.testing.assert_array_equal(slow["end"] - slow["start"], fast["end"] - fast["start"])


def test_parts_of_pages_read_what_is_missing():
    """512 bytes of a page that is full: its old page is read, and the whole still is mapped. The
    second time as well. A page that only has these bytes does not need it."""
    given = trace((0, WRITE, 512, 512), (0, WRITE, 1024, 512), (0, READ, 0, PAGE))
    for kind, merges in (("fill", 2), ("none", 1)):
        done = replay_block(given, config(), Loop(1), kind=kind)
        assert done.done.counters["merge_read_pages"] == merges
        assert done.config.ftl.partial_pages == "sectors"
        assert "2 requests cover parts of pages of 4096 bytes" in done.notes[-1]
    whole = replay_block(given, config(ftl__partial_pages="whole"), Loop(1))
    assert whole.done.counters["merge_read_pages"] == 0
    assert "processed as whole pages" in whole.notes[-1]


def test_whole_pages_change_nothing():
    cfg = config()
    given = trace((0, WRITE, PAGE, 3 * PAGE), (0, TRIM, 100, 300), (0, FLUSH, 0, 0))
    assert partial_pages(given, cfg) == (cfg, [])


def test_requests_past_the_end():
    cfg = config()
    size = capacity(cfg)
    inside = (0, READ, size - PAGE, PAGE)
    assert len(fitted(trace(inside), size, "refuse")[0]) == 1
    beyond = trace(inside, (5, TRIM, size - 512, 1024), (6, READ, 9 * size, 512))
    with pytest.raises(InputError, match=rf"request 1: 1024 bytes at offset {size - 512} .*{size}"):
        replay_block(beyond, cfg, CLOSED)
    done = replay_block(beyond, cfg, CLOSED, footprint="wrap")
    assert done.requests["offset"].tolist() == [size - PAGE, size - 512, 0, 0]
    assert done.requests["size"].tolist() == [PAGE, 512, 512, 512]
    assert any("wrapped" in note for note in done.notes)


def test_the_host_takes_no_time_unless_it_is_said():
    given = trace((0, READ, 0, PAGE))
    free = replay_block(given, config(), CLOSED).requests
    paid = replay_block(given, config(host__io_submit="3 us"), CLOSED).requests
    assert paid["end"][0] - free["end"][0] == 3 * US


def test_shares_of_time_at_work():
    """Sequential reads by one die at a time: it works tR and the bus all the time but for what the
    controller takes; link and channel have the pages' time."""
    cfg = config(link__latency="0 ns", frontend__command="0 ns", ecc__decode="0 ns")
    given = trace(*[(0, READ, 0, PAGE)] * 200)
    done = replay_block(given, cfg, Loop(1))
    total = done.done.simulated_ps
    assert done.busy["link up"]["mean"] == pytest.approx(
        200 * PAGE / cfg.link.up_bytes_per_s * 1e12 / total, rel=0.01
    )
    assert done.busy["dies"]["most"] == pytest.approx(8 * done.busy["dies"]["mean"])
    assert done.busy["dies"]["most"] > 0.8 > done.busy["channels"]["most"] > 0
    assert "link down" not in done.busy and "ISP" not in done.busy
    assert all(share["collection"] == 0 for share in done.busy.values())


def test_collection_has_its_share(rng):
    cfg = config()
    pages = capacity(cfg) // PAGE
    given = trace(*((0, WRITE, int(x) * PAGE, PAGE) for x in rng.integers(0, pages, 20_000)))
    done = replay_block(given, cfg, Loop(32), kind="steady")
    assert 0.2 < done.busy["dies"]["collection"] < done.busy["dies"]["mean"] < 1
    assert done.done.counters["gc_program_pages"] > 5000 and done.half is not None


@pytest.mark.parametrize(
    ("given", "loop", "says"),
    [
        (trace((0, READ, 0, 512), timed=False), Loop(None), "has no timestamps"),
        (trace((0, READ, 0, 512)), Loop(None, 0.0), "--speed 0.0"),
        (trace((0, READ, 0, 512), (10**17, READ, 0, 512)), Loop(None, 1e-3), "--speed 0.001"),
        (columns([(0, READ, 0, 512, 0), (0, READ, 0, 512, 1)], ("a", "b")), CLOSED,
         r"2 devices \(a, b\); select one with --volume NAME"),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed(given, loop, says):
    with pytest.raises(InputError, match=says) as error:
        replay_block(given, config(), loop)
    assert "\n" not in str(error.value)
