"""Pages that wait on their own go as one command when multi-plane addressing allows it: one die,
one operation, one page offset, different planes.

Two planes: commands 0.2, then tR 10 and data 4.096 each, or data 8.192 and tPROG 50.
"""

import pytest

from ondie.emu.nand import die as dies
from tests.timing import harness as h
from tests.timing.flash import Flash
from tests.timing.harness import US, ns

ONE = h.COMMAND + h.READ + h.BUS
TWO = 2 * h.COMMAND + h.READ + h.BUS  # when the first of two pages has left


def test_reads():
    """0.2 + 10 + 4.096, and the second page 4.096 later."""
    f = Flash()
    first, second = f.read(plane=0, page=3), f.read(plane=1, page=3)
    f.assert_ready_at(first, TWO)
    f.assert_ready_at(second, TWO + h.BUS)
    f.check_at_rest()


def test_programs():
    """0.2 + 8.192 + 50, both done together."""
    f = Flash()
    first, second = f.program(plane=0, page=3), f.program(plane=1, page=3)
    t = 2 * (h.COMMAND + h.BUS) + h.PROGRAM
    f.assert_ready_at(first, t)
    assert f.end(second) == t


def test_erases():
    """0.2 + 300."""
    f = Flash()
    first, second = f.erase(plane=0, page=0), f.erase(plane=1, page=0)
    f.assert_ready_at(first, 2 * h.COMMAND + h.ERASE)
    assert f.end(second) == 2 * h.COMMAND + h.ERASE


@pytest.mark.parametrize(
    "second",
    [
        {"plane": 1, "page": 4},
        {"plane": 0, "page": 3},
        {"plane": 1, "page": -1},
        {"plane": 1, "page": 3, "die": 1},
    ],
    ids=["another offset", "the same plane", "no offset", "another die"],
)
def test_what_does_not_go_together(second):
    """Two commands of one plane each: the first page leaves at 14.196."""
    f = Flash(flash__dies_per_channel=2)
    first = f.read(plane=0, page=3)
    f.read(**second)
    f.assert_ready_at(first, ONE)


def test_without_multi_plane():
    f = Flash(flash__multi_plane="false")
    assert f.ends(f.read(plane=0, page=3), f.read(plane=1, page=3)) == [ONE, 2 * ONE]


def test_only_what_waits_already():
    """The second comes when the first's command has begun: it goes on its own."""
    f = Flash()
    first, second = f.read(plane=0, page=3), f.read(plane=1, page=3, at=1)
    assert f.ends(first, second) == [ONE, 2 * ONE]


def test_from_the_middle_of_the_queue():
    """Of the waiting pages (plane, offset) = (0, 3), (0, 4), (1, 3), (1, 4) the first and third go
    together, then the others."""
    f = Flash()
    jobs = [f.read(plane=p, page=o) for p, o in ((0, 3), (0, 4), (1, 3), (1, 4))]
    both = TWO + h.BUS
    assert f.ends(*jobs) == [TWO, both + TWO, both, 2 * both]


def test_the_queue_stays_in_order():
    """(0, 3), (1, 3), (0, 4): the pair, then the page that was last, whose queue is not lost when
    its neighbour is taken out of the middle; one that comes later is behind it."""
    f = Flash()
    jobs = [f.program(plane=p, page=o) for p, o in ((0, 3), (1, 3), (0, 4))]
    jobs.append(f.program(plane=0, page=5, at=1 * US))
    pair = 2 * (h.COMMAND + h.BUS) + h.PROGRAM
    single = h.COMMAND + h.BUS + h.PROGRAM
    assert f.ends(*jobs) == [pair, pair, pair + single, pair + 2 * single]


def test_across_queues_of_a_kind():
    """The host's read takes collection's along; its data, too, go out as the host's."""
    f = Flash()
    first = f.read(plane=0, page=3)
    second = f.read(plane=1, page=3, queue=dies.Q_GC_READ)
    assert f.ends(first, second) == [TWO, TWO + h.BUS]


def test_a_mate_goes_out_with_its_command():
    """Dies 0 and 1 of one channel. Die 0 reads a pair, one page of it for collection; die 1's
    page is ready before the first of the pair has left. The pair was ready earlier: all of it goes
    first."""
    f = Flash(flash__dies_per_channel=2)
    first = f.read(0, plane=0, page=3)
    second = f.read(0, plane=1, page=3, queue=dies.Q_GC_READ)
    other = f.read(1, plane=0, page=3)
    assert f.ends(first, second, other) == [TWO, TWO + h.BUS, TWO + 2 * h.BUS]


def test_a_program_does_not_pass_an_erase():
    """One line for programs and erases: (0, 3), an erase, (1, 3). The second program may want the
    erased block: three commands, one after the other."""
    f = Flash()
    first = f.program(plane=0, page=3, queue=dies.Q_WRITE)
    erase = f.erase(plane=1, page=0, queue=dies.Q_WRITE)
    second = f.program(plane=1, page=3, queue=dies.Q_WRITE)
    single = h.COMMAND + h.BUS + h.PROGRAM
    erased = single + h.COMMAND + h.ERASE
    assert f.ends(first, erase, second) == [single, erased, erased + single]


def test_an_erase_passes_programs():
    """An erase of plane 0, a program, an erase of plane 1 in one line: both erases, then the
    program."""
    f = Flash()
    first = f.erase(plane=0, page=0, queue=dies.Q_WRITE)
    program = f.program(plane=0, page=3, queue=dies.Q_WRITE)
    second = f.erase(plane=1, page=0, queue=dies.Q_WRITE)
    erased = 2 * h.COMMAND + h.ERASE
    done = erased + h.COMMAND + h.BUS + h.PROGRAM
    assert f.ends(first, second, program) == [erased, erased, done]


def test_four_planes_and_pairs():
    """Two-plane operations of super-pages of halves: planes 0-1 and 2-3 at one offset go as one of
    four: 0.4 + 10, then each pair's data."""
    f = Flash(flash__planes_per_die=4)
    first, second = f.read(planes=0b0011, page=3), f.read(planes=0b1100, page=3)
    ready = 4 * h.COMMAND + h.READ
    assert f.ends(first, second) == [ready + 2 * h.BUS, ready + 4 * h.BUS]


def test_a_suspended_group_is_resumed_whole():
    """A pair of programs, arrays 8.392-58.392, makes way at 20 for a read (suspension and all
    14.296): they are done at 20 + 14.296 + 0.1 + 38.392."""
    f = Flash(flash__suspend="program")
    first, second = f.program(plane=0, page=3), f.program(plane=1, page=3)
    read = f.read(plane=0, page=4, at=20 * US)
    assert f.ends(first, second, read) == ns(72.788, 72.788, 34.296)
    f.check_at_rest()
