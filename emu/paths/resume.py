"""After a power cut: plans that read out-of-band data, pad open blocks, and finish the step.

Owns the rows of recovery and of the rest of an interrupted step. Does not own what is concluded
from what was read (backend/recovery.py), nor the order of an uninterrupted step (on_die.py).
Source: OptimStore (HPCA 2023): one cursor per die; the host sends gradients again from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ondie.emu import rows
from ondie.emu.backend import timing
from ondie.emu.backend.store import SPARE_BYTES
from ondie.emu.isp import pe
from ondie.emu.isp.layout import Stripes
from ondie.emu.paths.base import BACKWARD, RECOVERY, UPDATE, Rows
from ondie.emu.paths.guards import COMPUTE, FETCH, GRADIENT, JOINS, PROGRAM, SENSE
from ondie.emu.paths.on_die import OnDie
from ondie.emu.paths.payload import Reservoir
from ondie.emu.paths.rounds import STAGED_ROUNDS
from ondie.emu.system import System

Place = tuple[int, int, int]
"""Device, die of it, place in the die's reservoir."""


def scan(path: OnDie, first: int, places: Sequence[Place], data: bool) -> np.ndarray:
    """Read the out-of-band data of super-pages into the controller's DRAM; with ``data`` whole
    pages, which it holds against their checksums."""
    dies, page = path.geometry.dies, path.geometry.page_bytes
    planes = np.array([path.stripes[dev].planes for dev, _, _ in places], np.int64)
    out = Rows(first)
    out.add(
        len(places),
        device=[dev for dev, _, _ in places],
        resource=rows.DIE,
        kind=timing.SCAN,
        phase=RECOVERY,
        lpn=[place * dies + die for _, die, place in places],
        bytes_out=planes * page,
        tag=planes * (SPARE_BYTES + page * data),
    )
    return out.take()


def pads(path: OnDie, first: int, places: Sequence[Place]) -> np.ndarray:
    """Program places with whatever the registers hold: nobody will take them for blank."""
    dies, page = path.geometry.dies, path.geometry.page_bytes
    out = Rows(first)
    out.add(
        len(places),
        device=[dev for dev, _, _ in places],
        resource=rows.DIE,
        kind=timing.PAD,
        phase=RECOVERY,
        lpn=[place * dies + die for _, die, place in places],
        bytes_in=[path.stripes[dev].planes * page for dev, _, _ in places],
    )
    return out.take()


def training(out: Rows, left: Sequence[tuple[int, int]], now: int) -> int:
    """What the accelerator still does of forward and backward, as (phase, end in ps): the drive's
    power is not its own. Returns the row to wait for."""
    after = out.fence(BACKWARD)
    for phase, end in left:
        after = out.one(
            resource=rows.ACCELERATOR, phase=phase, array_ps=max(end - now, 0), after0=after
        )
        now = max(now, end)
    return after


def plan(
    path: OnDie,
    step: int,
    left: Sequence[tuple[int, int]],
    cursors: Sequence[np.ndarray],
    system: System,
    made: Sequence[frozenset[int]] = (),
) -> Iterator[np.ndarray]:
    """The rest of an interrupted step: of forward and backward (``left``, see :func:`training`), of
    the update from the cursors on, of parities and records but those of each device that are
    ``made``; all weights go up again."""
    out = Rows(system.next_row)
    after = training(out, left, system.now)
    if not path.trace.steps[step].skipped:
        fetched: dict[tuple[int, int], int] = {}
        yield from update(path, out, after, cursors, fetched)
        yield from parities(path, out, after, fetched, made)
        if path.guarded[0].commits:
            path.commit(out, made)
        yield from path.weights_up(out, out.fence(UPDATE))
    yield out.take()
    path.next_row = out.next


def parities(
    path: OnDie,
    out: Rows,
    after: int,
    fetched: Mapping[tuple[int, int], int],
    made: Sequence[frozenset[int]],
) -> Iterator[np.ndarray]:
    """Parities that the step has yet to make: of stripes that the controller has ``fetched``, by
    (device, super-page) -> row, and of those that it reads from the array, where they were
    programmed before the power went."""
    dies, page = path.geometry.dies, path.geometry.page_bytes
    for dev, guarded in enumerate(path.guarded):
        planes = path.stripes[dev].planes
        for number, parity in enumerate(guarded.parity.tolist()):
            if made and parity in made[dev]:
                continue
            rows_of = []
            for sp in guarded.under(number):
                row = fetched.get((dev, sp))
                if row is None:
                    assert isinstance(path.payload, Reservoir)
                    place = path.payload.place(dev, sp)
                    row = out.one(
                        device=dev, resource=rows.DIE, kind=timing.SCAN, phase=RECOVERY,
                        lpn=place * dies + sp % dies, bytes_out=planes * page,
                        tag=planes * (SPARE_BYTES + page), after0=after,
                    )  # fmt: skip
                    path.payload.again[row] = dev, sp
                rows_of.append(row)
            out.one(
                device=dev, resource=rows.DIE, kind=timing.BESIDE, phase=UPDATE, lpn=parity,
                bytes_in=planes * page, after0=out.join(np.array(rows_of), UPDATE),
            )  # fmt: skip
        if out.full():
            yield out.take()


def die_counts(stripes: Stripes, dies: int) -> np.ndarray:
    """Super-pages of each die: int64[dies]."""
    return (stripes.count - np.arange(dies) + dies - 1) // dies


def update(
    path: OnDie,
    out: Rows,
    after: int,
    cursors: Sequence[np.ndarray],
    fetched: dict[tuple[int, int], int] | None = None,
) -> Iterator[np.ndarray]:
    """The update of the super-pages from the dies' cursors on (int64[dies] for each device), in
    rounds of the next stripe of every die that has one. With cursors of 0 these are the rows of a
    whole step, but for parities. ``fetched`` gains the rows after which the controller has a
    stripe."""
    dies = path.geometry.dies
    left = [die_counts(s, dies) - c for s, c in zip(path.stripes, cursors, strict=True)]
    devices = [_Device(path, dev, cursors[dev]) for dev in range(len(cursors))]
    for j in range(max(int(n.max()) for n in left)):
        for dev, n in zip(devices, left, strict=True):
            here = np.flatnonzero(n > j)
            if len(here):
                its = dev.round(out, j, here, after)
                if fetched is not None:
                    fetched |= {(dev.device, sp): row for sp, row in its.items()}
        if out.full():
            yield out.take()


class _Device:
    """Rounds of one device, and the rows of those before."""

    def __init__(self, path: OnDie, device: int, cursor: np.ndarray) -> None:
        self.path, self.device, self.cursor = path, device, cursor
        g = path.geometry
        self.stripes = path.stripes[device]
        steps = [step for step in path.steps if step not in JOINS]
        self.at = {step: i for i, step in enumerate(steps)}
        self.before = np.full((len(steps), g.dies), -1)  # each die's rows of the last round
        self.lines: list[np.ndarray] = [np.zeros(0, np.int64)] * g.channels  # dies, last round
        self.loaded: list[int] = []  # last VPP of each round

    def round(self, out: Rows, j: int, dies: np.ndarray, after: int) -> dict[int, int]:
        """The next stripe of each of ``dies``: gradients down, then VPP, BPR, ODC, what the
        controller takes, BPP. Returns by super-page the row after which the controller has it."""
        g, s, path = self.path.geometry, self.stripes, self.path
        gradient, stripe = s.gradient_bytes, s.planes * g.page_bytes
        pages = (self.cursor[dies] + j) * g.dies + dies
        staged = after if j < STAGED_ROUNDS else self.loaded[j - STAGED_ROUNDS]
        base = self._load(out, np.sort(pages), gradient, staged)
        steps = len(self.at)
        now = np.full((steps, g.dies), -1)
        now[:, dies] = out.next + np.arange(steps * len(dies)).reshape(steps, -1)
        vpp, bpr, odc, bpp = (now[self.at[x]] for x in (GRADIENT, SENSE, COMPUTE, PROGRAM))
        last_odc, last = (self.before[self.at[x]] for x in (COMPUTE, PROGRAM))
        lines = [dies[dies % g.channels == c] for c in range(g.channels)]
        match path.cfg.pe.dispatch:
            case "lockstep":
                vpp0, vpp1 = np.full(g.dies, base), last.copy()
                bpr0, bpr1 = np.full((2, g.dies), -1)
                for line, old in zip(lines, self.lines, strict=True):
                    if not len(line):
                        continue
                    vpp0[line[1:]] = vpp[line[:-1]]
                    bpr0[line] = vpp[line[-1]]
                    if len(old):
                        vpp1[line[0]] = last[old[-1]]
                        bpr1[line] = last[old[0]]
            case "free":
                vpp0, vpp1 = np.full(g.dies, base), last
                bpr0, bpr1 = vpp, np.full(g.dies, -1)
            case _:
                vpp0, vpp1 = np.full(g.dies, base), last_odc
                bpr0 = np.where(last < 0, after, last)
                bpr1 = vpp if path.cfg.pe.rain else np.full(g.dies, -1)
        pe_ps, ecc_ps = path.compute_ps, pe.ecc_ps(path.cfg, s.planes)
        common = {"device": self.device, "resource": rows.DIE, "phase": UPDATE, "lpn": pages}
        n = len(dies)
        out.add(
            n, **common, kind=timing.VPP, bytes_in=gradient, after0=vpp0[dies], after1=vpp1[dies]
        )
        out.add(
            n, **common, kind=timing.BPR, bytes_out=stripe, array_ps=ecc_ps, after0=bpr0[dies],
            after1=bpr1[dies],
        )  # fmt: skip
        out.add(
            n, **common, kind=timing.ODC, array_ps=pe_ps, after0=bpr[dies], after1=vpp[dies],
            bytes_out=stripe if path.round_trip else 0,
        )  # fmt: skip
        has = odc
        if FETCH in self.at:
            has = now[self.at[FETCH]]
            out.add(n, **common, kind=timing.FETCH, bytes_out=stripe, after0=odc[dies])
        out.add(n, **common, kind=timing.BPP, bytes_in=stripe, array_ps=ecc_ps, after0=has[dies])
        self.before = np.where(now < 0, self.before, now)
        self.lines = lines
        self.loaded.append(int(vpp[dies[-1]]))
        return dict(zip(pages.tolist(), has[dies].tolist(), strict=True))

    def _load(self, out: Rows, pages: np.ndarray, gradient: int, after: int) -> int:
        """Gradients of some super-pages to the device's DRAM, a row for those that follow each
        other. Returns the row to wait for."""
        s = self.stripes
        cuts = np.flatnonzero(np.diff(pages) != 1) + 1
        runs = np.split(pages, cuts)
        size = np.array([len(run) for run in runs])
        ids = out.add(
            len(runs),
            device=self.device,
            resource=rows.DMA_DOWN,
            phase=UPDATE,
            lpn=[s.shard.start + int(run[0]) * s.params for run in runs],
            tag=size * s.params,
            bytes_in=size * gradient,
            after0=after,
        )
        return int(ids[0]) if len(ids) == 1 else out.join(ids, UPDATE)
