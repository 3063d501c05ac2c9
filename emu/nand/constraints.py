"""Timing constraints of a configuration, as rows that can be printed and tested one by one.

Owns the set of constraints and the minimum time of each. Does not own their enforcement
(channel.py, die_scheduler.py, array.py) or the constants (timing.py, onfi.py).
Source: ONFI command sequences. The format of the rows follows Ramulator 2's tables of timing
constraints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ondie.emu.clock import rate_scale, transfer_ps
from ondie.emu.config.config import Config
from ondie.emu.nand import timing

DATA_OUT = "DATA OUT"
NEXT = ("READ", "PROGRAM", "ERASE")
"""Operations that cannot start before the preceding operation has left the array of their die."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """Timing constraint: minimum time ``ps`` from flash operation ``after`` to the start of any
    later operation in ``before``.

    ``scope`` "channel": the time counts from the first cycle of ``after``, for every die of the
    channel. Other scopes (plane, die, chip, drive): the time counts from the last cycle of
    ``after``, for operations in that plane, die, chip or drive. ``wait`` names the configuration
    keys and command sequences whose sum is ``ps``. Operations cover one plane and one page unless
    their name states otherwise.
    """

    scope: str
    after: str
    before: tuple[str, ...]
    wait: str
    ps: int

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        """Key that identifies the constraint: (``scope``, ``after``, ``before``)."""
        return self.scope, self.after, self.before


def timing_rows(cfg: Config) -> list[Constraint]:
    """Return all timing constraints of a configuration. The constraints of the channel are
    first."""
    return [*_channel(cfg), *_array(cfg)]


def _channel(cfg: Config) -> Iterator[Constraint]:
    """Yield the constraints for the time that each phase holds the channel."""
    flash = cfg.flash
    cycles = timing.command_cycles(cfg)
    data = page_ps(cfg)
    out = int(cycles[timing.OUT_FIRST, 1])
    planes = flash.planes_per_die if flash.multi_plane else 1

    def row(name: str, wait: str, ps: int) -> Constraint:
        return Constraint("channel", name, ("any",), wait, int(ps))

    yield row("READ", "READ cycles", cycles[timing.READ, 1])
    yield row("PROGRAM", "PROGRAM cycles + page", cycles[timing.PROGRAM, 1] + data)
    yield row("ERASE", "ERASE cycles", cycles[timing.ERASE, 1])
    yield row(DATA_OUT, "page + OUT_FIRST" if out else "page", data + out)
    if planes > 1:
        of = f"of {planes} planes"
        more = int(cycles[timing.OUT_NEXT, 1])
        yield row(f"READ {of}", "READ cycles", cycles[timing.READ, planes])
        yield row(
            f"PROGRAM {of}",
            f"PROGRAM cycles + {planes} pages",
            cycles[timing.PROGRAM, planes] + page_ps(cfg, planes),
        )
        yield row(f"ERASE {of}", "ERASE cycles", cycles[timing.ERASE, planes])
        if more:
            words = "page + OUT_FIRST + OUT_NEXT"
            yield row(f"{DATA_OUT} after READ {of}", words, data + out + more)
    if cfg.ftl.gc_copyback:
        for op in ("COPYBACK", "COPYBACK_IN"):
            yield row(op, f"{op} cycles", cycles[timing.CYCLE_NAMES.index(op), 1])
    if flash.status == "read":
        yield row("STATUS", "STATUS cycles", cycles[timing.STATUS, 1])
    if flash.suspend != "none":
        suspend = cycles[timing.SUSPEND, 1] + cycles[timing.READ, 1]
        yield row("SUSPEND, READ", "SUSPEND cycles + READ cycles", suspend)
        yield row("RESUME", "RESUME cycles", cycles[timing.RESUME, 1])
    if cfg.pe.kind != "none":
        yield row("VPP", "VPP cycles + page", cycles[timing.VPP, 1] + data)
        for operation in (timing.BPR, timing.ODC, timing.BPP):
            name = timing.OP_NAMES[operation]
            yield row(name, f"{name} cycles", cycles[operation, 1])


def _array(cfg: Config) -> Iterator[Constraint]:
    """Yield the constraints for the time that arrays and registers are occupied."""
    flash = cfg.flash
    unit = "chip" if flash.chip_busy == "per_chip" and flash.dies_per_chip > 1 else "die"
    alone = flash.plane_reads == "alone" and flash.planes_per_die > 1
    own = "plane" if alone else unit
    for page, read, program in _pages(cfg):
        yield Constraint(own, f"READ{page}", (DATA_OUT,), f"t_read{read[0]}", read[1])
        words, ps = program
        yield Constraint(unit, f"PROGRAM{page}", _behind(cfg, "program"), f"t_program{words}", ps)
    if flash.programming == "two_pass":
        ps = flash.t_program_second_ps
        name = "PROGRAM second pass"
        yield Constraint(unit, name, _behind(cfg, "program"), "t_program_second", ps)
    yield Constraint(unit, "ERASE", _behind(cfg, "erase"), "t_erase", flash.t_erase_ps)
    if flash.status == "read":
        yield Constraint(unit, "STATUS", NEXT, "nothing", 0)
    if flash.cache_program:
        yield Constraint(unit, "PROGRAM", ("PROGRAM data",), "nothing", 0)
    if flash.cache_read:
        yield Constraint(own, "READ", ("READ",), "t_read", flash.t_read_ps)
    else:
        yield Constraint(own, DATA_OUT, ("READ",), "nothing", 0)
    yield Constraint(unit, DATA_OUT, ("PROGRAM", "ERASE"), "nothing", 0)
    if alone:
        yield Constraint("die", "READ", ("READ in another plane",), "nothing", 0)
    if cfg.ftl.gc_copyback:
        yield Constraint(unit, "COPYBACK", ("COPYBACK_IN",), "t_read", flash.t_read_ps)
        if flash.status == "pin":
            yield Constraint(unit, "COPYBACK_IN", NEXT, "t_program", flash.t_program_ps)
    for op in ("program", "erase"):
        if op in flash.suspend:
            wait = getattr(flash, f"t_suspend_{op}_ps")
            name = f"SUSPEND of {op.upper()}"
            yield Constraint(unit, name, ("READ",), f"t_suspend_{op}", wait)
    if flash.suspend != "none":
        yield Constraint(unit, "RESUME", ("the array",), "t_resume", flash.t_resume_ps)
    if flash.power_planes:
        name = f"READ of {flash.power_planes} planes at once"
        yield Constraint("drive", name, ("READ of another plane",), "t_read", flash.t_read_ps)
    if cfg.pe.kind != "none":
        yield Constraint(unit, "BPR", ("ODC", "BPP"), "t_read", flash.t_read_ps)
        yield Constraint(unit, "ODC", ("BPP",), "cycles of the processing elements", 0)
        yield Constraint(unit, "BPP", ("BPR", *NEXT), "t_program", flash.t_program_ps)


def _behind(cfg: Config, op: str) -> tuple[str, ...]:
    """Return the operations that must wait until a program or an erase (``op``) has left the
    array.
    """
    if cfg.flash.status == "read":
        return ("STATUS",)
    passed = {"PROGRAM"} if op == "program" and cfg.flash.cache_program else set()
    if op in cfg.flash.suspend:
        passed |= {"READ"}
    return tuple(name for name in NEXT if name not in passed)


def _pages(cfg: Config) -> Iterator[tuple[str, tuple[str, int], tuple[str, int]]]:
    """Yield (name suffix, (terms as text, ps) of a read, (terms as text, ps) of a program) for each
    page type."""
    flash = cfg.flash
    read, program = flash.t_read_ps, flash.t_program_ps
    yield "", ("", read), ("", program)
    times = timing.page_times(cfg)
    for kind in ("middle", "upper"):
        more = (getattr(flash, f"t_read_{kind}_ps"), getattr(flash, f"t_program_{kind}_ps"))
        # No separate rule for a type that this cell lacks or that takes no longer.
        if any(more) and ((times[0] == more[0]) & (times[1] == more[1])).any():
            yield (
                f" ({kind} page)",
                (f" + t_read_{kind}", read + more[0]),
                (f" + t_program_{kind}", program + more[1]),
            )


def page_ps(cfg: Config, pages: int = 1) -> int:
    """Return the channel time of the data of ``pages`` pages, in ps."""
    plain = getattr(transfer_ps, "py_func", transfer_ps)  # one call; compilation would take longer
    scale, shift = rate_scale(cfg.flash.bus_bytes_per_s)
    return int(plain(pages * cfg.flash.page_bytes, scale, shift))
