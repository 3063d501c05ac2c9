"""Is every row of the table of timing rules obeyed, to the picosecond?

A row says that ``before`` may begin on the channel so long after ``after``. Its scene puts
``before`` there too early and says when it is done if it begins at the very time that the row
allows: it is not done one picosecond earlier, and done on the tick. A row without a scene fails the
first test, and so does a scene that no configuration asks for. What the rows say themselves is held
against numbers written by hand in the last tests.
"""

import pytest

from ondie.emu.nand import timing
from ondie.emu.nand.constraints import page_ps, timing_rows
from ondie.emu.nvme import command as queues
from tests.timing import harness as h
from tests.timing.flash import Flash
from tests.timing.harness import US

TLC = {
    "flash__cell": "TLC",
    "flash__page_types": "turns",
    "flash__pages_per_block": 12,
    "flash__t_read_middle": "1 us",
    "flash__t_read_upper": "2500 ns",
    "flash__t_program_middle": "7 us",
    "flash__t_program_upper": "20 us",
}
CONFIGS = {
    "plain": {},
    "pages": TLC,
    "cache": {
        "flash__cache_read": "true",
        "flash__cache_program": "true",
        "flash__t_program": "1 us",
    },
    "alone": {"flash__plane_reads": "alone"},
    "chips": {"flash__chip_busy": "per_chip", "flash__dies_per_chip": 2},
    "copyback": {"ftl__gc_copyback": "true"},
    "suspend": {
        "flash__suspend": "program_erase",
        "flash__t_suspend_program": "5 us",
        "flash__t_suspend_erase": "6 us",
        "flash__t_resume": "2 us",
    },
    "status": {"flash__status": "read"},
    "power": {"flash__power_planes": 3},
    "two passes": {
        "flash__cell": "TLC",
        "flash__pages_per_block": 12,
        "flash__programming": "two_pass",
        "flash__t_program_second": "80 us",
    },
    "NV-DDR3": {"flash__interface": "NV-DDR3", "flash__page": "16 KiB"},
    "elements": {},
}
DIES = {"flash__dies_per_channel": 4}
ELEMENTS = ("VPP", "BPR", "ODC", "BPP")
PAGES = {"": -1, " (middle page)": 1, " (upper page)": 2, " second pass": 0}


def config(name):
    """Configuration of a name; that of processing elements is the one of the other harness."""
    if name == "elements":
        return h.preset(h.TIMES)
    return Flash(**DIES | CONFIGS[name]).cfg


def cases():
    """(configuration, row, one of its ``before``)."""
    for name in CONFIGS:
        for row in timing_rows(config(name)):
            if name == "elements" and not row.after.startswith(ELEMENTS):
                continue  # the rest is tested without them
            for before in row.before:
                yield pytest.param(name, row, before, id=f"{name}-{row.after}-{before}")


class Stage:
    """Two dies of one channel, or three, and what they would take alone."""

    def __init__(self, name):
        self.f = Flash(**DIES | CONFIGS[name])
        cfg = self.f.cfg
        self.cycles = timing.command_cycles(cfg)
        self.out = int(self.cycles[timing.OUT_FIRST, 1])
        self.page = page_ps(cfg)
        self.flash = cfg.flash
        self.status = int(self.cycles[timing.STATUS, 1]) if cfg.flash.status == "read" else 0
        self.size = cfg.flash.page_bytes
        self.chip = 1 if cfg.flash.chip_busy == "per_chip" else 0
        """Die that shares the scope with die 0."""

    def issue(self, op, die=0, at=0, **more):
        return self.f.issue(op, die, at=at, size=self.size, **more)

    def sent(self, op):
        """Time on the channel before the array works, data included."""
        return int(self.cycles[op, 1]) + (self.page if op == timing.PROGRAM else 0)

    def total(self, op):
        """From its first cycle to its end."""
        array = {timing.READ: self.flash.t_read_ps, timing.PROGRAM: self.flash.t_program_ps}
        if op == timing.READ:
            return self.sent(op) + array[op] + self.page + self.out
        return self.sent(op) + array.get(op, self.flash.t_erase_ps) + self.status


OPS = {"READ": timing.READ, "PROGRAM": timing.PROGRAM, "ERASE": timing.ERASE}


# --- scenes: (stage, row, before) -> (operation, when it ends)


def hold(start, *issues):
    """A phase that begins at ``start(stage)`` holds the channel: die 2's erase, there one
    picosecond later, begins ``row.ps`` after it."""

    def scene(s, row, before):
        for op, more in issues:
            s.issue(op, **more)
        t = start(s)
        return s.issue(timing.ERASE, 2, at=t + 1), t + row.ps + s.total(timing.ERASE)

    return scene


def beginning(s):
    return 0


def first_data(s):
    """When the data of a read by die 0 are ready."""
    return s.sent(timing.READ) + s.flash.t_read_ps


def pair_data(s):
    """The same of a read of both planes."""
    return int(s.cycles[timing.READ, 2]) + s.flash.t_read_ps


def copied(s):
    return int(s.cycles[timing.COPYBACK, 1]) + s.flash.t_read_ps


def programmed(s):
    return s.sent(timing.PROGRAM) + s.flash.t_program_ps


def late(s):
    """When a read comes to suspend something."""
    return 20 * US


def read_while_suspended(s):
    """When that read's data have left."""
    wait = int(s.cycles[timing.SUSPEND, 1]) + s.flash.t_suspend_program_ps
    return late(s) + wait + s.total(timing.READ)


def data_out(s, row, before):
    """The page's data leave ``row.ps`` after the command."""
    page = PAGES[row.after.removeprefix("READ")]
    end = s.sent(timing.READ) + row.ps + s.page + s.out
    return s.issue(timing.READ, page=page), end


def behind_data(s, row, before):
    """What comes meanwhile begins when the data have left."""
    s.issue(timing.READ)
    op = OPS[before]
    return s.issue(op, s.chip, at=1), s.total(timing.READ) + row.ps + s.total(op)


def behind_read(s, row, before):
    """The next read's command goes out when the array is done, before the first's data."""
    s.issue(timing.READ)
    end = s.sent(timing.READ) + row.ps + s.total(timing.READ)
    return s.issue(timing.READ, at=1), end


def behind_program(s, row, before):
    """What comes meanwhile begins when the array is done."""
    kind = row.after.removeprefix("PROGRAM")
    if kind == " second pass":
        s.issue(timing.PROGRAM, page=0, second=1)
    else:
        s.issue(timing.PROGRAM, page=PAGES[kind])
    end = s.sent(timing.PROGRAM) + row.ps
    if before == "STATUS":
        return 0, end + s.status
    op = OPS[before]
    return s.issue(op, s.chip, at=1), end + s.total(op)


def behind_erase(s, row, before):
    s.issue(timing.ERASE)
    end = s.sent(timing.ERASE) + row.ps
    if before == "STATUS":
        return 0, end + s.status
    op = OPS[before]
    return s.issue(op, s.chip, at=1), end + s.total(op)


def behind_status(s, row, before):
    s.issue(timing.PROGRAM)
    op = OPS[before]
    return s.issue(op, at=1), s.total(timing.PROGRAM) + row.ps + s.total(op)


def data_behind_program(s, row, before):
    """tPROG is shorter than the data: the second page comes in right behind the first."""
    s.issue(timing.PROGRAM)
    end = s.sent(timing.PROGRAM) + row.ps + s.total(timing.PROGRAM)
    return s.issue(timing.PROGRAM), end


def other_plane(s, row, before):
    """Its command follows at once; its data, those of the first plane."""
    s.issue(timing.READ)
    end = s.sent(timing.READ) + row.ps + s.total(timing.READ)
    data_follow = s.total(timing.READ) + s.page
    return s.issue(timing.READ, plane=1), max(end, data_follow)


def copy_in(s, row, before):
    end = s.sent(timing.COPYBACK) + row.ps
    end += int(s.cycles[timing.COPYBACK_IN, 1]) + s.flash.t_program_ps
    return s.issue(timing.COPYBACK), end


def behind_copy(s, row, before):
    s.issue(timing.COPYBACK)
    start = copied(s) + int(s.cycles[timing.COPYBACK_IN, 1]) + row.ps
    op = OPS[before]
    return s.issue(op, at=1), start + s.total(op)


def suspended(op):
    def scene(s, row, before):
        s.issue(op)
        end = late(s) + int(s.cycles[timing.SUSPEND, 1]) + row.ps + s.total(timing.READ)
        return s.issue(timing.READ, at=late(s)), end

    return scene


def resumed(s, row, before):
    """The program that was suspended works again so long after the command."""
    program = s.issue(timing.PROGRAM)
    s.issue(timing.READ, at=late(s))
    left = programmed(s) - late(s)
    return program, read_while_suspended(s) + int(s.cycles[timing.RESUME, 1]) + row.ps + left


def one_plane_more(s, row, before):
    """Dies 0, 1 and 2 read a little of a page each; die 3's command goes out when die 0's array is
    done."""
    for die in range(3):
        s.f.read(die, size=512)
    end = s.sent(timing.READ) + row.ps + s.total(timing.READ)
    return s.issue(timing.READ, 3), end


def both(op):
    return op, {"planes": 0b11}


SCENES = {
    ("channel", "READ", "any"): hold(beginning, (timing.READ, {})),
    ("channel", "PROGRAM", "any"): hold(beginning, (timing.PROGRAM, {})),
    ("channel", "ERASE", "any"): hold(beginning, (timing.ERASE, {})),
    ("channel", "DATA OUT", "any"): hold(first_data, (timing.READ, {})),
    ("channel", "READ of 2 planes", "any"): hold(beginning, both(timing.READ)),
    ("channel", "PROGRAM of 2 planes", "any"): hold(beginning, both(timing.PROGRAM)),
    ("channel", "ERASE of 2 planes", "any"): hold(beginning, both(timing.ERASE)),
    ("channel", "DATA OUT after READ of 2 planes", "any"): hold(
        pair_data, (timing.READ, {"plane": 0, "page": 3}), (timing.READ, {"plane": 1, "page": 3})
    ),
    ("channel", "COPYBACK", "any"): hold(beginning, (timing.COPYBACK, {})),
    ("channel", "COPYBACK_IN", "any"): hold(copied, (timing.COPYBACK, {})),
    ("channel", "STATUS", "any"): hold(programmed, (timing.PROGRAM, {})),
    ("channel", "SUSPEND, READ", "any"): hold(
        late, (timing.PROGRAM, {}), (timing.READ, {"at": 20 * US})
    ),
    ("channel", "RESUME", "any"): hold(
        read_while_suspended, (timing.PROGRAM, {}), (timing.READ, {"at": 20 * US})
    ),
    ("plane", "READ", "DATA OUT"): data_out,
    ("die", "READ", "DATA OUT"): data_out,
    ("chip", "READ", "DATA OUT"): data_out,
    ("die", "READ (middle page)", "DATA OUT"): data_out,
    ("die", "READ (upper page)", "DATA OUT"): data_out,
    ("die", "READ", "READ"): behind_read,
    ("die", "READ", "READ in another plane"): other_plane,
    ("plane", "DATA OUT", "READ"): behind_data,
    ("die", "PROGRAM", "PROGRAM data"): data_behind_program,
    ("die", "COPYBACK", "COPYBACK_IN"): copy_in,
    ("die", "SUSPEND of PROGRAM", "READ"): suspended(timing.PROGRAM),
    ("die", "SUSPEND of ERASE", "READ"): suspended(timing.ERASE),
    ("die", "RESUME", "the array"): resumed,
    ("drive", "READ of 3 planes at once", "READ of another plane"): one_plane_more,
    **{("die", f"PROGRAM{kind}", "STATUS"): behind_program for kind in PAGES},
    ("die", "ERASE", "STATUS"): behind_erase,
}
for _unit in ("die", "chip"):
    for _op in OPS:
        SCENES |= {
            (_unit, "DATA OUT", _op): behind_data,
            (_unit, "ERASE", _op): behind_erase,
            **{(_unit, f"PROGRAM{kind}", _op): behind_program for kind in PAGES},
        }
for _op in OPS:
    SCENES["die", "STATUS", _op] = behind_status
    SCENES["die", "COPYBACK_IN", _op] = behind_copy


# --- the same with processing elements, whose operations are rows of a plan

GAP = 7 * US
"""Cycles of the processing elements."""


def elements(first, then, takes):
    """``then(bench)`` is issued beside ``first(bench)``, and done ``takes(bench, row)`` after the
    registers have been prepared."""
    return first, then, takes


def load(bench):
    return bench.die(timing.VPP)


def sense(bench):
    return bench.die(timing.BPR, pages=2)


def compute(bench):
    return bench.die(timing.ODC, pages=0, array_ps=GAP)


def store(bench):
    return bench.die(timing.BPP, pages=2)


def on_the_other_die(bench):
    """A BPR of die 1, there one picosecond later."""
    bench.run_to(bench.now)
    return bench.die(timing.BPR, 1, pages=2)


def write(bench):
    return bench.isp(queues.WRITE, 0)


TWO = 2 * h.COMMAND
"""Cycles for both planes of a stripe."""
PE_SCENES = {
    # One plane's cycles in the rows, two planes' in a stripe: one more t_command.
    ("channel", "VPP", "any"): ((), load, on_the_other_die, TWO + h.READ),
    ("channel", "BPR", "any"): ((), sense, on_the_other_die, h.COMMAND + TWO + h.READ),
    ("channel", "ODC", "any"): ((load, sense), compute, on_the_other_die, TWO + h.READ),
    ("channel", "BPP", "any"): ((load, sense), store, on_the_other_die, h.COMMAND + TWO + h.READ),
    ("die", "BPR", "ODC"): ((load,), sense, compute, TWO + h.COMMAND + GAP),
    ("die", "BPR", "BPP"): ((load,), sense, store, TWO + TWO + h.PROGRAM),
    ("die", "ODC", "BPP"): ((load, sense), compute, store, h.COMMAND + GAP + TWO + h.PROGRAM),
    ("die", "BPP", "BPR"): ((load, sense, compute), store, sense, TWO + TWO + h.READ),
    ("die", "BPP", "READ"): (
        (load, sense, compute), store, lambda bench: bench.read(1),
        TWO + h.COMMAND + h.READ + h.BUS + 2 * h.DRAM + h.LINK + h.LATENCY,
    ),
    ("die", "BPP", "PROGRAM"): (
        (load, sense, compute), store, write, TWO + h.COMMAND + h.BUS + h.PROGRAM,
    ),
    ("die", "BPP", "ERASE"): (
        (load, sense, compute), store, write,
        TWO + TWO + h.ERASE + h.COMMAND + h.BUS + h.PROGRAM,
    ),
}  # fmt: skip


# --- the tests


def test_every_row_has_its_scene_and_every_scene_its_row():
    """A rule that nobody tests is no rule."""
    asked, elements = set(), set()
    for name in CONFIGS:
        for row in timing_rows(config(name)):
            of_elements = row.after.startswith(ELEMENTS)
            mine = elements if of_elements else asked
            if name != "elements" or of_elements:
                mine |= {(row.scope, row.after, before) for before in row.before}
    assert asked - set(SCENES) == set()
    assert elements == set(PE_SCENES)
    unasked = {key for key in set(SCENES) - asked if " page)" not in key[1]}
    assert {key for key in unasked if key[0] != "chip" and "second" not in key[1]} == set()


@pytest.mark.parametrize("name, row, before", list(cases()))
def test_row(name, row, before):
    if name == "elements":
        prepare, first, then, more = PE_SCENES[row.scope, row.after, before]
        bench = h.Bench(
            super_pages=8, flash__dies_per_channel=1 + (then is on_the_other_die),
            pe__dispatch="double_buffered",
        )  # fmt: skip
        if before == "ERASE":
            bench.arrays.block.dirty[: 16 // 2] = 1  # the conventional blocks
        for step in prepare:
            step(bench)
        bench.run_to()
        start = bench.now
        first(bench)
        job = then(bench)
        bench.assert_ready_at(job, start + row.ps + more)
        return
    stage = Stage(name)
    job, end = SCENES[row.scope, row.after, before](stage, row, before)
    stage.f.assert_ready_at(job, end)


def rows(name):
    """{(scope, after): ps} of a configuration."""
    return {(row.scope, row.after): row.ps for row in timing_rows(config(name))}


def test_numbers_by_hand():
    """The harness's: commands 0.1 per plane, a page 4.096, tR 10, tPROG 50, tBERS 300 us."""
    assert rows("plain") == {
        ("channel", "READ"): 100_000,
        ("channel", "PROGRAM"): 4_196_000,
        ("channel", "ERASE"): 100_000,
        ("channel", "DATA OUT"): 4_096_000,
        ("channel", "READ of 2 planes"): 200_000,
        ("channel", "PROGRAM of 2 planes"): 8_392_000,
        ("channel", "ERASE of 2 planes"): 200_000,
        ("die", "READ"): 10_000_000,
        ("die", "PROGRAM"): 50_000_000,
        ("die", "ERASE"): 300_000_000,
        ("die", "DATA OUT"): 0,
    }


def test_numbers_of_page_types_by_hand():
    got = rows("pages")
    assert got["die", "READ (middle page)"] == 11_000_000
    assert got["die", "READ (upper page)"] == 12_500_000
    assert got["die", "PROGRAM (middle page)"] == 57_000_000
    assert got["die", "PROGRAM (upper page)"] == 70_000_000


@pytest.mark.parametrize(
    "leaf, more, moved",
    [
        ("flash__t_read", "10001 ns", ("die", "READ")),
        ("flash__t_program", "50001 ns", ("die", "PROGRAM")),
        ("flash__t_erase", "300001 ns", ("die", "ERASE")),
    ],
)
def test_a_leaf_that_moves_moves_its_rows(leaf, more, moved):
    before = rows("plain")
    after = {(r.scope, r.after): r.ps for r in timing_rows(Flash(**{leaf: more}).cfg)}
    assert {key for key in before if before[key] != after[key]} == {moved}
    assert after[moved] - before[moved] == 1000
