"""Programs and erases that make way for reads: what a suspension costs, whom it serves, how often.

Alone, a read takes 0.1 + 10 + 4.096 = 14.196 us. Suspending takes a command (0.1) and 5 us, going
on a command and 2 us. What is suspended counts as stopped from the start of the suspend command.
"""

import pytest

from ondie.emu.nand import channel as nand
from tests.timing import harness as h
from tests.timing.flash import Flash
from tests.timing.harness import US, ns

READ = h.COMMAND + h.READ + h.BUS
LOADED = h.COMMAND + h.BUS  # 4.196: when the first program's array starts
GAP = h.COMMAND + 5 * US  # until the array of what makes way is free
ON = h.COMMAND + 2 * US  # until it works again


def flash(**changes):
    return Flash(
        **{
            "flash__suspend": "program_erase",
            "flash__t_suspend_program": "5 us",
            "flash__t_suspend_erase": "5 us",
            "flash__t_resume": "2 us",
            "flash__max_suspends": 9,
        }
        | changes
    )


def test_a_program_makes_way():
    """Its array works from 4.196; a read comes at 20: suspend 0.1, read command 0.1, 5 us, tR until
    35.2, data until 39.296; resume 0.1 + 2, and the 34.196 that were left: 75.592."""
    f = flash()
    program, read = f.program(), f.read(at=20 * US)
    f.assert_ready_at(read, 20 * US + GAP + READ)
    f.assert_ready_at(program, 20 * US + GAP + READ + ON + (LOADED + h.PROGRAM - 20 * US))
    assert f.end(program) == 75_592 * h.NS
    assert f.suspends() == (1, 0)
    f.check_at_rest()


def test_an_erase_makes_way():
    """Array 0.1 .. 300.1, a read at 100: it ends at 119.296, the erase at 119.296 + 2.1 + 200.1."""
    f = flash()
    erase, read = f.erase(), f.read(at=100 * US)
    f.assert_ready_at(read, 100 * US + GAP + READ)
    f.assert_ready_at(erase, 100 * US + GAP + READ + ON + h.COMMAND + h.ERASE - 100 * US)
    assert f.suspends() == (0, 1)
    f.check_at_rest()


@pytest.mark.parametrize("what", ["none", "erase", "program", "program_erase"])
@pytest.mark.parametrize("op", ["program", "erase"])
def test_what_may_be_suspended(what, op):
    """A read at 20 waits for the end of the array (54.196, 300.1) unless the operation is named."""
    f = flash(flash__suspend=what)
    work = f.program() if op == "program" else f.erase()
    read = f.read(at=20 * US)
    if op in what:
        f.assert_ready_at(read, 20 * US + GAP + READ)
    else:
        end = LOADED + h.PROGRAM if op == "program" else h.COMMAND + h.ERASE
        f.assert_ready_at(work, end)
        f.assert_ready_at(read, end + READ)


@pytest.mark.parametrize("late", [0, 1])
def test_not_shortly_before_the_end(late):
    """With 10 us or less to go a program is not suspended: a read that comes one picosecond before
    that time suspends it, one that comes at it waits."""
    f = flash(flash__suspend_program_left="10 us")
    end = LOADED + h.PROGRAM
    at = end - 10 * US - 1 + late
    program, read = f.program(), f.read(at=at)
    if late:
        f.assert_ready_at(program, end)
        f.assert_ready_at(read, end + READ)
    else:
        f.assert_ready_at(read, at + GAP + READ)
        f.assert_ready_at(program, at + GAP + READ + ON + 10 * US + 1)


def test_it_may_come_too_late_at_the_channel():
    """The read comes at 40, when there is enough left, but the channel is busy with the other die's
    data (38-42.196); by then less than 14 us are left (54.196 - 42.196 = 12): no suspension."""
    f = flash(flash__dies_per_channel=2, flash__suspend_program_left="13 us")
    program = f.program(0)
    f.program(1, at=38 * US)
    read = f.read(0, at=40 * US)
    f.assert_ready_at(program, LOADED + h.PROGRAM)
    f.assert_ready_at(read, LOADED + h.PROGRAM + READ)
    assert f.suspends() == (0, 0)


def test_it_may_still_be_worth_it_at_the_channel():
    """The same with 11.9 us: suspended at 42.196, with 12 us left."""
    f = flash(flash__dies_per_channel=2, flash__suspend_program_left="11900 ns")
    program = f.program(0)
    f.program(1, at=38 * US)
    read = f.read(0, at=40 * US)
    start = 42_196 * h.NS
    f.assert_ready_at(read, start + GAP + READ)
    f.assert_ready_at(program, start + GAP + READ + ON + 12 * US)


def test_a_read_during_the_suspend_latency():
    """A second read of the die, while the first one waits for the array to be free, comes behind
    it; the operation goes on once, behind both. First: 39.296 as above; second 14.196 later."""
    f = flash()
    program, first, second = f.program(), f.read(at=20 * US), f.read(at=21 * US)
    ends = f.ends(program, first, second)
    left = LOADED + h.PROGRAM - 20 * US
    assert ends[1:] == ns(39.296, 53.492)
    assert ends[0] == ends[2] + ON + left
    assert f.suspends() == (1, 0)


def test_reads_that_keep_coming_pass():
    """A read every 12 us, each of 14.196: the program waits for all ten of them."""
    f = flash()
    program = f.program()
    reads = [f.read(at=20 * US + i * 12 * US) for i in range(10)]
    ends = f.ends(program, *reads)
    assert ends[1:] == [20 * US + GAP + (i + 1) * READ for i in range(10)]
    assert ends[0] == ends[-1] + ON + LOADED + h.PROGRAM - 20 * US
    assert f.suspends() == (1, 0)


def test_only_so_many_reads_pass():
    """With ``suspend_reads`` 2 the program goes on behind the second read (53.492 + 2.1), and with
    one suspension only the third waits for its end, 34.196 later."""
    f = flash(flash__suspend_reads=2, flash__max_suspends=1)
    program = f.program()
    reads = [f.read(at=20 * US) for _ in range(3)]
    ends = f.ends(program, *reads)
    assert ends[1:3] == ns(39.296, 53.492)
    assert ends[0] == ends[2] + ON + LOADED + h.PROGRAM - 20 * US
    assert ends[3] == ends[0] + READ
    f.check_at_rest()


def test_it_is_suspended_again():
    """Two suspensions are allowed, of one read each. The first ends at 39.296. Resumed until
    39.396, the program is suspended again at once, before it has begun to work: 34.196 are left as
    before. The third read waits for its end."""
    f = flash(flash__suspend_reads=1, flash__max_suspends=2)
    program = f.program()
    reads = [f.read(at=20 * US) for _ in range(3)]
    ends = f.ends(program, *reads)
    again = ends[1] + h.COMMAND
    assert ends[1] == 20 * US + GAP + READ
    assert ends[2] == again + GAP + READ
    assert ends[0] == ends[2] + ON + LOADED + h.PROGRAM - 20 * US
    assert ends[3] == ends[0] + READ
    assert f.suspends() == (2, 0)


def test_work_between_two_suspensions_counts():
    """Suspended at 20 and 60: between 39.296 + 2.1 and 60 it has worked for 18.604."""
    f = flash()
    program, first, second = f.program(), f.read(at=20 * US), f.read(at=60 * US)
    ends = f.ends(program, first, second)
    worked = 60 * US - (ends[1] + ON)
    assert worked == 18_604 * h.NS
    assert ends[2] == 60 * US + GAP + READ
    assert ends[0] == ends[2] + ON + LOADED + h.PROGRAM - 20 * US - worked


def test_nothing_else_passes():
    """A program and an erase that wait stay behind the one that is suspended: its end, then the
    program (54.196 us), then the erase."""
    f = flash()
    program, read = f.program(), f.read(at=20 * US)
    second, erase = f.program(at=21 * US), f.erase(at=22 * US)
    ends = f.ends(program, read, second, erase)
    assert ends[0] == 75_592 * h.NS
    assert ends[2] == ends[0] + LOADED + h.PROGRAM
    assert ends[3] == ends[2] + h.COMMAND + h.ERASE


@pytest.mark.parametrize("priority, suspends", [("background", 0), ("urgent", 1)])
def test_collection_suspends_only_when_it_is_urgent(priority, suspends):
    """A read for collection waits for the program, or comes in as the host's does."""
    f = flash(ftl__gc_priority=priority)
    program, read = f.program(), f.read(at=20 * US, queue=nand.Q_GC_READ)
    f.ends(program, read)
    assert f.suspends() == (suspends, 0)
    if suspends:
        assert f.end(read) == 20 * US + GAP + READ
    else:
        assert f.end(read) == LOADED + h.PROGRAM + READ


def test_collection_does_not_prolong_a_suspension():
    """Its read came before the program goes on, and waits until that is done nevertheless."""
    f = flash()
    program, read = f.program(), f.read(at=20 * US)
    collected = f.read(at=25 * US, queue=nand.Q_GC_READ)
    ends = f.ends(program, read, collected)
    assert ends[:2] == ns(75.592, 39.296)
    assert ends[2] == ends[0] + READ


def test_a_mapping_read_suspends_too():
    f = flash()
    program, read = f.program(), f.read(at=20 * US, queue=nand.Q_MAP_READ)
    f.assert_ready_at(read, 20 * US + GAP + READ)
    assert f.ends(program) == ns(75.592)


def test_a_page_in_the_cache_register_keeps_reads_out():
    """With cache program the second page is in the register (8.392) when the read comes at 20: it
    waits until that page has gone into the array at 54.196, and suspends that program: 73.492, and
    2.1 + 50 later the program."""
    f = flash(flash__cache_program="true")
    first, second, read = f.program(), f.program(), f.read(at=20 * US)
    assert f.ends(first, second, read) == ns(54.196, 125.592, 73.492)
    assert f.suspends() == (1, 0)


def test_cache_read_while_suspended():
    """Two reads at 20 with a cache register: arrays 25.2-35.2 and 35.3-45.3 (its command goes
    before the first's data, which leave 35.3-39.396), data of the second 45.3-49.396."""
    f = flash(flash__cache_read="true")
    program, first, second = f.program(), f.read(at=20 * US), f.read(at=20 * US)
    ends = f.ends(program, first, second)
    assert ends[1:] == ns(39.396, 49.396)
    assert ends[0] == ends[2] + ON + LOADED + h.PROGRAM - 20 * US


def test_a_suspend_command_may_interrupt_data():
    """Die 1's data are on the channel 38-42.196 when a read for die 0 comes at 40: suspend and read
    commands go out 40-40.2, its array starts at 45.2; die 1's data end 0.2 later."""
    f = flash(flash__dies_per_channel=2, flash__interleave_commands="true")
    program = f.program(0)
    other = f.program(1, at=38 * US)
    read = f.read(0, at=40 * US)
    ends = f.ends(program, other, read)
    assert ends[2] == 40 * US + GAP + READ
    assert ends[1] == 38 * US + LOADED + 2 * h.COMMAND + h.PROGRAM
    assert ends[0] == ends[2] + ON + LOADED + h.PROGRAM - 40 * US


def test_books_of_a_suspended_program():
    """The die has worked for tR and tPROG, not longer, and the timeline's intervals of it follow
    each other: 4.196-20, the read's 25.2-35.2, 41.396-75.592."""
    f = flash()
    f.ends(f.program(), f.read(at=20 * US))
    a = f.arrays
    assert int(a.use[:, 0].sum()) == h.READ + h.PROGRAM
    mine = a.line[: int(a.reg["lines"][0])]
    mine = mine[mine["leaf"] == 0]
    spans = sorted(zip(mine["start"].tolist(), mine["end"].tolist(), strict=True))
    assert spans == [tuple(ns(*x)) for x in ((4.196, 20), (25.2, 35.2), (41.396, 75.592))]
