"""Power cuts: what is lost when the power of a system goes after any event.

Owns what was under way and what becomes of it, the report of a recovery. Does not own the pages'
remains (backend/torn.py), the books (settling.py) or the system that comes up (revival.py).
Source: this project's contract of recovery; OptimStore (HPCA 2023): gradients are volatile.

All drives of a system lose their power at the same instant, and have it back at once. Gone are
registers, the drives' DRAM, map, pointers. The host keeps the step's gradient. Not modelled: the
boot of the firmware, the host's time to notice, raw bit errors in what recovery reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ondie.emu.analysis.power_loss.conservation import settle_books, stop_clocks, undone
from ondie.emu.engine.core import counters as stats
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.events import MADE, MOVED
from ondie.emu.engine.core.totals import Totals
from ondie.emu.engine.run.system import System
from ondie.emu.ftl import page_map as mapping
from ondie.emu.nand import timing
from ondie.emu.nand import torn_pages as torn
from ondie.emu.paths.base import Path
from ondie.emu.paths.on_die import recovery_plan as resume
from ondie.emu.paths.on_die.parity import Made
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.paths.on_die.registers import At, Reservoir
from ondie.emu.paths.statement import Work
from ondie.emu.units import InputError


@dataclass(frozen=True)
class Cut:
    """What was under way when the power went, and was in vain."""

    at_ps: int
    torn_programs: int
    torn_erases: int
    again: int
    """Cuts of the power while a system came up from this one."""
    training: tuple[tuple[int, int], ...]
    """(phase, end in ps) of what the accelerator has yet to do: it goes on."""
    lost: Mapping[str, int]
    """Bytes and pages that had been begun and did not end, by counter and resource."""


@dataclass(frozen=True)
class Recovery:
    """What it took to come up again, and from where the step goes on."""

    cut: Cut
    seconds: float
    scanned: int
    """Super-pages whose out-of-band data were read."""
    checked: int
    """Super-pages whose data were read, too."""
    refused: int
    """Places that hold something, but nothing whole: torn by this cut or an earlier one, or of a
    block that was half erased."""
    padded: int
    kept: int
    """Super-pages that hold the step under way already: they are not updated again."""
    resent_bytes: int
    """Gradients that had been sent, and are sent again."""
    cursors: tuple[np.ndarray, ...] = field(repr=False)
    """First super-page of each die to be updated, counted on the die: int64[dies] by device."""
    undone: bool = False
    """The step begins again: what was done of it is left aside (pe.atomicity = undo)."""
    made: tuple[frozenset[int], ...] = field(default=(), repr=False)
    """By device: parities and commit records that hold the step under way already."""


def check_cut(path: Path, after: int | None) -> None:
    """Raise InputError where a cut of the power after so many events cannot be simulated."""
    if after is None:
        return
    if not isinstance(path, OnDie) or path.name != OnDie.name:
        raise InputError(
            f"{path.name}: a power cut is recovered from by the path {OnDie.name!r} alone"
        )
    if path.payload is None:
        raise InputError(
            f"{path.trace.name}: its pages hold no bytes to recover from; a recorded trace is right"
        )
    if after < 1:
        raise InputError(f"power cut after {after} events: at least 1 is right")


def cut(path: Path, system: System, seed: int, before: Cut | None) -> Cut:
    """The power of a system is gone, by which pages are torn on flash, by seed; ``before``: the cut
    from which it was coming up."""
    assert isinstance(path, OnDie) and isinstance(path.payload, Reservoir)
    rng = np.random.default_rng((seed, system.now))
    programs, erases, pages = _tear(system, path.payload, rng)
    stop_clocks(system)
    training, lost = _training(system), settle_books(system, path.stripes[0].planes)
    lost["bpp_pages"] = pages  # as if all of their time had passed
    if before is None:
        return Cut(system.now, programs, erases, 0, training, lost)
    lost = {name: n + before.lost[name] for name, n in lost.items()}
    return Cut(
        before.at_ps,
        before.torn_programs + programs,
        before.torn_erases + erases,
        before.again + 1,
        before.training,
        lost,
    )


def rest(path: Path, step: int, found: Recovery, system: System) -> Iterator[np.ndarray]:
    """Plan rows of the rest of a step, from where recovery has found it."""
    assert isinstance(path, OnDie)
    return resume.plan(path, step, found.cut.training, found.cursors, system, found.made)


def sent(system: System) -> int:
    """Bytes of gradients that the host has sent so far."""
    return int(system.arrays.count[:, stats.DOWN_BYTES].sum())


def with_redone(work: Work, path: Path, totals: Totals, found: Sequence[Recovery]) -> Work:
    """A run's work and what of it was done twice: stripes that were computed and not programmed,
    gradients that the host has sent again."""
    if not found:
        return work
    assert isinstance(path, OnDie)
    stripes = sum(s.count for s in path.stripes) * path.applied(len(totals.steps))
    done = totals.counters["odc_ops"]
    return replace(
        work,
        adds=work.adds * done // max(stripes, 1),
        multiplies=work.multiplies * done // max(stripes, 1),
        pe_cipher_bits=work.pe_cipher_bits * done // max(stripes, 1),
        register_bits=work.register_bits * done // max(stripes, 1),
        die_bus_bits=work.die_bus_bits * done // max(stripes, 1),
        host_dram_bits=work.host_dram_bits + 8 * sum(r.resent_bytes for r in found),
    )


def with_lost(totals: Totals, cuts: Sequence[Cut]) -> Totals:
    """A run's totals and what it had begun in vain: what its energy was spent on."""
    counters, bytes_by = dict(totals.counters), dict(totals.bytes_by)
    for x in cuts:
        for name, n in x.lost.items():
            where = counters if name in counters else bytes_by
            where[name] += n
    return replace(totals, counters=counters, bytes_by=bytes_by)


def _tear(system: System, payload: Reservoir, rng: np.random.Generator) -> tuple[int, int, int]:
    """What arrays were at when the power went: (programs, erases, pages of the programs)."""
    a, g = system.arrays, system.geometry
    programs = erases = pages = 0
    for at, die in enumerate(a.die):
        for t in (int(die.arr), int(die.paused)):
            if t < 0:
                continue
            x = a.txn[t]
            op, dev = int(x.op), int(x.dev)
            began = int(x.time) - int(a.op[op].array) - int(x.array) - int(die.extra)
            if began > system.now and t != int(die.paused):
                continue  # its command is still on the channel
            if op == timing.ERASE:
                first, mask = int(x.ppn), int(x.planes)
                ppns = range(first, first + g.block_pages)
                torn.erase(payload.stores[dev], [p for p in ppns if mask >> p % g.planes & 1], rng)
                erases += 1
            elif op in (timing.BPP, timing.PROGRAM):
                place = int(x.ppn)
                if int(x.bare) == MADE:
                    place = _next_place(system, at)
                block = at * g.all_blocks + g.blocks + place // g.pages
                there = At(at % g.dies, place, int(a.block["turned"][block]))
                if a.row[int(x.row)].kind == timing.PAD:
                    for slot in range(payload.stripes[dev].planes):
                        page = payload.page(there, slot)
                        payload.stores[dev].spoil(page, bool(rng.integers(2)))
                elif int(x.bare) == MOVED:
                    data, spares = payload.landing(dev, int(x.old))
                    _tear_program(payload, dev, there, Made(spares, data), rng)
                else:
                    _tear_program(payload, dev, there, payload.coming(dev, at, int(x.lpn)), rng)
                programs += 1
                pages += int(x.n)
    return programs, erases, pages


def _next_place(system: System, die: int) -> int:
    """Where a die programs next (backend/reservoir.py): a parity or a record that is in the array
    is given its place when it is done."""
    a, g = system.arrays, system.geometry
    place = int(a.pool["r_next"][die])
    state = a.block["state"].reshape(-1, g.all_blocks)[die, g.blocks :]
    while place % g.pages == 0 and state[place // g.pages] == mapping.BAD:
        place = (place + g.pages) % (g.reservoir_blocks * g.pages)
    return place


def _tear_program(
    payload: Reservoir, dev: int, at: At, made: Made, rng: np.random.Generator
) -> None:
    """A super-page's program was in the array."""
    for i, (spare, data) in enumerate(zip(made.spares, made.planes, strict=True)):
        page = payload.page(at, spare.slot)
        members = None if made.members is None else made.members[i]
        torn.program(payload.stores[dev], page, spare, data, rng, members=members)


def _training(system: System) -> tuple[tuple[int, int], ...]:
    """Rows of the accelerator that are not done, and when they will be."""
    end = int(system.arrays.fifo["free_at"][s.ACCELERATOR])
    left = []
    for row in undone(system):
        if int(row["resource"]) == rows.ACCELERATOR:
            if int(row["state"]) != rows.STARTED:
                end = max(end, system.now) + int(row["array_ps"])
            left.append((int(row["phase"]), end))
    return tuple(left)
