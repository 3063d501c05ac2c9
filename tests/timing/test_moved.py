"""Timing is simulated, not computed aside: an entry of the table is moved, a die is delayed,
and the paths' results change as the order of events says.
"""

import numpy as np
import pytest

from ondie.emu.analysis.path_choice import PATHS
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.nand.timing import BPP, BPR, ODC, PROGRAM, READ, VPP
from ondie.emu.paths.base import UPDATE
from tests.state.models import model
from tests.timing.harness import preset

US = 1_000_000
LEAVES = {
    "flash.channels": "2",
    "flash.dies_per_channel": "3",
    "flash.planes_per_die": "4",
    "flash.blocks_per_plane": "24",
    "flash.pages_per_block": "8",
    "flash.page": "1 KiB",
    "flash.interleave_commands": "false",
    "ftl.over_provisioning": "0.3",
    "ftl.initial": "fresh",
    "host.io_block": "4 KiB",
    "frontend.max_transfer": "8 KiB",
}
DIES = 6  # die = 2 * way + channel
LAST = 4  # way 2 of channel 0: the last that gets its gradient
ROUNDS = 11
PARAMS = ROUNDS * DIES * 256


class Run:
    """One step of a path on a model without payload; ``moved(arrays)`` changes the tables
    first."""

    def __init__(self, path, moved=None, params=PARAMS, **changes):
        trace = model("adamw", 1, (("w", (params,), 0),), payload=False)
        self.path = PATHS[path](preset(LEAVES, **changes), trace)
        self.system = self.path.system(False, 0)
        self.path.prepare(self.system, None)
        if moved is not None:
            moved(self.system.arrays)
        self.system.run(self.path.plan(0))
        self.rows = self.system.arrays.row[: self.system.next_row]

    def last_program(self, die):
        """When a die's last stripe was programmed."""
        mine = (self.rows.resource == rows.DIE) & (self.rows.kind == BPP)
        mine &= self.rows.lpn % DIES == die
        assert mine.sum() == ROUNDS
        return int(self.rows.end[mine].max())

    def programs(self):
        return np.array([self.last_program(die) for die in range(DIES)])

    @property
    def update_ps(self):
        """From the first gradient byte down to the last program."""
        mine = self.rows.phase == UPDATE
        mine &= self.rows.resource > rows.JOIN
        return int(self.rows.end[mine].max() - self.rows.start[mine].min())

    def of_round(self, kind, channel):
        """(starts, ends)[round, way] of a channel's operations of one kind."""
        mine = (self.rows.resource == rows.DIE) & (self.rows.kind == kind)
        mine &= (self.rows.lpn % 2 == channel) & (self.rows.phase == UPDATE)
        order = np.argsort(self.rows.lpn[mine])
        return (self.rows[name][mine][order].reshape(ROUNDS, 3) for name in ("start", "end"))


@pytest.mark.parametrize("dispatch", ["lockstep", "free"])
def test_lockstep_is_in_step(dispatch):
    """In every round no die of a channel reads its stripe before the last one has its gradient,
    and none gets its next gradient before the last one has programmed. Free dies do both."""
    run = Run("on_die", pe__dispatch=dispatch)
    for channel in (0, 1):
        loads, loaded = run.of_round(VPP, channel)
        reads, _ = run.of_round(BPR, channel)
        _, programmed = run.of_round(BPP, channel)
        assert (reads.min(axis=1) >= loaded.max(axis=1)).all() == (dispatch == "lockstep")
        waits = loads[1:].min(axis=1) >= programmed[:-1].max(axis=1)
        assert waits.all() == (dispatch == "lockstep")
        assert (reads >= loaded).all() and (loads[1:] >= programmed[:-1]).all()


def add(op, ps):
    def moved(arrays):
        arrays.op.array[op] += ps

    return moved


def delay(die, ps):
    def moved(arrays):
        arrays.die.extra[die] = ps

    return moved


@pytest.mark.parametrize("op", [BPR, ODC, BPP], ids=["BPR", "ODC", "BPP"])
def test_an_entry_moves_every_round(op):
    """Dies in lockstep: a round takes gradients, tR, computation and tPROG one after the other,
    so 3 us more of any of the last three make the update stage 3 us longer per round."""
    still = Run("on_die").update_ps
    assert Run("on_die", add(op, 3 * US)).update_ps - still == ROUNDS * 3 * US


@pytest.mark.parametrize("op", [PROGRAM, READ], ids=["PROGRAM", "READ"])
def test_entries_of_other_operations_do_not(op):
    """The update on the die programs nothing from the host and reads nothing to it: its update
    stage knows neither entry. (READ sends the weights up, a phase of its own.)"""
    still = Run("on_die").update_ps
    assert Run("on_die", add(op, 3 * US)).update_ps == still


def test_lockstep_holds_the_channel_of_a_slow_die():
    """The last die of channel 0 takes 20 us longer for each of its three array operations. Its
    rounds take 60 us longer; the channel's other dies wait for it at the start of every round
    but the first. Channel 1 does not notice."""
    still, slow = Run("on_die").programs(), Run("on_die", delay(LAST, 20 * US)).programs()
    late = (slow - still) // US
    assert late[LAST] == ROUNDS * 60
    assert late[0] == late[2] == (ROUNDS - 1) * 60
    assert (slow[1::2] == still[1::2]).all()


@pytest.mark.parametrize("die", [0, 2])
def test_lockstep_holds_the_channel_of_any_slow_die(die):
    """The same for the first and the middle die, whose next gradient may enter while it still
    programs: all but those loads (2.7 us each) count."""
    still, slow = Run("on_die").programs(), Run("on_die", delay(die, 20 * US)).programs()
    late = (slow - still) / US
    assert (late[0::2] > (ROUNDS - 1) * (60 - 3 * 2.8)).all()
    assert (late[0::2] <= ROUNDS * 60).all()
    assert (slow[1::2] == still[1::2]).all()


def test_free_dispatch_holds_only_the_slow_die():
    """With free dispatch only the slow die is 60 us later per stripe, less what it waited for the
    channel before. The others of its channel are no later than by a few gradients."""
    change = {"pe__dispatch": "free"}
    still = Run("on_die", **change).programs()
    slow = Run("on_die", delay(LAST, 20 * US), **change).programs()
    late = (slow - still) / US
    assert ROUNDS * (60 - 2.8) <= late[LAST] <= ROUNDS * 60
    assert (late[[0, 2]] < 2.8).all()
    assert (slow[1::2] == still[1::2]).all()


def test_double_buffering_does_not_hide_a_slow_die():
    """The next gradient is in the second register long before the die is free for it: a die
    delayed by 60 us per stripe is late by all of it, and by a few commands of 150 ns."""
    change = {"pe__dispatch": "double_buffered"}
    still = Run("on_die", **change).programs()
    slow = Run("on_die", delay(LAST, 20 * US), **change).programs()
    assert ROUNDS * 60 * US <= (slow - still)[LAST] < (ROUNDS * 60 + 1) * US
    assert ((slow - still)[[0, 2]] < 1 * US).all()
    assert (slow[1::2] == still[1::2]).all()


def test_offload_waits_for_reads_and_programs():
    """One page per vector, on four dies. Serial offload: write g, read w, m, v and g, compute,
    write w, m and v: tR counts once, tPROG twice."""
    still = Run("host_offload", params=256)
    read = Run("host_offload", add(READ, 3 * US), params=256)
    program = Run("host_offload", add(PROGRAM, 3 * US), params=256)
    assert read.system.now - still.system.now == 3 * US
    assert program.system.now - still.system.now == 6 * US


def test_offload_waits_for_the_one_slow_die():
    """w, m, v lie on dies 0, 1, 2; g is written to 3 and read from it, then w, m, v go to 4, 5,
    0. A die that takes 500 us more holds up the step by as much for each of these, less the few
    us that the others, side by side with it, take longer anyway."""
    still = Run("host_offload", params=256)
    late = [Run("host_offload", delay(d, 500 * US), params=256).system.now for d in range(DIES)]
    times = [(t - still.system.now) / (500 * US) for t in late]
    assert np.ceil(times).tolist() == [2, 1, 1, 2, 1, 1]
    assert (np.array(times) > [1.9, 0.9, 0.9, 1.9, 0.9, 0.9]).all()


def test_in_storage_goes_as_fast_as_its_slowest_die():
    """Every chunk is spread over all dies, so one slow die delays nearly every chunk; programs
    50 us later on one of six dies cost less than on all, and more than a sixth of it."""
    still = Run("in_storage").update_ps
    one = Run("in_storage", delay(0, 50 * US)).update_ps - still
    every = Run("in_storage", lambda a: a.die.extra.__iadd__(50 * US)).update_ps - still
    assert 0 < every / DIES < one < every
