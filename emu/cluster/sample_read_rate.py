"""Rate at which a node reads its samples from flash, measured on the emulated drive.

Owns the measurement of this rate. Does not own the drive (engine/run/system.py) or the wait for
samples (training_sim.py).
Source: STANNIS (DAC 2020) for the data path: the processor of a drive accesses the flash directly
and bypasses the front end and NVMe.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.clock import PS_PER_S
from ondie.emu.config.config import Config
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.run.system import System
from ondie.emu.nvme import command
from ondie.emu.units import InputError

MOST_BYTES = 256 << 20
"""Maximum number of bytes that one measurement of the read rate reads from the drive."""
SAMPLES = 2048
"""Maximum number of samples that one measurement of the read rate reads from the drive."""


def feed_bytes_per_s(cfg: Config, sample_bytes: int, *, host: bool = False, seed: int = 0) -> float:
    """Return the rate at which the processor of one drive reads samples from this drive, bytes per
    second. If ``host`` is True, the host reads the samples through NVMe.

    Samples are read in random order; each sample starts at a page boundary. The drive always has as
    many outstanding commands as it accepts, and whole pages cross the channels. Raises InputError
    if ``sample_bytes`` is less than 1 or more than MOST_BYTES, or if a sample does not fit into the
    drive.
    """
    if not 0 < sample_bytes <= MOST_BYTES:
        raise InputError(f"samples of {sample_bytes:,} bytes: must be from 1 to {MOST_BYTES:,}")
    one = cfg.replace({"system.devices": 1}, ref="the measurement uses one drive")
    system = System(one, ("samples",))
    page = system.geometry.page_bytes
    pages = -(-sample_bytes // page)
    number = min(max(MOST_BYTES // (pages * page), 1), SAMPLES)
    room = int(system.arrays.cfg.lpns[0]) // pages
    number = min(number, room)
    if not number:
        raise InputError(
            f"samples of {sample_bytes:,} bytes: do not fit into {cfg.system.name}; use samples of "
            f"at most {int(system.arrays.cfg.lpns[0]) * page:,} bytes, or a larger drive"
        )
    system.fill(0, 0, number * pages)
    block = min(cfg.host.io_block_bytes, sample_bytes)
    at = np.arange(0, sample_bytes, block, dtype=np.int64)
    places = np.random.default_rng(seed).permutation(number)
    plan = np.zeros(number * len(at), plan_rows.PLAN)
    plan["id"] = np.arange(len(plan))
    plan["after0"] = plan["after1"] = -1
    plan["resource"] = plan_rows.NVME if host else plan_rows.ISP_IO
    plan["kind"] = command.READ
    plan["lpn"] = (places[:, None] * pages + at // page).ravel()
    plan["bytes_out"] = np.tile(np.minimum(sample_bytes - at, block), number)
    system.run([plan])
    return number * sample_bytes * PS_PER_S / system.now
