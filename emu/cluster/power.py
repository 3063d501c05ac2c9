"""Power of a server that trains with its drives, and the energy of a sample.

Owns P = host + drives x drive. Does not own the constants (the presets) or speeds.
Source: STANNIS (DAC 2020), Table II, and HyperTune's energies, as the presets have them: the host
while it trains, its idle drives in it (host.compute_power); a drive that computes adds what its
controller and all of its cores draw (energy.controller, energy.isp_core).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ondie.emu.config.config import Config
from ondie.emu.units import InputError


@dataclass(frozen=True)
class Server:
    """Watts of a server: while its host trains, and more for each drive that does."""

    host_w: float
    drive_w: float

    @staticmethod
    def of(cfg: Config) -> Server:
        """A preset's."""
        drive_mw = cfg.energy.controller_mw + cfg.isp.cores * cfg.energy.isp_core_mw
        return Server(cfg.host.compute_power_mw / 1e3, drive_mw / 1e3)

    def watts(self, drives: int) -> float:
        """With so many drives training; idle ones are inside the host's."""
        if drives < 0:
            raise InputError(f"{drives} drives: 0 or more is right")
        return self.host_w + drives * self.drive_w

    def joules(self, samples_per_s: float, drives: int) -> float:
        """Per sample, with so many drives training."""
        if not (math.isfinite(samples_per_s) and samples_per_s > 0):
            raise InputError(f"{samples_per_s} samples/s: more than 0 is right")
        return self.watts(drives) / samples_per_s
