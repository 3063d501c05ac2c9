"""Copy-back: a page goes from one block of a plane to another without crossing the channel.

Read command 0.1, tR 10, program command 0.1, tPROG 50 = 60.2 us.
"""

from ondie.emu.nand import die as dies
from tests.timing import harness as h
from tests.timing.flash import Flash
from tests.timing.harness import US, ns

COPY = 2 * h.COMMAND + h.READ + h.PROGRAM


def test_alone():
    f = Flash()
    copy = f.copyback()
    f.assert_ready_at(copy, COPY)
    assert int(f.arrays.bus["size_in"][0]) == int(f.arrays.bus["size_out"][0]) == 0
    f.check_at_rest()


def test_both_planes():
    """Both commands per plane: 0.2 + 10 + 0.2 + 50."""
    f = Flash()
    f.assert_ready_at(f.copyback(planes=0b11), COPY + 2 * h.COMMAND)


def test_the_channel_is_free_meanwhile():
    """The other die's data come in 0.1-4.296 and 10.1-14.296 would be the next: the program
    command goes before them, 10.1-10.2."""
    f = Flash(flash__dies_per_channel=3)
    copy = f.copyback(0)
    first = f.program(1)
    second = f.program(2, at=h.COMMAND + h.READ)
    ends = f.ends(copy, first, second)
    assert ends == [COPY, h.COMMAND + h.COMMAND + h.BUS + h.PROGRAM, *ns(10.2 + 4.196 + 50)]


def test_the_second_command_waits_for_data():
    """The other die's data come in 8-12.196: the program command goes out then, before its own
    next data and before the third die's."""
    f = Flash(flash__dies_per_channel=3)
    copy = f.copyback(0)
    f.program(1, at=8 * US)
    f.program(2, at=9 * US)
    f.assert_ready_at(copy, 12_196 * h.NS + h.COMMAND + h.PROGRAM)


def test_an_interrupting_command_does_not_interrupt_it():
    """Where commands may interrupt data, the second command of a copy-back is no data: die 1's
    read, there since 10.15, goes out at 10.2."""
    f = Flash(flash__dies_per_channel=2, flash__interleave_commands="true")
    copy, read = f.copyback(0), f.read(1, at=10_150 * h.NS)
    assert f.ends(copy, read) == [COPY, *ns(10.2 + 14.196)]


def test_the_die_belongs_to_it():
    """A read that comes while it reads waits for its program's end."""
    f = Flash()
    copy, read = f.copyback(), f.read(at=1 * US)
    f.assert_ready_at(read, COPY + h.COMMAND + h.READ + h.BUS)
    assert f.end(copy) == COPY


def test_its_program_may_be_suspended_and_its_read_not():
    """A read at 5 waits until the program has begun at 10.2, and suspends it then: suspend and read
    commands, 10, 4.096; going on takes a command."""
    f = Flash(flash__suspend="program")
    copy, read = f.copyback(), f.read(at=5 * US)
    started = 2 * h.COMMAND + h.READ
    f.assert_ready_at(read, started + 2 * h.COMMAND + h.READ + h.BUS)
    f.assert_ready_at(copy, started + 3 * h.COMMAND + h.READ + h.BUS + h.PROGRAM)
    assert f.suspends() == (1, 0)


def test_a_page_may_enter_the_cache_register_behind_it():
    """Cache program: the next page's data come in while the copy is programmed, not while it is
    read."""
    f = Flash(flash__cache_program="true")
    copy, program = f.copyback(), f.program(at=1 * US)
    assert f.ends(copy, program) == [COPY, COPY + h.PROGRAM]


def test_page_types():
    """Upper pages take 2.5 us more to read and 20 us more to program."""
    f = Flash(
        flash__cell="TLC",
        flash__page_types="turns",
        flash__pages_per_block=12,
        flash__t_read_upper="2500 ns",
        flash__t_program_upper="20 us",
    )
    f.assert_ready_at(f.copyback(page=2), COPY + 22_500 * h.NS)


def test_it_is_collections_work():
    """In collection's place: behind a write of the host that came later."""
    f = Flash()
    program, copy, second = f.program(), f.copyback(at=1 * US), f.program(at=2 * US)
    assert int(f.arrays.job["queue"][1]) == dies.Q_GC_WRITE
    programmed = h.COMMAND + h.BUS + h.PROGRAM
    assert f.ends(program, second, copy) == [programmed, 2 * programmed, 2 * programmed + COPY]
