"""Word lines: several pages loaded one after the other, then programmed at once, or in two passes.

A page: commands 0.1 and data 4.096. The word line of a TLC block has three.
"""

import pytest

from ondie.emu.nand.timing import page_times, word_line_pages
from tests.timing import harness as h
from tests.timing.flash import Flash
from tests.timing.harness import US, ns

PAGE = h.COMMAND + h.BUS
READ = h.COMMAND + h.READ + h.BUS


def flash(programming="one_shot", **changes):
    changes = {"flash__cell": "TLC", "flash__pages_per_block": 12} | changes
    if programming == "two_pass":
        changes["flash__t_program_second"] = "80 us"
    return Flash(flash__programming=programming, **changes)


@pytest.mark.parametrize("cell, bits", [("MLC", 2), ("TLC", 3), ("QLC", 4)])
def test_one_shot(cell, bits):
    """All data, one tPROG: 3 x 4.196 + 50 = 62.588 for three bits; all pages are done then."""
    f = flash(flash__cell=cell)
    assert word_line_pages(f.cfg) == bits
    pages = f.word_line(bits)
    f.assert_ready_at(pages[0], bits * PAGE + h.PROGRAM)
    assert f.ends(*pages) == [bits * PAGE + h.PROGRAM] * bits
    f.check_at_rest()


def test_page_by_page_it_takes_three_programs():
    f = flash("page")
    assert word_line_pages(f.cfg) == 1
    assert f.ends(*[f.program(page=i) for i in range(3)])[-1] == 3 * (PAGE + h.PROGRAM)


def test_two_pass():
    """First passes of word lines 0 and 1, then the second of word line 0, whose data cross the
    channel again: 50, 50, 80 us, and 3 x 4.196 before each."""
    f = flash("two_pass")
    load = 3 * PAGE
    first, second = f.word_line(3), f.word_line(3, page=3)
    fine = f.word_line(3, page=0, second=1)
    ends = f.ends(first[0], second[0], fine[0])
    assert ends == [load + h.PROGRAM, 2 * (load + h.PROGRAM), 3 * load + 2 * h.PROGRAM + 80 * US]


def test_the_second_pass_has_its_own_time():
    """30 us more than the first, by the table of page times."""
    f = flash("two_pass")
    assert (page_times(f.cfg)[2] == 30 * US).all()
    f.assert_ready_at(f.word_line(3, second=1)[0], 3 * PAGE + 80 * US)


def test_dies_load_in_turn():
    """Two dies, pages in turn: die 0's data end at 5 x 4.196, die 1's at 6 x 4.196."""
    f = flash(flash__dies_per_channel=2)
    first, second = f.word_line(3, 0), f.word_line(3, 1)
    ends = f.ends(first[0], second[0])
    assert ends == [5 * PAGE + h.PROGRAM, 6 * PAGE + h.PROGRAM]


def test_a_command_goes_between_two_pages():
    """Die 1's read, there since 1, goes out behind die 0's first page: 4.196-4.296."""
    f = flash(flash__dies_per_channel=2)
    line, read = f.word_line(3, 0), f.read(1, at=1 * US)
    ends = f.ends(line[0], read)
    # Its data are ready at 14.296; die 0's last page is on the channel 8.492-12.688.
    assert ends == [3 * PAGE + h.COMMAND + h.PROGRAM, *ns(14.296 + 4.096)]


def test_no_read_between_two_pages():
    """The registers hold pages: the die's own read waits for the whole program."""
    f = flash()
    line, read = f.word_line(3), f.read(at=1 * US)
    f.assert_ready_at(read, 3 * PAGE + h.PROGRAM + READ)
    assert f.end(line[2]) == 3 * PAGE + h.PROGRAM


def test_a_word_line_may_be_suspended():
    """Programming since 12.588, suspended at 20 for a read: all pages are done 14.396 later."""
    f = flash(flash__suspend="program")
    line, read = f.word_line(3), f.read(at=20 * US)
    more = 3 * h.COMMAND + h.READ + h.BUS
    assert f.ends(*line, read) == [3 * PAGE + h.PROGRAM + more] * 3 + [20 * US + more - h.COMMAND]


def test_not_while_the_next_one_is_loaded():
    """With cache program the next word line is loaded from 12.588 on: a read that comes at 20 finds
    the register taken, and waits until that word line's program has begun (62.588), and suspends
    it."""
    f = flash(flash__suspend="program", flash__cache_program="true")
    first, second = f.word_line(3), f.word_line(3, page=3)
    read = f.read(at=20 * US)
    f.assert_ready_at(first[0], 3 * PAGE + h.PROGRAM)
    f.assert_ready_at(read, 3 * PAGE + h.PROGRAM + h.COMMAND + READ)
    assert f.suspends() == (1, 0)
    f.run_to()
    assert f.end(second[0]) == f.end(read) + h.COMMAND + h.PROGRAM


def test_cache_program():
    """The next word line's data come in while the first is programmed: 12.588 + 50, and 50 more."""
    f = flash(flash__cache_program="true")
    first, second = f.word_line(3), f.word_line(3, page=3)
    assert f.ends(first[0], second[0]) == [3 * PAGE + h.PROGRAM, 3 * PAGE + 2 * h.PROGRAM]
    f.check_at_rest()


def test_cache_program_of_a_word_line_that_loads_longer():
    """tPROG 10 us: the second word line is loaded 12.588-25.176 and starts then, not at 22.588."""
    f = flash(flash__cache_program="true", flash__t_program="10 us")
    first, second = f.word_line(3), f.word_line(3, page=3)
    assert f.ends(first[0], second[0]) == [3 * PAGE + 10 * US, 6 * PAGE + 10 * US]


def test_planes_load_page_by_page():
    """Two planes' word lines of the same pages go as one: for each page 0.2 + 8.192."""
    f = flash()
    first, second = f.word_line(3, plane=0), f.word_line(3, plane=1)
    t = 3 * 2 * PAGE + h.PROGRAM
    assert f.ends(*first, *second) == [t] * 6
    f.check_at_rest()


def test_planes_whole():
    """The same handed over whole: pages of both planes."""
    f = flash()
    assert f.ends(*f.word_line(3, planes=0b11)) == [3 * 2 * PAGE + h.PROGRAM] * 3


def test_two_passes_do_not_go_together():
    """Plane 0's first pass and plane 1's second over the same pages: one after the other."""
    f = flash("two_pass")
    first, second = f.word_line(3, plane=0), f.word_line(3, plane=1, second=1)
    load = 3 * PAGE
    assert f.ends(first[0], second[0]) == [load + h.PROGRAM, 2 * load + h.PROGRAM + 80 * US]


def test_power_counts_planes_not_pages():
    """A budget of two planes: word lines of two dies program side by side, a third waits."""
    f = flash(flash__dies_per_channel=3, flash__power_planes=2)
    lines = [f.word_line(3, die) for die in range(3)]
    ends = f.ends(*[line[0] for line in lines])
    assert ends[:2] == [5 * PAGE + h.PROGRAM, 6 * PAGE + h.PROGRAM]
    assert ends[2] == ends[0] + 3 * PAGE + h.PROGRAM
    f.check_at_rest()
