"""Pages that hold fewer sectors than they have: what is read first, what crosses the channel, and
what the drive knows of every sector. Through queue pairs, whose requests have bytes.
"""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from ondie.emu.engine.run import build
from ondie.emu.nand import scheduler_statistics
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme.request import READ, TRIM, WRITE
from ondie.emu.units import InputError
from tests.state.written import PAGE, config, drive, play, requests

SECTOR = 512
SECTORS = PAGE // SECTOR
SHAPE = {
    "flash__channels": 1,
    "flash__dies_per_channel": 2,
    "flash__blocks_per_plane": 16,
    "flash__pages_per_block": 8,
    "ftl__partial_pages": "sectors",
    "ftl__over_provisioning": 0.4,
    "ftl__gc_low_blocks": 2,
}


@pytest.fixture(autouse=True, scope="module")
def _a_small_pool():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "BUDGET", 2048)
        patch.setattr(build, "ROWS", 1 << 10)
        yield


def fresh(**changes):
    cfg = config(**SHAPE | changes)
    return drive(cfg), cfg


def sent(arrays, cfg, items, depth=1):
    """Requests of (op, first sector, sectors) in a closed loop; the counters by name."""
    op, first, n = np.array(items).T
    return play(arrays, cfg, [requests(first * SECTOR, n * SECTOR, op)], depth).counters


def moved(arrays):
    """Bytes that have crossed the channels: (into the registers, out of them)."""
    return int(arrays.bus.size_in.sum()), int(arrays.bus.size_out.sum())


class Sectors:
    """Which sectors of which pages have been written, and what the drive must do for that."""

    def __init__(self):
        self.held: dict[int, int] = {}
        self.into = self.out = self.merges = 0

    def parts(self, first, n):
        """(page, bits) that the sectors first .. first + n lie in."""
        end = first + n
        while first < end:
            page, at = divmod(first, SECTORS)
            m = min(end - first, SECTORS - at)
            yield page, ((1 << m) - 1) << at
            first += m

    def do(self, op, first, n):
        for page, bits in self.parts(first, n):
            held = self.held.get(page, 0)
            if op == WRITE:
                missing = held & ~bits
                self.merges += missing != 0
                self.out += missing.bit_count() * SECTOR
                self.into += bits.bit_count() * SECTOR
                self.held[page] = held | bits
            elif op == READ and held:
                self.out += bits.bit_count() * SECTOR
            elif op == TRIM and bits == (1 << SECTORS) - 1:
                self.held.pop(page, None)


def agree(arrays, model):
    """What the drive knows of every sector is what was written."""
    held = arrays.sectors[0]
    wanted = np.zeros(len(held), np.int64)
    for page, bits in model.held.items():
        wanted[page] = bits
    np.testing.assert_array_equal(held, wanted)


ITEMS = st.lists(
    st.tuples(
        st.sampled_from((WRITE, WRITE, WRITE, READ, TRIM)),
        st.integers(0, 20 * SECTORS - 1),
        st.integers(1, 3 * SECTORS),
    ),
    min_size=1,
    max_size=40,
)


@hypothesis.given(ITEMS, st.sampled_from(("plane", "die")), st.sampled_from(("static", "dynamic")))
def test_one_request_after_the_other(items, unit, placement):
    """Sector by sector: merges, bytes over the channel each way, and the sectors known."""
    arrays, cfg = fresh(ftl__block_unit=unit, ftl__placement=placement)
    model = Sectors()
    count = sent(arrays, cfg, items)
    for item in items:
        model.do(*item)
    assert count["merge_read_pages"] == model.merges
    assert moved(arrays) == (model.into, model.out)
    assert count["gc_read_pages"] == 0
    agree(arrays, model)


def test_through_collection(counts, rng):
    """Overwritten many times at depth 16, on pages apart: the sectors known are those written, and
    whole pages are never read before they are written."""
    arrays, cfg = fresh()
    lpns = int(arrays.cfg.lpns[0])
    model = Sectors()
    for _ in range(counts(40, 400)):
        pages = rng.permutation(lpns)[:80]
        items = []
        for page in pages.tolist():
            at = int(rng.integers(0, SECTORS))
            items.append((WRITE, page * SECTORS + at, int(rng.integers(1, SECTORS - at + 1))))
        for item in items:
            model.do(*item)
        count = sent(arrays, cfg, items, depth=16)
    assert count["collections"] > 100 and count["gc_program_pages"] > 500
    assert count["merge_read_pages"] == model.merges > 1000
    agree(arrays, model)
    whole = [(WRITE, page * SECTORS, SECTORS) for page in range(lpns)]
    assert sent(arrays, cfg, whole)["merge_read_pages"] == model.merges


def test_whole_pages_move_whole():
    """Where pages are moved whole, part of one costs the channel a page, each way, and no merge."""
    arrays, cfg = fresh(ftl__partial_pages="whole")
    count = sent(arrays, cfg, [(WRITE, 0, 8), (WRITE, 2, 3), (READ, 4, 1)])
    assert moved(arrays) == (2 * PAGE, PAGE) and count["merge_read_pages"] == 0


def test_a_merge_takes_a_read_first():
    """A write of half a page: on an empty page its program alone; on the other half's page the
    read of that half before it, and longer by all of that: tR 10, half a page at 1000 MB/s 2.048,
    two commands of 0.1 less one, decode 1."""
    from tests.timing.harness import TIMES, US

    times = {name.replace(".", "__"): value for name, value in TIMES.items()}
    planes = {"ftl__block_unit": "plane", "ftl__reservoir_fraction": 0}
    cfg = config(**times | SHAPE | planes | {"flash__dies_per_channel": 1})
    arrays = drive(cfg)
    half = SECTORS // 2
    all_ = requests(np.array([0, 0, half]) * SECTOR, half * SECTOR, WRITE)
    done = play(arrays, cfg, [all_], depth=1).requests[0]
    took = (done["end"] - done["start"]) / US
    assert took[0] == took[1]  # the same sectors again: nothing is missing
    assert took[2] - took[1] == pytest.approx(10 + 2.048 + 0.1 + 1)


def test_pages_beyond_the_map_of_sectors_are_refused():
    with pytest.raises(InputError, match="32 KiB"):
        config(**SHAPE | {"flash__page": "64 KiB", "host__io_block": "64 KiB"})


def test_queues_of_writes_that_read_the_rest_of_their_page_first():
    """Every program waits once in the queue of its die, and leaves it; each read of the rest of a
    page waits in the queue of reads. Old and new page are on one die, as in MQSim."""
    arrays, cfg = fresh(ftl__map_update="placed", ftl__placement="static")
    scheduler_statistics.watch(arrays, Geometry.of(cfg), 1)
    rng = np.random.default_rng(5)
    items = [
        (WRITE, int(page) * SECTORS, SECTORS) if rng.random() < 0.5
        else (WRITE, int(page) * SECTORS + int(rng.integers(1, SECTORS)), 1)
        for page in rng.integers(0, 12, 200)
    ]  # fmt: skip
    counters = sent(arrays, cfg, items, 4)
    use = arrays.queue_use.reshape(-1, scheduler_statistics.QUEUES)
    assert (use["entered"] == use["left"]).all()
    writes = use[:, scheduler_statistics.WRITES : scheduler_statistics.WRITES + 4]
    reads = use[:, scheduler_statistics.READS : scheduler_statistics.READS + 4]
    assert 0 < counters["merge_read_pages"] == reads["entered"].sum()
    erases = counters["array_erases"]  # of blocks that are opened, in the queue of writes
    assert counters["program_pages"] == writes["entered"].sum() - erases == len(items)
    assert writes["longest"].max() == 5 and reads["longest"].max() <= 4  # four and an erase
    assert writes["waited"].sum() > 0
    assert (use["worst"] <= use["waited"]).all()
