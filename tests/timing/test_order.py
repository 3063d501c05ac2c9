"""Who goes first: commands before data, data out before data in, dies in turn, reads before
programs, the optimizer's registers before everything else on their die.
"""

import pytest

from ondie.emu.nand.timing import BPP, BPR, ODC, VPP
from ondie.emu.nvme import command as queues
from tests.timing import harness as h
from tests.timing.harness import ns

LOAD = h.COMMAND + h.BUS  # 4.196 us


def test_a_command_goes_before_data_that_waited_longer():
    """The channel is busy with die 0's gradient until 4.196. Die 1's gradient has waited since
    0, but die 2's read command goes first (0.2), so that its array works meanwhile."""
    bench = h.Bench(super_pages=3, flash__dies_per_channel=3)
    ids = [bench.die(VPP, 0), bench.die(VPP, 1)]
    bench.run_to(0)  # what comes at the same instant is looked at together
    ids.append(bench.die(BPR, 2, pages=2))
    assert bench.ends(ids) == ns(4.196, 4.196 + 0.2 + 4.196, 4.196 + 0.2 + 10)


def test_a_command_may_interrupt_data():
    """With interleaving, die 1's read command goes out at 1 us, in the middle of die 0's gradient,
    which it delays by its 0.2; the next data behind it as well."""
    bench = h.Bench(super_pages=3, flash__dies_per_channel=3, flash__interleave_commands="true")
    ids = [bench.die(VPP, 0), bench.die(VPP, 2)]
    ids.append(bench.die(BPR, 1, pages=2, after0=bench.at(1 * h.US)))
    assert bench.ends(ids) == ns(4.396, 8.592, 1 + 0.2 + 10)


def test_commands_that_interrupt_go_one_after_the_other():
    """Two dies' commands at 1 us: 1.0-1.2 and 1.2-1.4; the gradient ends 0.4 later."""
    bench = h.Bench(super_pages=3, flash__dies_per_channel=3, flash__interleave_commands="true")
    ids = [bench.die(VPP, 0)]
    timer = bench.at(1 * h.US)
    ids += [bench.die(BPR, sp, pages=2, after0=timer) for sp in (1, 2)]
    assert bench.ends(ids) == ns(4.596, 11.2, 11.4)


def test_commands_wait_for_commands():
    """A command is never interrupted: BPR of die 0 0-0.2, of die 1 0.2-0.4."""
    bench = h.Bench(super_pages=2, flash__dies_per_channel=2, flash__interleave_commands="true")
    ids = [bench.die(BPR, sp, pages=2) for sp in (0, 1)]
    assert bench.ends(ids) == ns(10.2, 10.4)


def test_a_command_goes_before_data_out():
    """Die 0's page is ready at 10.1, die 1's BPR command waits since 8; the channel is busy
    with die 2's gradient from 8 to 12.196. The command goes first (until 12.396), then the
    page."""
    bench = h.Bench(super_pages=3, flash__dies_per_channel=3)
    page = bench.read(0)
    ids = [bench.die(VPP, 2, after0=bench.at(8 * h.US))]
    bench.run_to(8 * h.US)
    ids.append(bench.die(BPR, 1, pages=2))
    assert bench.ends([page, *ids]) == ns(12.396 + 4.096 + 2.2, 12.196, 12.396 + 10)


def test_data_out_go_before_data_in():
    """Die 0's page has been read at 10.1, die 1's gradient waits since 8; the channel is busy with
    die 2's gradient from 8 to 12.196. Then the page goes (until 16.292), then the gradient."""
    bench = h.Bench(super_pages=3, flash__dies_per_channel=3)
    page = bench.read(0)
    loads = [bench.die(VPP, 2, after0=bench.at(8 * h.US))]
    bench.run_to(8 * h.US)
    loads.append(bench.die(VPP, 1))
    assert bench.ends([page, *loads]) == [*ns(16.292 + 2.2), *ns(12.196), *ns(16.292 + 4.196)]


def test_dies_take_turns():
    """Two gradients for each of three dies (two registers): 0, 1, 2, then 0, 1, 2."""
    bench = h.Bench(super_pages=6, flash__dies_per_channel=3, pe__dispatch="double_buffered")
    ids = [bench.die(VPP, sp) for sp in (0, 3, 1, 4, 2, 5)]
    assert [e // LOAD for e in bench.ends(ids)] == [1, 4, 2, 5, 3, 6]


def test_reads_take_turns_too():
    """Three pages ready at 10.1, 10.2 and 10.3 leave in that order; later ones of the same dies
    come after each other's, not die 0's first: arrays sense the second pages meanwhile."""
    bench = h.Bench(super_pages=6, flash__dies_per_channel=3)
    ids = [bench.read(sp) for sp in (0, 3, 1, 4, 2, 5)]
    ends = bench.ends(ids)
    assert [ends.index(e) for e in sorted(ends)] == [0, 2, 4, 1, 3, 5]


def two_writes(bench):
    return [bench.isp(queues.WRITE, 0), bench.isp(queues.WRITE, 1)]


def test_a_read_passes_a_waiting_program():
    """First program until 55.446. The read came at 20 us: command and array until 65.546, data
    until 69.642, and only then the second program's data (until 73.838) and tPROG."""
    bench = h.Bench(super_pages=2, flash__cache_program="false")
    ids = two_writes(bench)
    timer = bench.at(20 * h.US)
    read = bench.read(after0=timer)
    assert bench.ends([*ids, read]) == ns(55.446, 123.838, 69.642 + 2.2)


def test_a_program_in_the_cache_register_is_not_passed():
    """With cache program the second page is in the register before the read comes: it is
    programmed at once (55.446-105.446), then the read."""
    bench = h.Bench(super_pages=2)
    ids = two_writes(bench)
    timer = bench.at(20 * h.US)
    read = bench.read(after0=timer)
    assert bench.ends([*ids, read]) == ns(55.446, 105.446, 105.446 + 0.1 + 10 + 4.096 + 2.2)


def test_a_read_keeps_the_cache_register_free():
    """The read is there at 2 us, before the second program's data could enter (5.446): they
    wait, and everything is as without cache program."""
    bench = h.Bench(super_pages=2)
    ids = two_writes(bench)
    timer = bench.at(2 * h.US)
    read = bench.read(after0=timer)
    assert bench.ends([*ids, read]) == ns(55.446, 123.838, 69.642 + 2.2)


@pytest.mark.parametrize("kind", ["read", "write"])
def test_nothing_touches_registers_that_hold_a_stripe(kind):
    """Between BPR and BPP a conventional read or write of the die waits, other dies do not."""
    bench = h.Bench(super_pages=4, flash__dies_per_channel=2)
    bench.system.fill(0, 0, 4)  # pages 0, 1 on die 0; 2, 3 on die 1; the next write goes to die 0
    bench.die(VPP)
    bench.die(BPR, pages=2)
    bench.run_to()
    start = bench.now
    if kind == "read":
        ids = [bench.isp(queues.READ, 0), bench.isp(queues.READ, 2)]
    else:
        ids = [bench.isp(queues.WRITE, 4), bench.isp(queues.WRITE, 5)]
    bench.run_to()
    assert not bench.done(ids[0]) and bench.done(ids[1])
    bench.die(ODC, pages=0, array_ps=h.US)
    bench.run_to()
    assert not bench.done(ids[0])
    resumed = bench.now
    bench.die(BPP, pages=2)
    more = {"read": h.COMMAND + h.READ + h.BUS + h.DECODE + h.ISP_LINK + h.DRAM,
            "write": h.COMMAND + h.BUS + h.PROGRAM}[kind]  # fmt: skip
    assert start < resumed
    bench.assert_ready_at(ids[0], resumed + 2 * h.COMMAND + h.PROGRAM + more)


def test_a_gradient_waits_for_a_conventional_read():
    """Its page is in the array or the cache register until it has left: 0.1 + 10 + 4.096, then the
    gradient."""
    bench = h.Bench(super_pages=2)
    ids = [bench.read(0), bench.die(VPP)]
    assert bench.ends(ids) == ns(14.196 + 2.2, 14.196 + 4.196)


def test_the_later_page_may_leave_first():
    """Results follow the order of events, not of the plan. Two dies, one channel: pages ready
    at 10.1 and 10.2, data until 14.196 and 18.292. With 2 us more on die 0's array it is ready
    at 12.1, when die 1's data (10.2-14.296) hold the channel: 18.392."""
    plain = h.Bench(super_pages=2, flash__dies_per_channel=2)
    assert plain.ends([plain.read(0), plain.read(1)]) == ns(14.196 + 2.2, 18.292 + 2.2)
    slow = h.Bench(super_pages=2, flash__dies_per_channel=2)
    slow.arrays.die.extra[0] = 2 * h.US
    assert slow.ends([slow.read(0), slow.read(1)]) == ns(18.392 + 2.2, 14.296 + 2.2)


def test_data_that_end_at_this_instant_are_not_interrupted():
    """Die 0's gradient goes out behind die 1's ODC command, 0.1 - 4.296. The computation takes
    just as long (4.196), so die 1 wants BPP at 4.296: the gradient is through, BPP's commands
    follow."""
    bench = h.Bench(super_pages=2, flash__dies_per_channel=2, flash__interleave_commands="true")
    bench.die(VPP, 1)
    bench.die(BPR, 1, pages=2)
    bench.run_to()
    start = bench.now
    bench.die(ODC, 1, pages=0, array_ps=LOAD)
    bpp = bench.die(BPP, 1, pages=2)
    load = bench.die(VPP, 0)
    assert bench.ends([load, bpp]) == [start + x for x in ns(4.296, 4.296 + 0.2 + 50)]
