"""A power budget: at most so many planes of the drive work at once.

An operation has its power from its first cycle on the channel until its array is done; whoever is
refused first is next. A read of one plane: command 0.1, tR 10, data 4.096.
"""

import numpy as np
import pytest

from ondie.emu.nand.timing import COPYBACK, ERASE, PROGRAM, READ
from tests.timing import harness as h
from tests.timing.flash import Flash
from tests.timing.harness import US, ns

BOTH = 0b11
LOADED = h.COMMAND + h.BUS


def flash(planes=2, **changes):
    return Flash(flash__power_planes=planes, **{"flash__dies_per_channel": 4} | changes)


def test_the_third_plane_waits():
    """Two dies read at 0.1-10.1 and 0.2-10.2. The third's command goes out at 10.1, before any
    data, and its array is done at 20.2. Data: 10.2-14.296, 14.296-18.392, 20.2-24.296."""
    f = flash()
    jobs = [f.read(die) for die in range(3)]
    f.assert_ready_at(jobs[2], 10_100 * h.NS + h.COMMAND + h.READ + h.BUS)
    assert f.ends(*jobs) == ns(14.296, 18.392, 24.296)
    f.check_at_rest()


def test_with_one_plane_more_it_does_not():
    f = flash(3)
    assert f.ends(*[f.read(die) for die in range(3)]) == ns(14.196, 18.292, 22.388)


def test_the_budget_is_of_the_drive():
    """Four channels, one die each: the third and fourth start when the first two arrays are done,
    at 10.1."""
    f = flash(flash__channels=4, flash__dies_per_channel=1)
    ends = sorted(f.ends(*[f.read(die) for die in range(4)]))
    assert ends == ns(14.196, 14.196, 24.296, 24.296)


def test_who_is_refused_first_is_next():
    """Die 0 reads one plane; die 1 wants two and has to wait until 10.1; die 2 wants one, which
    would be there, but is behind: it starts when die 1's array is done, at 20.3."""
    f = flash()
    narrow, wide, behind = f.read(0), f.read(1, planes=BOTH), f.read(2)
    ends = f.ends(narrow, wide, behind)
    assert ends[0] == 10_300 * h.NS + h.BUS  # behind die 1's commands 10.1-10.3
    assert ends[1] == 20_400 * h.NS + 2 * h.BUS  # behind die 2's command 20.3-20.4
    assert ends[2] == 30_400 * h.NS + h.BUS


def test_wide_operations_do_not_starve():
    """Four dies with reads of one plane all the time, and one of both planes among them."""
    f = flash()
    narrow = [f.read(die) for _ in range(20) for die in (0, 1, 2)]
    wide = f.read(3, planes=BOTH, at=15 * US)
    ends = f.ends(*narrow, wide)
    assert sorted(ends).index(ends[-1]) < 12


def test_a_group_takes_what_there_is():
    """Die 0 reads a plane; for die 1's pair of one offset there is power for one: it goes alone,
    0.1-0.2, and the other one's command goes out at 10.1, when die 0's array is done; its array
    has to wait for the first page to leave (18.392)."""
    f = flash()
    other = f.read(0, page=0)
    first, second = f.read(1, plane=0, page=3), f.read(1, plane=1, page=3)
    assert f.ends(other, first, second) == ns(14.196, 18.292, 18.292 + 14.196)


def test_a_program_has_its_power_from_its_first_cycle():
    """Die 0's data come in 0-4.196, die 1's 4.196-8.392: both planes are taken, and die 2's read,
    there since 5, starts when die 0's program is done at 54.196."""
    f = flash()
    f.program(0)
    f.program(1)
    read = f.read(2, at=5 * US)
    f.assert_ready_at(read, LOADED + h.PROGRAM + h.COMMAND + h.READ + h.BUS)


def test_a_page_in_the_cache_register_shares():
    """Die 0's second page is loaded while its first is programmed, with the power of it: die 1's
    read has the other plane's (8.392-8.492)."""
    f = flash(flash__cache_program="true")
    first, second = f.program(0), f.program(0)
    read = f.read(1, at=5 * US)
    ends = f.ends(first, second, read)
    assert ends == [LOADED + h.PROGRAM, LOADED + 2 * h.PROGRAM, *ns(8.392 + 14.196)]
    f.check_at_rest()


def test_a_wider_page_in_the_cache_register_needs_more():
    """Die 0 programs one plane and would load two next; die 1 works on the other plane until
    300.1: until then the pair stays out."""
    f = flash(flash__cache_program="true")
    f.program(0)
    f.erase(1)
    wide = f.program(0, planes=BOTH, at=1 * US)
    erased = h.COMMAND + h.ERASE  # its command went before the data
    f.assert_ready_at(wide, erased + 2 * LOADED + h.PROGRAM)
    f.check_at_rest()


def test_a_copyback_keeps_its_power():
    """Read 0.2-10.2, command until 10.4, program until 60.4: die 1's read starts then."""
    f = flash()
    copy = f.copyback(0, planes=BOTH)
    read = f.read(1, at=1 * US)
    f.assert_ready_at(copy, 4 * h.COMMAND + h.READ + h.PROGRAM)
    f.assert_ready_at(read, 4 * h.COMMAND + h.READ + h.PROGRAM + h.COMMAND + h.READ + h.BUS)
    f.check_at_rest()


def test_what_is_suspended_gives_its_power_back():
    """Two planes program from 8.392; a read of that die at 20 takes one of them, die 1's erase the
    other, which was refused at 10 already and is next; the program goes on when it is done."""
    f = flash(flash__suspend="program")
    program = f.program(0, planes=BOTH)
    erase = f.erase(1, at=10 * US)
    read = f.read(0, at=20 * US)
    ends = f.ends(program, erase, read)
    started = 2 * LOADED
    assert ends[2] == ns(20 + 0.2 + 10 + 0.1 + 4.096 - 0.1)[0]
    erased = ns(20.3)[0] + h.ERASE
    assert ends[1] == erased
    assert ends[0] == erased + h.COMMAND + h.PROGRAM - (20 * US - started)
    f.check_at_rest()


def test_planes_that_read_alone_count_alone():
    """Die 0's planes until 10.1 and 10.2; die 1's commands go out at those times, before data:
    arrays until 20.2 and 20.3. Data 10.3-14.396-18.492, 20.2-24.296-28.392."""
    f = flash(flash__plane_reads="alone")
    jobs = [f.read(die, plane) for die in (0, 1) for plane in (0, 1)]
    assert f.ends(*jobs) == ns(14.396, 18.492, 24.296, 28.392)
    f.check_at_rest()


@pytest.mark.parametrize("leaf", ["cache", "alone", "suspend", "plain", "chips"])
def test_never_more_than_the_budget(leaf, rng, counts):
    """Random operations of one and two planes on 2 x 4 dies, with a budget of 3: at no time do more
    planes work, and everything is done in the end."""
    changes = {
        "cache": {"flash__cache_read": "true", "flash__cache_program": "true"},
        "alone": {"flash__plane_reads": "alone"},
        "suspend": {"flash__suspend": "program_erase", "flash__max_suspends": 3},
        "plain": {"flash__interleave_commands": "true"},
        "chips": {"flash__chip_busy": "per_chip", "flash__dies_per_chip": 2},
    }[leaf]
    f = flash(3, flash__channels=2, **changes)
    n = counts(150, 2000)
    for at in np.sort(rng.integers(0, n * 12, n)) * US:
        op = int(rng.choice([READ, READ, READ, PROGRAM, PROGRAM, COPYBACK, ERASE]))
        planes = int(rng.choice([1, 2, 3]))
        f.issue(op, int(rng.integers(8)), at=int(at), planes=planes, page=int(rng.integers(2)))
    most = 0
    for t in range(0, 14 * n, 3):
        f.run_to(t * US)
        most = max(most, planes_at_work(f, t * US))
        assert most <= 3
    f.run_to()
    assert (f.arrays.job["end"] >= 0).all()
    f.check_at_rest()
    assert most == 3


def planes_at_work(f, now):
    """Planes whose arrays work at a time, by the dies' registers."""
    txn, planes = f.arrays.txn, 0
    for t in f.arrays.die["arr"]:
        if t >= 0 and txn["time"][t] > now:
            while t >= 0:
                planes += int(txn["n"][t])
                t = txn["mate"][t]
    return planes
