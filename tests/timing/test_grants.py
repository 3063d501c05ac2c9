"""Who gets an idle channel, who is first on a die, and what a status read adds.

A read: command 0.1, tR 10, data 4.096. A program: 4.196, then 50.
"""

import pytest

from ondie.emu.nand import die as dies
from ondie.emu.nand.timing import ERASE, PROGRAM, READ
from tests.timing import harness as h
from tests.timing.flash import Flash
from tests.timing.harness import US, ns

ONE = h.COMMAND + h.READ + h.BUS
PROGRAMMED = h.COMMAND + h.BUS + h.PROGRAM


@pytest.mark.parametrize("grants", ["commands", "data"])
def test_commands_or_data(grants):
    """Die 2's program holds the channel 8-12.196. Die 0's data are ready since 10.1, die 1's read
    wants to send its command since 9: it goes first, or the data do."""
    f = Flash(flash__dies_per_channel=3, flash__grants=grants)
    first = f.read(0)
    f.program(2, at=8 * US)
    second = f.read(1, at=9 * US)
    ends = f.ends(first, second)
    if grants == "commands":
        assert ends == ns(12.196 + 0.1 + 4.096, 12.196 + 14.196)
    else:
        assert ends == ns(12.196 + 4.096, 16.292 + 14.196)


def test_with_data_first_commands_and_data_in_take_turns():
    """Die 0's program, then die 1's read, then die 2's program: in turn, whatever they send."""
    f = Flash(flash__dies_per_channel=3, flash__grants="data")
    jobs = [f.program(0), f.read(1), f.program(2)]
    assert f.ends(*jobs) == ns(54.196, 4.196 + 14.196, 4.296 + 54.196)


def test_data_leave_by_whom_they_are_for():
    """Three dies' data are ready while the fourth's come in (10-14.196): mapping's first, then the
    host's, then collection's."""
    f = Flash(flash__dies_per_channel=4)
    collected = f.read(0, queue=dies.Q_GC_READ)
    host = f.read(1)
    mapping = f.read(2, queue=dies.Q_MAP_READ)
    f.program(3, at=10 * US)
    assert f.ends(mapping, host, collected) == ns(18.292, 22.388, 26.484)


@pytest.mark.parametrize(
    "changes, rank",
    [
        ({}, 1),
        ({"ftl__map_cache": "2 B"}, 0),
        ({"flash__status": "read"}, -1),
        ({"ftl__map_cache": "2 B", "flash__status": "read"}, -1),
    ],
)
def test_the_search_for_data_out_ends_at_the_best_rank_there_is(changes, rank):
    """Ranks: -1 a status, 0 a read of the mapping table, 1 a read of the host, 2 a read of garbage
    collection. A search that ended at 2 would grant garbage collection before the host."""
    assert int(h.Bench(**changes).arrays.cfg.first_out[0]) == rank


PLACES = (dies.Q_MAP_READ, dies.Q_READ, dies.Q_MAP_WRITE, dies.Q_WRITE, dies.Q_GC_READ,
          dies.Q_GC_WRITE, dies.Q_GC_ERASE)  # fmt: skip
URGENT = (dies.Q_MAP_READ, dies.Q_GC_READ, dies.Q_GC_WRITE, dies.Q_GC_ERASE, dies.Q_READ,
          dies.Q_MAP_WRITE, dies.Q_WRITE)  # fmt: skip


@pytest.mark.parametrize("priority, order", [("background", PLACES), ("urgent", URGENT)])
def test_order_on_a_die(priority, order):
    """One operation in each queue while the die is busy: they come out in the order of queues,
    collection's behind the host's or before it."""
    f = Flash(ftl__gc_priority=priority)
    f.erase()
    jobs = {}
    for queue in (*reversed(PLACES),):
        op = ERASE if queue == dies.Q_GC_ERASE else PROGRAM
        op = READ if queue in (dies.Q_MAP_READ, dies.Q_READ, dies.Q_GC_READ) else op
        jobs[queue] = f.issue(op, at=1 * US, queue=queue)
    ends = f.ends(*jobs.values())
    came = sorted(jobs, key=lambda queue: ends[list(jobs).index(queue)])
    assert tuple(came) == order


def test_a_program_ends_with_its_status():
    """The array is done at 54.196; the status takes the channel 0.1."""
    f = Flash(flash__status="read")
    f.assert_ready_at(f.program(), PROGRAMMED + h.COMMAND)
    f.check_at_rest()


def test_an_erase_ends_with_its_status():
    f = Flash(flash__status="read")
    f.assert_ready_at(f.erase(), h.COMMAND + h.ERASE + h.COMMAND)


def test_the_status_waits_for_the_channel():
    """The other die's data are on it 52-56.196: the status goes out behind them, before the third
    die's data that wait as well; the die's next read starts behind its status."""
    f = Flash(flash__status="read", flash__dies_per_channel=3)
    program = f.program(0)
    f.program(1, at=52 * US)
    f.program(2, at=53 * US)
    read = f.read(0, at=54 * US)
    ends = f.ends(program, read)
    assert ends[0] == 56_296 * h.NS
    assert ends[1] == 56_296 * h.NS + h.COMMAND + 10 * US + h.BUS


def test_cache_program_goes_on_without_the_status():
    """The second page is in the register: its array starts at 54.196, whenever the first one's
    status is read."""
    f = Flash(flash__status="read", flash__cache_program="true")
    first, second = f.program(), f.program()
    assert f.ends(first, second) == [PROGRAMMED + h.COMMAND, PROGRAMMED + h.PROGRAM + h.COMMAND]


def test_a_program_whose_status_is_read_may_be_suspended():
    f = Flash(flash__status="read", flash__suspend="program")
    program, read = f.program(), f.read(at=20 * US)
    more = 3 * h.COMMAND + h.READ + h.BUS
    assert f.ends(program, read) == [PROGRAMMED + more + h.COMMAND, 20 * US + more - h.COMMAND]
    f.check_at_rest()


def test_pages_of_three_latencies():
    """By turns lower, middle, upper: tR 10, 11, 12.5; tPROG 50, 57, 70."""
    changes = {
        "flash__cell": "TLC",
        "flash__page_types": "turns",
        "flash__pages_per_block": 12,
        "flash__t_read_middle": "1 us",
        "flash__t_read_upper": "2500 ns",
        "flash__t_program_middle": "7 us",
        "flash__t_program_upper": "20 us",
    }
    for page, read, program in ((0, 0, 0), (4, 1000, 7000), (11, 2500, 20_000)):
        f = Flash(**changes)
        f.assert_ready_at(f.read(page=page), ONE + read * h.NS)
        f = Flash(**changes)
        f.assert_ready_at(f.program(page=page), PROGRAMMED + program * h.NS)
