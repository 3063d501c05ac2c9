"""The reservoir: written strictly in sequence, collected without moving anything, and refused
where it is too small or its registers hold nothing.
"""

import numpy as np
import pytest

from ondie.emu.analysis.path_choice import PATHS
from ondie.emu.engine.core import payload_log
from ondie.emu.engine.core.counters import COUNTERS, GC_PROGRAM_PAGES, GC_READ_PAGES
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.nand.timing import BPP, BPR, ODC, VPP
from ondie.emu.paths.base import Unavailable
from ondie.emu.units import InputError
from tests.state.models import model
from tests.timing.harness import Bench, preset

LEAVES = {
    "flash.channels": "2",
    "flash.dies_per_channel": "2",
    "flash.planes_per_die": "4",
    "flash.blocks_per_plane": "16",
    "flash.pages_per_block": "4",
    "flash.page": "1 KiB",
    "ftl.reservoir_fraction": "0.5",
    "host.io_block": "4 KiB",
}
DIES, BLOCKS, PAGES = 4, 8, 4  # of the reservoir, per die


def steps(n, params, **changes):
    """A timing-only run of on_die; returns (system, log of what moved)."""
    trace = model("adam", n, (("w", (params,), 0),), payload=False)
    path = PATHS["on_die"](preset(LEAVES, **changes), trace)
    system = path.system(True, 0)
    path.prepare(system, None)
    log = []
    system.on_log = lambda part: log.append(np.array(part))
    for i in range(n):
        system.run(path.plan(i))
    return system, np.concatenate(log)


@pytest.mark.parametrize("dispatch", ["lockstep", "free", "double_buffered"])
def test_programs_go_round_in_sequence(dispatch):
    """18 stripes a die in 32 places, 8 steps: each die's programs follow each other without a gap,
    4.5 times around."""
    per_die, n = 18, 8
    system, log = steps(n, per_die * DIES * 256, pe__dispatch=dispatch)
    for die in range(DIES):
        places = [
            int(x["ppn"]) for x in log if x["what"] == payload_log.LOG_BPP and x["die"] == die
        ]
        filled = per_die  # the fill took the first places
        assert places == [(filled + i) % (BLOCKS * PAGES) for i in range(n * per_die)]


def test_nothing_is_moved_and_blocks_wear_evenly():
    """Over 8 steps no page is collected; a block is erased each time the cursor enters it, so
    erase counts differ by one at most. 18 + 144 places per die: blocks 0..7 are entered 6 or 5
    times, the first 5 of them (18 places) by the untimed fill."""
    system, log = steps(8, 18 * DIES * 256)
    count = dict(zip(COUNTERS, system.arrays.count[0].tolist(), strict=True))
    assert count["gc_read_pages"] == count["gc_program_pages"] == count["collections"] == 0
    assert system.arrays.count[0, GC_READ_PAGES] == system.arrays.count[0, GC_PROGRAM_PAGES] == 0
    entered = -(-(18 + 144) // PAGES)  # 41
    conventional, erases = np.split(system.arrays.block.erases.reshape(DIES, -1), [-BLOCKS], axis=1)
    assert conventional.shape == erases.shape and conventional.sum() == 0
    assert (erases.sum(axis=1) == entered - 5).all()
    assert erases.max() - erases.min() == 1
    assert (np.array([x["what"] for x in log]) == payload_log.LOG_ERASE).sum() == DIES * (
        entered - 5
    )
    valid = system.arrays.valid.reshape(DIES, -1)[:, -BLOCKS:]
    assert (valid.sum(axis=1) == 18).all() and system.arrays.dev.r_mapped[0] == 18 * DIES


def test_a_full_reservoir_but_one_block_is_enough():
    """28 stripes a die: 7 of 8 blocks. The eighth is what the cursor enters next, always
    invalid."""
    system, _ = steps(4, 28 * DIES * 256)
    valid = system.arrays.valid.reshape(DIES, -1)[:, -BLOCKS:]
    assert (valid.sum(axis=1) == 28).all()


def test_one_stripe_more_is_refused_with_numbers():
    with pytest.raises(Unavailable) as caught:
        steps(1, 29 * DIES * 256)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert "ftl.reservoir_fraction = 0.5" in message and "29,696 parameters" in message


def test_a_reservoir_that_is_too_small_stops_the_run():
    """The engine's own guard, below the path's: 16 blocks of 8 pages, half of them the
    reservoir's: 64 super-pages fill it, and the next program would have to reuse a block with 8
    valid ones."""
    bench = Bench(super_pages=64)
    bench.die(VPP)
    bench.die(BPR, pages=2)
    bench.run_to()
    bench.die(ODC, pages=0, array_ps=1000)
    bench.run_to()
    bench.die(BPP, pages=2)
    with pytest.raises(InputError) as caught:
        bench.run_to()
    message = str(caught.value)
    assert "ftl.reservoir_fraction=0.5" in message and "8 valid super-pages" in message
    assert len(message.splitlines()) == 1


def test_a_fill_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="valid super-pages"):
        Bench(super_pages=65)


BAD = {
    "compute without a gradient": ([(BPR, 2)], ODC),
    "compute without a stripe": ([(VPP, 1)], ODC),
    "compute twice on one gradient": ([(VPP, 1), (BPR, 2), (ODC, 0)], ODC),
    "program without a stripe": ([(VPP, 1)], BPP),
    "read into full registers": ([(BPR, 2)], BPR),
    "program twice": ([(BPR, 2), (BPP, 2)], BPP),
}


@pytest.mark.parametrize(("before", "op"), BAD.values(), ids=BAD)
def test_missing_register_state(before, op):
    """What a die is asked to do without its operands in the registers is a defect of the plan."""
    bench = Bench(super_pages=8)
    for kind, pages in before:
        bench.die(kind, pages=pages)
        bench.run_to()
    bench.die(op, pages=2 * (op != ODC))
    name = {ODC: "ODC", BPP: "BPP", BPR: "BPR"}[op]
    with pytest.raises(SimulationError, match=f"die 0: .* operation {name}"):
        bench.run_to()


def test_a_super_page_that_was_never_written():
    bench = Bench(super_pages=8)
    bench.arrays.rmap[0, 5] = 0
    bench.die(BPR, 5, pages=2)
    with pytest.raises(SimulationError, match="super-page 5"):
        bench.run_to()


def test_a_super_page_past_the_end():
    bench = Bench(super_pages=8)
    bench.die(BPR, 8, pages=2)
    with pytest.raises(InputError, match="at page 8 "):
        bench.run_to()
