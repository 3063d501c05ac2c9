"""Power of a server that trains with its drives, and the energy per sample.

Owns the sum P = host_w + drives x drive_w. Does not own the constants (the presets) or speeds.
Source: STANNIS (DAC 2020), Table II, and HyperTune's energies, as stored in the presets.

host.compute_power is the power of the host while it trains, including the power of its idle drives.
A computing drive adds the power of its controller and all of its cores (energy.controller,
energy.isp_core).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ondie.emu.config.config import Config
from ondie.emu.units import InputError


@dataclass(frozen=True)
class Server:
    """Power of a server (a host and its drives): ``host_w`` (W) while the host trains, plus
    ``drive_w`` (W) for each drive that trains."""

    host_w: float
    drive_w: float

    @staticmethod
    def of(cfg: Config) -> Server:
        """Return the power of the server (a host and its drives) that the preset ``cfg``
        describes."""
        drive_mw = cfg.energy.controller_mw + cfg.isp.cores * cfg.energy.isp_core_mw
        return Server(cfg.host.compute_power_mw / 1e3, drive_mw / 1e3)

    def watts(self, drives: int) -> float:
        """Return the power of the server (W) while the host and ``drives`` drives train. The power
        of idle drives is part of the host's power. Raises InputError if ``drives`` is negative."""
        if drives < 0:
            raise InputError(f"{drives} drives: must be at least 0")
        return self.host_w + drives * self.drive_w

    def joules(self, samples_per_s: float, drives: int) -> float:
        """Return the energy of the server per sample (J) while the host and ``drives`` drives train
        ``samples_per_s`` samples per second in total. Raises InputError if ``samples_per_s`` is not
        positive, or if ``drives`` is negative."""
        if not (math.isfinite(samples_per_s) and samples_per_s > 0):
            raise InputError(
                f"training speed of {samples_per_s} samples/s: must be a finite number above 0"
            )
        return self.watts(drives) / samples_per_s
