"""Chips of several dies: each die takes commands of its own, or the chip takes one at a time.

A read: command 0.1, tR 10, data 4.096. A program: 4.196, then 50.
"""

import pytest

from tests.timing import harness as h
from tests.timing.flash import Flash
from tests.timing.harness import US, ns

READ = h.COMMAND + h.READ + h.BUS
PROGRAM = h.COMMAND + h.BUS + h.PROGRAM


def flash(**changes):
    changes = {"flash__dies_per_channel": 2, "flash__dies_per_chip": 2} | changes
    return Flash(**{"flash__chip_busy": "per_chip"} | changes)


def test_one_read_at_a_time():
    """A read keeps its chip until its data have left."""
    f = flash()
    first, second = f.read(0), f.read(1)
    f.assert_ready_at(first, READ)
    f.assert_ready_at(second, 2 * READ)
    f.check_at_rest()


def test_dies_of_their_own():
    """The same with per_die: the second array works beside the first."""
    f = flash(flash__chip_busy="per_die")
    assert f.ends(f.read(0), f.read(1)) == [READ, READ + h.BUS]


def test_chips_work_side_by_side():
    """Four dies on one channel, two chips: dies 0 and 1, dies 2 and 3. Commands for dies 0 and 2
    0-0.2, data of die 0 10.1-14.196, command for die 1 14.196-14.296, data of die 2 14.296-18.392,
    command for die 3 -18.492; data of die 1 24.296-28.392, of die 3 28.492-32.588."""
    f = flash(flash__dies_per_channel=4)
    assert f.ends(*[f.read(die) for die in range(4)]) == ns(14.196, 28.392, 18.392, 32.588)


def test_channels_come_first():
    """Dies are numbered channel first: with two channels die 0 and die 2 share a chip."""
    f = flash(flash__channels=2)
    jobs = [f.read(die) for die in range(4)]
    assert f.ends(*jobs) == [READ, READ, 2 * READ, 2 * READ]


def test_a_chip_has_one_line_of_work():
    """Reads before programs before erases, over all its dies: the read of die 1 goes before the
    program of die 0 that came earlier."""
    f = flash()
    first = f.program(0)
    second = f.program(0, at=1 * US)
    read = f.read(1, at=2 * US)
    assert f.ends(first, read, second) == [PROGRAM, PROGRAM + READ, 2 * PROGRAM + READ]


@pytest.mark.parametrize("die, together", [(0, True), (1, False)])
def test_several_planes_only_inside_a_die(die, together):
    """Planes 0 and 1 at one page offset: in one command when they are of one die."""
    f = flash()
    first, second = f.read(0, plane=0, page=3), f.read(die, plane=1, page=3)
    ends = f.ends(first, second)
    if together:
        assert ends == [READ + h.COMMAND, READ + h.COMMAND + h.BUS]
    else:
        assert ends == [READ, 2 * READ]


def test_the_dies_of_the_books():
    """Each die has worked for its own array time."""
    f = flash(flash__channels=2)
    f.ends(f.read(0), f.program(2), f.erase(3))
    assert f.arrays.use[:, :4].sum(axis=0).tolist() == [h.READ, 0, h.PROGRAM, h.ERASE]


def test_a_read_of_another_die_suspends():
    """The chip has one command at a time, suspended or not: die 1's read makes die 0's program
    stand back."""
    f = flash(flash__suspend="program")
    program, read = f.program(0), f.read(1, at=20 * US)
    more = 3 * h.COMMAND + h.READ + h.BUS
    assert f.ends(program, read) == [PROGRAM + more, 20 * US + more - h.COMMAND]
