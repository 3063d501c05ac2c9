"""Closed form of an on-die update: the time from one stripe of a die to the next.

Owns the times of a stripe on its channel and on its die by dispatch rule. Does not own the bound of
a whole step (path.py).
Source: OptimStore (HPCA 2023), dispatch rules.
"""

from __future__ import annotations

from ondie.emu.paths.layout.regions import Stripes
from ondie.emu.paths.on_die.devices import Devices
from ondie.emu.paths.on_die.protection import FETCH_STEP, STORE_STEP


def channel_s(devices: Devices, stripes: Stripes) -> float:
    """Return the time of one stripe on its channel, seconds, excluding the load of its gradient."""
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
    seconds of a stripe in its die; ``load``: seconds of its gradient on the channel."""
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
