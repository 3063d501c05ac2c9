"""Recovery after a power cut: plans that read out-of-band data, pad open blocks, and finish the
step.

Owns the plan rows of the recovery and of the remaining work of an interrupted step. Does not own
the evaluation of the out-of-band data (ftl/reservoir_recovery.py) or the order of an update
(uneven_rounds.py, path.py).
Source: OptimStore (HPCA 2023): each die has one cursor, and the host sends the gradients again,
starting at the cursor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.run.system import System
from ondie.emu.nand import timing
from ondie.emu.nand.page_store import SPARE_BYTES
from ondie.emu.paths.base import BACKWARD, RECOVERY, UPDATE, Rows
from ondie.emu.paths.on_die import uneven_rounds
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.paths.on_die.registers import Reservoir

Place = tuple[int, int, int]
"""(device, die of the device, position in the die's reservoir) of a super-page."""


def scan(path: OnDie, first: int, places: Sequence[Place], data: bool) -> np.ndarray:
    """Return the plan rows that read the out-of-band data of super-pages into the controller's
    DRAM.

    ``first``: id of the first row. The rows read ``path.scanned_planes`` planes of each super-page
    in ``places``. With ``data``, the rows read whole pages of the planes in use, and the controller
    compares the pages with their checksums.
    """
    dies, page = path.geometry.dies, path.geometry.flash_page_bytes
    planes = np.array([path.stripes[dev].planes for dev, _, _ in places], np.int64)
    if not data:
        planes[:] = path.scanned_planes
    out = Rows(first)
    out.add(
        len(places),
        device=[dev for dev, _, _ in places],
        resource=plan_rows.DIE,
        kind=timing.SCAN,
        phase=RECOVERY,
        lpn=[place * dies + die for _, die, place in places],
        bytes_out=planes * page,
        tag=planes * (SPARE_BYTES + page * data),
    )
    return out.take()


def pads(path: OnDie, first: int, places: Sequence[Place]) -> np.ndarray:
    """Return the plan rows that program the super-pages ``places`` with the current contents of the
    registers. Later scans then do not read these super-pages as blank. ``first``: id of the first
    row."""
    dies, page = path.geometry.dies, path.geometry.flash_page_bytes
    out = Rows(first)
    out.add(
        len(places),
        device=[dev for dev, _, _ in places],
        resource=plan_rows.DIE,
        kind=timing.PAD,
        phase=RECOVERY,
        lpn=[place * dies + die for _, die, place in places],
        bytes_in=[path.stripes[dev].planes * page for dev, _, _ in places],
    )
    return out.take()


def training(out: Rows, left: Sequence[tuple[int, int]], now: int) -> int:
    """Add plan rows for the remaining time of forward and backward. Return the id of the last row.
    ``left``: (phase, end in ps); ``now``: current time, ps. The accelerator keeps running during
    the power cut, because it does not share the drive's power supply."""
    after = out.fence(BACKWARD)
    for phase, end in left:
        after = out.one(
            resource=plan_rows.ACCELERATOR, phase=phase, array_ps=max(end - now, 0), after0=after
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
    """Yield the plan rows that complete an interrupted step.

    These are the rows of the remaining forward and backward, of the update from the cursors to its
    end, and of the parities and commit records. All weights are read out to the host again.
    ``left``: see :func:`training`. ``cursors``: index of the next stripe of each die, int64[dies]
    per device. ``made``: super-pages of each device that hold parities or commit records already
    programmed in this step.
    """
    out = Rows(system.next_row)
    after = training(out, left, system.now)
    if not path.trace.steps[step].skipped:
        fetched: dict[tuple[int, int], int] = {}
        yield from uneven_rounds.update(path.devices, out, after, cursors, fetched)
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
    """Yield the plan rows of the parities that the step has not programmed yet, after the row with
    id ``after``.

    ``fetched``: the stripes that the controller receives from the resumed update, as (device,
    super-page) -> row id. The controller reads the other stripes, which were programmed before the
    power cut, from the array. ``made``: super-pages of each device that hold parities already
    programmed in this step.
    """
    dies, page = path.geometry.dies, path.geometry.flash_page_bytes
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
                    place = path.payload.at(dev, sp).place
                    row = out.one(
                        device=dev, resource=plan_rows.DIE, kind=timing.SCAN, phase=RECOVERY,
                        lpn=place * dies + sp % dies, bytes_out=planes * page,
                        tag=planes * (SPARE_BYTES + page), after0=after,
                    )  # fmt: skip
                    path.payload.again[row] = dev, sp
                rows_of.append(row)
            out.one(
                device=dev, resource=plan_rows.DIE, kind=timing.BESIDE, phase=UPDATE, lpn=parity,
                bytes_in=planes * page, after0=out.join(np.array(rows_of), UPDATE),
            )  # fmt: skip
        if out.full():
            yield out.take()
