"""Rounds of an on-die update for any distribution of stripes over dies, starting at any cursor
(index of the next stripe of each die).

Owns the rows of such rounds, and their order. Does not own the placement of stripes
(layout/stripe_map.py), or rounds in the initial placement, whose rows are made together
(rounds.py).
Source: OptimStore (HPCA 2023): one cursor per die; the dispatch rules are those of path.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ondie.emu.compute import pe
from ondie.emu.engine.core import plan_rows
from ondie.emu.nand import timing
from ondie.emu.paths.base import UPDATE, Rows
from ondie.emu.paths.on_die.devices import Devices
from ondie.emu.paths.on_die.protection import (
    COMPUTE,
    FETCH_STEP,
    GRADIENT,
    JOIN_STEPS,
    PROGRAM_STEP,
    SENSE,
)
from ondie.emu.paths.on_die.rounds import STAGED_ROUNDS


def update(
    devices: Devices,
    out: Rows,
    after: int,
    cursors: Sequence[np.ndarray],
    fetched: dict[tuple[int, int], int] | None = None,
    stops: Sequence[np.ndarray] | None = None,
) -> Iterator[np.ndarray]:
    """Yield the plan rows of the update, starting at the dies' cursors, after the row with id
    ``after``.

    Each round has the next stripe of every die that has stripes left. ``cursors``: index of the
    next stripe of each die, int64[dies] per device. If all cursors are 0, the rows are those of a
    whole step, without parities. If ``fetched`` is given, an entry is added to it for each stripe:
    (device, super-page) -> id of the row after which the controller has the stripe. ``stops``:
    index after the last stripe of each die, int64[dies] per device. None selects all stripes.
    """
    if stops is None:
        stops = [homes.held() for homes in devices.homes]
    left = [np.maximum(stop - cursor, 0) for stop, cursor in zip(stops, cursors, strict=True)]
    each = [_Device(devices, dev, cursors[dev]) for dev in range(len(cursors))]
    for j in range(max(int(counts.max()) for counts in left)):
        for device, counts in zip(each, left, strict=True):
            dies = np.flatnonzero(counts > j)
            if len(dies):
                row_of = device.add_round(out, j, dies, after)
                if fetched is not None:
                    fetched |= {(device.device, sp): row for sp, row in row_of.items()}
        if out.full():
            yield out.take()


class _Device:
    """Builder of the plan rows of one device, round by round. Stores the ids of the rows of the
    previous round."""

    def __init__(self, devices: Devices, device: int, cursor: np.ndarray) -> None:
        self.devices, self.device, self.cursor = devices, device, cursor
        geometry = devices.geometry
        self.stripes, self.homes = devices.stripes[device], devices.homes[device]
        order = self.homes.by_die()
        self.order = np.full((geometry.dies, max(map(len, order))), -1)
        for die, its in enumerate(order):
            self.order[die, : len(its)] = its
        steps = [step for step in devices.steps if step not in JOIN_STEPS]
        self.at = {step: i for i, step in enumerate(steps)}
        self.before = np.full((len(steps), geometry.dies), -1)  # each die's rows of the last round
        self.lines: list[np.ndarray] = [
            np.zeros(0, np.int64)
        ] * geometry.channels  # dies, last round
        self.loaded: list[int] = []  # last VPP of each round

    def add_round(self, out: Rows, j: int, dies: np.ndarray, after: int) -> dict[int, int]:
        """Add the plan rows of one round. On each of ``dies``, the round updates the stripe that is
        ``j`` positions after the die's cursor. The rows transfer the gradients to the device's
        DRAM, then perform VPP, BPR, ODC, FETCH if configured, and BPP. Return, by super-page, the
        id of the row after which the controller has the stripe: FETCH if configured, else ODC."""
        geometry, own, devices = self.devices.geometry, self.stripes, self.devices
        gradient, stripe = own.gradient_bytes, own.planes * geometry.flash_page_bytes
        pages = self.order[dies, self.cursor[dies] + j]
        staged = after if j < STAGED_ROUNDS else self.loaded[j - STAGED_ROUNDS]
        stripes = np.array([self.homes.stripe(int(page)) for page in pages])
        base = self._load(out, np.sort(stripes), gradient, staged)
        steps = len(self.at)
        now = np.full((steps, geometry.dies), -1)
        now[:, dies] = out.next + np.arange(steps * len(dies)).reshape(steps, -1)
        vpp, bpr, odc, bpp = (
            now[self.at[step]] for step in (GRADIENT, SENSE, COMPUTE, PROGRAM_STEP)
        )
        last_odc, last = (self.before[self.at[step]] for step in (COMPUTE, PROGRAM_STEP))
        lines = [dies[dies % geometry.channels == channel] for channel in range(geometry.channels)]
        match devices.cfg.pe.dispatch:
            case "lockstep":
                vpp0, vpp1 = np.full(geometry.dies, base), last.copy()
                bpr0, bpr1 = np.full((2, geometry.dies), -1)
                for line, old in zip(lines, self.lines, strict=True):
                    if not len(line):
                        continue
                    vpp0[line[1:]] = vpp[line[:-1]]
                    bpr0[line] = vpp[line[-1]]
                    if len(old):
                        vpp1[line[0]] = last[old[-1]]
                        bpr1[line] = last[old[0]]
            case "free":
                vpp0, vpp1 = np.full(geometry.dies, base), last
                bpr0, bpr1 = vpp, np.full(geometry.dies, -1)
            case _:
                vpp0, vpp1 = np.full(geometry.dies, base), last_odc
                bpr0 = np.where(last < 0, after, last)
                bpr1 = vpp if devices.cfg.pe.rain else np.full(geometry.dies, -1)
        pe_ps, ecc_ps = devices.compute_ps, pe.ecc_ps(devices.cfg, own.planes)
        common = {"device": self.device, "resource": plan_rows.DIE, "phase": UPDATE, "lpn": pages}
        count = len(dies)
        out.add(
            count,
            **common,
            kind=timing.VPP,
            bytes_in=gradient,
            after0=vpp0[dies],
            after1=vpp1[dies],
        )
        out.add(
            count, **common, kind=timing.BPR, bytes_out=stripe, array_ps=ecc_ps, after0=bpr0[dies],
            after1=bpr1[dies],
        )  # fmt: skip
        out.add(
            count, **common, kind=timing.ODC, array_ps=pe_ps, after0=bpr[dies], after1=vpp[dies],
            bytes_out=stripe if devices.round_trip else 0,
        )  # fmt: skip
        has = odc
        if FETCH_STEP in self.at:
            has = now[self.at[FETCH_STEP]]
            out.add(count, **common, kind=timing.FETCH, bytes_out=stripe, after0=odc[dies])
        out.add(
            count, **common, kind=timing.BPP, bytes_in=stripe, array_ps=ecc_ps, after0=has[dies]
        )
        self.before = np.where(now < 0, self.before, now)
        self.lines = lines
        self.loaded.append(int(vpp[dies[-1]]))
        return dict(zip(pages.tolist(), has[dies].tolist(), strict=True))

    def _load(self, out: Rows, stripes: np.ndarray, gradient: int, after: int) -> int:
        """Add plan rows that transfer the gradients of ``stripes`` (numbers, ascending) to the
        device's DRAM, one row per contiguous run, after the row with id ``after``. Return the id
        of the row that completes the transfer. ``gradient``: bytes per stripe."""
        own = self.stripes
        cuts = np.flatnonzero(np.diff(stripes) != 1) + 1
        runs = np.split(stripes, cuts)
        size = np.array([len(run) for run in runs])
        ids = out.add(
            len(runs),
            device=self.device,
            resource=plan_rows.DMA_DOWN,
            phase=UPDATE,
            lpn=[own.shard.start + int(run[0]) * own.params for run in runs],
            tag=size * own.params,
            bytes_in=size * gradient,
            after0=after,
        )
        return int(ids[0]) if len(ids) == 1 else out.join(ids, UPDATE)
