"""Emulated engines: a host or a drive of a preset, training a network, as a benchmark sees it.

Owns time over batch sizes and what memory holds. Does not own speeds (networks.py, the preset's
training ratio), the benchmark (benchmark.py) or interference.
Source: STANNIS (DAC 2020), Table I: one batch and speed per network and engine. Below that batch
the speed falls as that of a step with a fixed part does (assumed, networks.toml); above, it is
constant.
"""

from __future__ import annotations

from dataclasses import dataclass

from ondie.emu.config import Config
from ondie.emu.stannis.networks import Network, half_batch
from ondie.emu.stannis.tuner import Engine
from ondie.emu.units import InputError

UNPUBLISHED = "its speed is not published; benchmark a real engine"


@dataclass(frozen=True)
class Emulated:
    """An engine in virtual time: called with a batch, it says how long a step takes.

    ``speed`` samples/s at ``batch``, the smallest that reaches it; ``limit``: memory's.
    """

    name: str
    batch: int
    speed: float
    limit: int
    half_batch: float

    def __call__(self, batch: int) -> float:
        """Seconds of a step. MemoryError beyond the limit, as a real engine has it."""
        if batch > self.limit:
            raise MemoryError(f"{self.name}: batch {batch} of at most {self.limit}")
        if batch >= self.batch:
            return batch / self.speed
        return (batch + self.half_batch) / (self.batch + self.half_batch) * self.batch / self.speed

    @property
    def batches(self) -> tuple[int, ...]:
        """Sizes to benchmark: powers of two up to twice its batch, and its batch."""
        powers = [1 << i for i in range((2 * self.batch).bit_length())]
        return tuple(sorted({*powers, self.batch}))

    def engine(self) -> Engine:
        """Its one known point alone: a constant speed, and the limit."""
        return Engine(self.name, ((self.batch, self.speed),), self.limit)


def published(network: Network) -> tuple[Engine, Engine]:
    """(host, drive), each at the one batch and speed that its paper gives, and no larger batch
    measured. InputError where it gives no speed."""
    speeds = network.tuned_host_speed, network.tuned_drive_speed
    if speeds[0] is None or speeds[1] is None:
        raise InputError(f"{network.title} on {network.drive}: {UNPUBLISHED}")
    return (
        Engine("host", ((network.host_batch, speeds[0]),)),
        Engine(network.drive, ((network.drive_batch, speeds[1]),)),
    )


def emulated(network: Network, cfg: Config) -> tuple[Emulated, Emulated]:
    """(host, drive) of a preset, training a network. InputError where its speed is not published or
    memory holds no sample."""
    if network.tuned_host_speed is None:
        raise InputError(f"{network.title} on {network.drive}: {UNPUBLISHED}")
    ratio = cfg.isp.training_ratio_by_model.get(network.name, cfg.isp.training_ratio)
    if cfg.isp.kind != "cores" or not ratio:
        raise InputError(
            f"{cfg.system.name}: its drives cannot train (isp.kind = {cfg.isp.kind}, "
            f"isp.training_ratio = {ratio:g}); a preset with cores that can is right"
        )
    host, drive = network.tuned_host_speed, network.tuned_host_speed * ratio
    rooms = cfg.host.dram_bytes, cfg.dram.isp_bytes
    most_host, most_drive = (network.memory_limit(room) for room in rooms)
    half = half_batch()
    return (
        Emulated("host", network.host_batch, host, most_host, half),
        Emulated(cfg.system.name, network.drive_batch, drive, most_drive, half),
    )
