"""Power cuts: the effects of a power failure after a given event of a run.

Owns the operations in progress at the cut and their results, and the report of a recovery. Does not
own the contents of torn pages (nand/torn_pages.py), the totals
(analysis/power_loss/conservation.py) or the recovery (analysis/power_loss/recover.py).
Source: this project's rules of recovery; OptimStore (HPCA 2023): gradients are volatile.

All drives of a system lose power at the same time and regain it immediately. The contents of the
page registers and of the drives' DRAM, the mapping table and the write pointers are lost. The host
keeps the step's gradient. Not modeled: the boot of the firmware, the time until the host detects
the loss, raw bit errors in the data that recovery reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ondie.emu.analysis.power_loss.conservation import settle_books, stop_clocks, undone
from ondie.emu.engine.core import counters as stats
from ondie.emu.engine.core import plan_rows, stages
from ondie.emu.engine.core.totals import Totals
from ondie.emu.engine.run.system import System
from ondie.emu.nand import timing, torn_pages
from ondie.emu.nvme import power_cut
from ondie.emu.paths.base import Path
from ondie.emu.paths.on_die import recovery_plan
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.paths.on_die.registers import Reservoir
from ondie.emu.paths.statement import HostPass, Work
from ondie.emu.states import interruption
from ondie.emu.units import InputError


@dataclass(frozen=True)
class Cut:
    """Operations interrupted by a power cut, and the lost work."""

    at_ps: int
    """Simulated time of the cut in ps."""
    torn_programs: int
    torn_erases: int
    again: int
    """Number of further power cuts during the recovery from this cut."""
    training: tuple[tuple[int, int], ...]
    """(phase, end in ps) of each pass of the accelerator that is incomplete at the cut. The phase
    is an index into the path's phases. The cut does not stop the accelerator, so each pass
    completes at its end time."""
    lost: Mapping[str, int]
    """Amount of work that started but did not complete (pages, bytes or operations), by name of the
    counter or of the resource."""


@dataclass(frozen=True)
class Recovery:
    """Cost of a recovery, and the position from which the step resumes."""

    cut: Cut
    seconds: float
    """Simulated time from the cut to the end of the recovery."""
    scanned: int
    """Number of super-pages whose out-of-band data the recovery read."""
    checked: int
    """Number of super-pages whose data the recovery read in addition to their out-of-band data."""
    refused: int
    """Number of physical super-pages that are neither blank nor usable, because a cut interrupted
    their program or the erase of their block."""
    padded: int
    """Number of super-pages filled with padding by the recovery, so that a later scan does not
    treat them as blank."""
    kept: int
    """Number of super-pages that already hold the results of the interrupted step. These
    super-pages are not updated again."""
    resent_bytes: int
    """Number of gradient bytes that the host sends a second time."""
    cursors: tuple[np.ndarray, ...] = field(repr=False)
    """For each device, the index of the first super-page on each die that the resumed step updates,
    int64[dies]."""
    undone: bool = False
    """True if the step restarts and its previous results are discarded (pe.atomicity = undo)."""
    made: tuple[frozenset[int], ...] = field(default=(), repr=False)
    """For each device, the numbers of the super-pages that hold the parities and commit records
    that the interrupted step has already written."""


def check_cut(path: Path, after: int | None) -> None:
    """Raise InputError if a power cut after ``after`` events cannot be simulated for this path. If
    ``after`` is None, there is no cut and no check."""
    if after is None:
        return
    if not isinstance(path, OnDie) or path.name != OnDie.name:
        raise InputError(
            f"{path.name}: only the path {OnDie.name!r} recovers from a power cut; use that path"
        )
    if path.payload is None:
        raise InputError(
            f"{path.trace.name}: without payload, the drive's pages hold no bytes to recover; use "
            "a recorded trace"
        )
    if after < 1:
        raise InputError(f"power cut after {after} events: the number of events must be at least 1")


def cut(path: Path, system: System, seed: int, before: Cut | None) -> Cut:
    """Cut the power of a system, and return the interrupted operations and the lost work.

    Pages that are being programmed or erased get random contents, drawn with ``seed``. Incomplete
    work is subtracted from the totals. ``before``: the earlier cut from which the system was
    recovering, or None. The returned cut includes the losses of ``before``.
    """
    assert isinstance(path, OnDie) and isinstance(path.payload, Reservoir)
    rng = np.random.default_rng((seed, system.now))
    programs, erases, pages = _tear(system, path.payload, rng)
    stop_clocks(system)
    units = path.stripes[0].planes * path.geometry.slots
    training, lost = _training(system), settle_books(system, units)
    lost["bpp_pages"] = pages  # counted as if their whole program time had passed
    if before is None:
        return Cut(system.now, programs, erases, 0, training, lost)
    lost = {name: amount + before.lost[name] for name, amount in lost.items()}
    return Cut(
        before.at_ps,
        before.torn_programs + programs,
        before.torn_erases + erases,
        before.again + 1,
        before.training,
        lost,
    )


def rest(path: Path, step: int, found: Recovery, system: System) -> Iterator[np.ndarray]:
    """Yield the plan rows for the remainder of step ``step``, starting at the position that the
    recovery ``found`` reports."""
    assert isinstance(path, OnDie)
    return recovery_plan.plan(path, step, found.cut.training, found.cursors, system, found.made)


def sent(system: System) -> int:
    """Return the number of gradient bytes that the host has sent to the drives so far."""
    return int(system.arrays.count[:, stats.DOWN_BYTES].sum())


def with_redone(work: Work, path: Path, totals: Totals, found: Sequence[Recovery]) -> Work:
    """Return the work of a run including the work that the recoveries ``found`` repeated: stripes
    computed but not programmed, and gradients sent a second time by the host."""
    if not found:
        return work
    assert isinstance(path, OnDie)
    stripes = sum(own.count for own in path.stripes) * path.applied(len(totals.steps))
    done = totals.counters["odc_ops"]
    return replace(
        work,
        adds=work.adds * done // max(stripes, 1),
        multiplies=work.multiplies * done // max(stripes, 1),
        pe_cipher_bits=work.pe_cipher_bits * done // max(stripes, 1),
        register_bits=work.register_bits * done // max(stripes, 1),
        die_bus_bits=work.die_bus_bits * done // max(stripes, 1),
        host_dram=(
            *work.host_dram,
            HostPass("gradient sent again", sum(recovery.resent_bytes for recovery in found)),
        ),
    )


def with_lost(totals: Totals, cuts: Sequence[Cut]) -> Totals:
    """Return the totals of a run including the work lost in ``cuts``, because lost work also
    consumed energy."""
    counters, bytes_by = dict(totals.counters), dict(totals.bytes_by)
    for each in cuts:
        for name, amount in each.lost.items():
            where = counters if name in counters else bytes_by
            where[name] += amount
    return replace(totals, counters=counters, bytes_by=bytes_by)


def _tear(system: System, payload: Reservoir, rng: np.random.Generator) -> tuple[int, int, int]:
    """Set the pages of array operations in progress at the cut to random contents of an incomplete
    operation.

    Returns (number of interrupted programs, number of interrupted erases, number of pages of the
    interrupted programs).
    """
    arrays, geometry = system.arrays, system.geometry
    programs = erases = pages = 0
    for at, tid in power_cut.operations(arrays, system.now):
        txn = arrays.txn[tid]
        op, dev = int(txn.op), int(txn.dev)
        if op == timing.ERASE:
            first, mask = int(txn.ppn), int(txn.planes)
            ppns = range(first, first + geometry.block_pages)
            torn_pages.interrupt_erase(
                payload.stores[dev],
                [ppn for ppn in ppns if mask >> ppn // geometry.slots % geometry.planes & 1],
                rng,
            )
            erases += 1
        elif op in (timing.BPP, timing.PROGRAM):
            if interruption.is_pad(system, tid):
                interruption.interrupt_pad(system, payload.stripes, payload.flash, at, tid, rng)
            else:
                interruption.interrupt_program(system, payload, at, tid, rng)
            programs += 1
            pages += int(txn.n)
    return programs, erases, pages


def _training(system: System) -> tuple[tuple[int, int], ...]:
    """Return (phase, end in ps) for each incomplete plan row of the accelerator."""
    end = int(system.arrays.fifo["free_at"][stages.ACCELERATOR])
    left = []
    for row in undone(system):
        if int(row["resource"]) == plan_rows.ACCELERATOR:
            if int(row["state"]) != plan_rows.STARTED:
                end = max(end, system.now) + int(row["array_ps"])
            left.append((int(row["phase"]), end))
    return tuple(left)
