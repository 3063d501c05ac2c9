"""Checkpoints out of the reservoir: all planes of every super-page, to the host.

Owns the rows, and which super-pages stand in for those of a die that is lost. Does not own what the
host does with the bytes, nor a copy inside the drive.
Source: OptimStore (HPCA 2023): no ECC covers the reservoir and its errors stay, so what is to last
has to leave it; and a step whose gradients are lost with the host can only begin again from one.
Parity over dies as guards.py has it: of a die that does not answer, the host makes every super-page
again from the others under its parity. It stays lost: the reservoir has no die to put them on.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondie.emu.paths.base import CHECKPOINT, Rows
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.units import InputError


def plan(path: OnDie, first: int, lost: tuple[int, int] | None = None) -> Iterator[np.ndarray]:
    """Every super-page once, the devices in turn: array, channel, DRAM, link; with ``lost``, a
    device and a die of it, none of those, and the parities that they are under."""
    out = Rows(first)
    after = out.fence(CHECKPOINT)
    planes = path.stripes[0].planes
    size = planes * path.geometry.page_bytes
    yield from path.read_out(out, after, CHECKPOINT, planes, size, super_pages(path, lost))
    yield out.take()
    path.next_row = out.next


def check_lost(path: OnDie, lost: tuple[int, int] | None) -> None:
    """Raise InputError for a die that cannot be done without."""
    if lost is None:
        return
    device, die = lost
    devices, dies = len(path.stripes), path.geometry.dies
    if not (0 <= device < devices and 0 <= die < dies):
        raise InputError(f"lost die {die} of drive {device}: {devices} drive(s) of {dies} dies")
    if not path.cfg.pe.rain:
        raise InputError("a lost die: pe.rain = 0, so that nothing stands in for it; 2 or more")


def missing(path: OnDie, lost: tuple[int, int] | None) -> list[tuple[int, int]]:
    """Stripes of a lost die: (device, super-page), which are those of their own numbers, as none
    moves where there is parity."""
    if lost is None:
        return []
    device, die = lost
    return [(device, sp) for sp in range(die, path.stripes[device].count, path.geometry.dies)]


def super_pages(path: OnDie, lost: tuple[int, int] | None) -> list[np.ndarray]:
    """Of each device those that are read, int64[n]."""
    found = [homes.super_pages(0, homes.count) for homes in path.homes]
    if lost is not None:
        device, die = lost
        guarded = path.guarded[device]
        numbers = sorted({sp // guarded.members for _, sp in missing(path, lost)})
        there = found[device][found[device] % path.geometry.dies != die]
        found[device] = np.concatenate([there, guarded.parity[numbers]])
    return found
