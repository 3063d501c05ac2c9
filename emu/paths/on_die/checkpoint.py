"""Checkpoints of the reservoir: reads of all planes of every super-page to the host.

Owns the rows added to the plan by checkpoints, and the choice of super-pages that are read in place
of those of a lost die. Does not own the use of the bytes on the host, copies inside the drive, or
the parity over dies (protection.py).
Source: OptimStore (HPCA 2023).

No ECC covers the reservoir and its errors persist, so durable data must be copied out. A step whose
gradients are lost with the host can restart only from a checkpoint. The host reconstructs every
super-page of a lost die from the other super-pages under the same parity. The reservoir has no
spare die that could take over the data.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondie.emu.paths.base import CHECKPOINT, Rows
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.units import InputError


def plan(path: OnDie, first: int, lost: tuple[int, int] | None = None) -> Iterator[np.ndarray]:
    """Yield the plan rows that read every super-page once, through array, channel, DRAM and link,
    to the host. The rows alternate between the devices. ``lost``: (device, die) of a lost die; the
    parities are read in place of the super-pages of this die. ``first``: id of the first row."""
    out = Rows(first)
    after = out.fence(CHECKPOINT)
    planes = path.stripes[0].planes
    size = planes * path.geometry.flash_page_bytes
    yield from path.read_out(out, after, CHECKPOINT, planes, size, super_pages(path, lost))
    yield out.take()
    path.next_row = out.next


def check_lost(path: OnDie, lost: tuple[int, int] | None) -> None:
    """Raise InputError if the lost die does not exist, or if its data cannot be reconstructed,
    because there is no parity over dies."""
    if lost is None:
        return
    device, die = lost
    devices, dies = len(path.stripes), path.geometry.dies
    if not (0 <= device < devices and 0 <= die < dies):
        raise InputError(
            f"lost = ({device}, {die}): must be a drive from 0 to {devices - 1} and one of its "
            f"dies from 0 to {dies - 1}"
        )
    if not path.cfg.pe.rain:
        raise InputError(
            f"pe.rain = 0: die {die} of drive {device} cannot be reconstructed without parity; "
            "set pe.rain to at least 2"
        )


def missing(path: OnDie, lost: tuple[int, int] | None) -> list[tuple[int, int]]:
    """Return the stripes of a lost die as (device, super-page). The number of a stripe is that of
    its super-page, because stripes do not move if there is parity over dies. ``lost``: (device,
    die), or None if no die is lost."""
    if lost is None:
        return []
    device, die = lost
    return [(device, sp) for sp in range(die, path.stripes[device].count, path.geometry.dies)]


def super_pages(path: OnDie, lost: tuple[int, int] | None) -> list[np.ndarray]:
    """Return the numbers of the super-pages to read on each device, int64[n] per device. ``lost``:
    (device, die) of a lost die, whose super-pages are replaced by parities; None if no die is lost.
    """
    found = [homes.super_pages(0, homes.count) for homes in path.homes]
    if lost is not None:
        device, die = lost
        guarded = path.guarded[device]
        numbers = sorted({sp // guarded.members for _, sp in missing(path, lost)})
        there = found[device][found[device] % path.geometry.dies != die]
        found[device] = np.concatenate([there, guarded.parity[numbers]])
    return found
