"""Devices of an on-die update and the closed form of a stripe's time on them.

Owns the record Devices, and the times of a stripe on its channel and on its die by dispatch rule.
Does not own the values and the bound of a whole step (path.py), the rows of a round
(uneven_rounds.py) or the moves between dies (wear_leveling.py).
Source: OptimStore (HPCA 2023) for the dispatch rules; this project for the record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.nand.geometry import Geometry
from ondie.emu.paths.layout.regions import Stripes
from ondie.emu.paths.layout.stripe_map import Homes
from ondie.emu.paths.on_die.protection import FETCH_STEP, STORE_STEP, Guarded


@dataclass(frozen=True)
class Devices:
    """Stripes of all devices and the constants of their update. Tuples have one element per
    device, except ``steps``."""

    cfg: Config
    geometry: Geometry
    steps: tuple[int, ...]
    """Steps in which a die updates one stripe, in order (step numbers that protection.py
    defines)."""
    stripes: tuple[Stripes, ...]
    homes: tuple[Homes, ...]
    guarded: tuple[Guarded, ...]
    good_blocks: np.ndarray
    """Mask of good blocks in each die's reservoir, bool[devices x dies, blocks]."""
    compute_ps: int
    """Time between the sense and the program of a stripe, excluding ECC in the die, ps."""
    round_trip: bool
    """True if the pages of a stripe pass through the controller's ECC."""


def channel_s(devices: Devices, stripes: Stripes) -> float:
    """Return the time for which one stripe occupies its channel, excluding the transfer of its
    gradient, seconds."""
    flash, rain = devices.cfg.flash, devices.cfg.pe.rain
    times = float(sum(step in (FETCH_STEP, STORE_STEP) for step in devices.steps))
    if rain:
        times += 1 / (rain - 1)
    if devices.round_trip:  # to the controller's ECC and back, and for its parity
        times += 3
    page_s = flash.page_bytes / flash.bus_bytes_per_s + flash.t_command_ps / 1e12
    return times * stripes.planes * page_s


def stripe_s(devices: Devices, stripes: Stripes, array: float, load: float) -> tuple[float, str]:
    """Return (seconds from one stripe of a die to the next, name of the bottleneck). ``array``:
    time of a stripe in its die, seconds. ``load``: time of the stripe's gradient on the channel,
    seconds."""
    flash, element, ways = devices.cfg.flash, devices.cfg.pe, devices.geometry.ways
    moved = channel_s(devices, stripes)
    if element.rain:
        array += flash.t_program_ps / 1e12 / (element.rain - 1)
    channels = ways * (load + moved), "channels"
    if element.dispatch == "lockstep":
        # The channel also hands the dies their read and program commands one after the other.
        stagger = 2 * stripes.planes * (ways - 1) * flash.t_command_ps / 1e12
        return array + channels[0] + stagger, "dies in lockstep"
    if element.dispatch == "free":
        return max((array + load + moved, "dies"), channels)
    return max((array + moved, "dies"), channels)
