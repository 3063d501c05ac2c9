"""Planes that read alone: side by side on one die, while everything else needs the whole die.

A read: command 0.1, tR 10, data 4.096. A program: 4.196, then 50.
"""

import pytest

from tests.timing import harness as h
from tests.timing.flash import Flash
from tests.timing.harness import US, ns

READ = h.COMMAND + h.READ + h.BUS
LOADED = h.COMMAND + h.BUS
BOTH = 0b11


def flash(**changes):
    return Flash(flash__plane_reads="alone", **changes)


def test_planes_read_side_by_side():
    """Commands 0-0.1 and 0.1-0.2, arrays until 10.1 and 10.2, data 10.1-14.196-18.292."""
    f = flash()
    first, second = f.read(plane=0), f.read(plane=1)
    f.assert_ready_at(first, READ)
    f.assert_ready_at(second, READ + h.BUS)
    f.check_at_rest()


def test_together_they_do_not():
    f = Flash()
    first, second = f.read(plane=0), f.read(plane=1)
    f.assert_ready_at(first, READ)
    f.assert_ready_at(second, 2 * READ)


def test_one_plane_reads_one_page_at_a_time():
    """Without a cache register the plane is free when its data have left."""
    f = flash()
    assert f.ends(f.read(plane=1), f.read(plane=1)) == [READ, 2 * READ]


def test_each_plane_has_its_cache_register():
    """Two reads in each plane. Arrays until 10.1 and 10.2; the second commands go out 10.1-10.2 and
    10.2-10.3, before the data, which leave 10.3-14.399-18.495; arrays are done at 20.2 and 20.3,
    data 20.2-24.296-28.392."""
    f = flash(flash__cache_read="true")
    jobs = [f.read(plane=0), f.read(plane=0), f.read(plane=1), f.read(plane=1)]
    assert f.ends(*jobs) == ns(14.396, 24.296, 18.492, 28.392)


def test_a_program_waits_for_every_plane():
    """Plane 1's data leave until 14.196: the program of plane 0, there since 1, starts then."""
    f = flash()
    read, program = f.read(plane=1), f.program(plane=0, at=1 * US)
    f.assert_ready_at(read, READ)
    f.assert_ready_at(program, READ + LOADED + h.PROGRAM)


def test_once_it_waits_no_plane_starts_another_read():
    """Plane 1's second read, there since 2, waits for the program that is there since 1."""
    f = flash()
    first, program, second = f.read(plane=1), f.program(at=1 * US), f.read(plane=1, at=2 * US)
    assert f.ends(first, program, second) == ns(14.196, 68.392, 82.588)
    f.check_at_rest()


def test_a_plane_serves_its_own_reads_first():
    """As on a die: reads before programs. A read of the program's own plane goes before it, so it
    does not wait yet, and plane 1 reads on meanwhile: 2.0-2.1 its command."""
    f = flash()
    first, program = f.read(plane=0), f.program(plane=0, at=1 * US)
    own, other = f.read(plane=0, at=1 * US), f.read(plane=1, at=2 * US)
    ends = f.ends(first, program, own, other)
    assert ends[0] == READ
    assert ends[3] == READ + h.COMMAND + h.BUS  # behind the command of plane 0's second read
    assert ends[2] == READ + READ
    assert ends[1] == ends[2] + LOADED + h.PROGRAM


@pytest.mark.parametrize("op", ["program", "erase"])
def test_no_plane_reads_while_the_die_works(op):
    """Reads of both planes at 20 wait for the array (54.196, 300.1); then it is plane 1's turn."""
    f = flash()
    work = f.program() if op == "program" else f.erase()
    first, second = f.read(plane=0, at=20 * US), f.read(plane=1, at=20 * US)
    end = LOADED + h.PROGRAM if op == "program" else h.COMMAND + h.ERASE
    f.assert_ready_at(work, end)
    f.assert_ready_at(second, end + READ)
    f.assert_ready_at(first, end + READ + h.BUS)


def test_a_read_of_several_planes_needs_the_die():
    """Plane 0's read until 14.196, then both planes: 0.2 + 10 + 8.192; a read of plane 1 that comes
    meanwhile waits for the second page to leave."""
    f = flash()
    first, both, last = f.read(), f.read(planes=BOTH, at=1 * US), f.read(plane=1, at=15 * US)
    two = 2 * h.COMMAND + h.READ + 2 * h.BUS
    assert f.ends(first, both, last) == [READ, READ + two, READ + two + READ]
    f.check_at_rest()


def test_a_program_makes_way_for_both_planes():
    """It is plane 1's turn: suspend and read commands 20-20.2, the array is free at 25.1, works
    25.2-35.2. Plane 0's command goes out 20.2-20.3, and is accepted from 25.1 on: 25.2-35.2 too.
    Data 35.2-39.296-43.392; resume 2.1, and the 34.196 left."""
    f = flash(flash__suspend="program", flash__t_suspend_program="5 us", flash__t_resume="2 us")
    program = f.program()
    first, second = f.read(plane=0, at=20 * US), f.read(plane=1, at=20 * US)
    assert f.ends(program, second, first) == ns(79.688, 39.296, 43.392)
    assert f.suspends() == (1, 0)
    f.check_at_rest()


def test_a_program_makes_way_for_another_plane():
    """Only plane 1 reads: the program of plane 0 stands back all the same."""
    f = flash(flash__suspend="program", flash__t_suspend_program="5 us", flash__t_resume="2 us")
    program, read = f.program(plane=0), f.read(plane=1, at=20 * US)
    assert f.ends(program, read) == ns(75.592, 39.296)


def test_several_dies_and_planes():
    """Four planes of two dies: all commands first (0-0.4), then data as they are ready."""
    f = flash(flash__dies_per_channel=2)
    jobs = [f.read(die, plane) for die in (0, 1) for plane in (0, 1)]
    assert f.ends(*jobs) == [READ + i * h.BUS for i in range(4)]
