"""Emulated engines: a host or a drive of a preset, training a network, as a benchmark sees it.

Owns time over batch sizes and what memory holds. Does not own speeds (networks.py, the preset's
training ratio), the benchmark (benchmark.py) or interference.
Source: STANNIS (DAC 2020), Table I: one batch and speed per network and engine. Below that batch
the speed falls as that of a step with a fixed part does (assumed, networks.toml); above, it is
constant. Of other trainings nothing is known below the one batch, and the speed is constant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ondie.emu.cluster.batch_tuner import Engine, reference_batch
from ondie.emu.cluster.networks import NETWORKS, Network, half_batch
from ondie.emu.cluster.throughput_benchmark import benchmark
from ondie.emu.config.config import Config
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

    def engine(self, largest: int | None = None) -> Engine:
        """Benchmarked over batch sizes up to ``largest`` (its batch, unless given), and the line
        through them, which meets its speed at its batch exactly (benchmark.Fitted). Where nothing
        is known of smaller batches (``half_batch`` 0), its one point: a constant speed."""
        most = self.batch if largest is None else largest
        if not self.half_batch:
            return Engine(self.name, ((most, self.speed),), self.limit)
        sizes = {*(b for b in self.batches if b <= most), most}
        measured = benchmark(self.name, self, sizes, repeats=1, warm_ups=0)
        return replace(measured.fit(self.batch), limit=self.limit)


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


def traced(
    name: str, batch: int, speed: float, cfg: Config, host_batch: int | None = None
) -> tuple[Engine, Engine]:
    """(host, drive) of a preset in a training of which one ``batch`` of the host and its ``speed``
    are known; ``name``: a network's, or any.

    The host's largest batch is that one, or ``host_batch``, as no other is known to fit; the
    drive's is the largest that leaves the host within it.
    """
    ratio = cfg.isp.training_ratio_by_model.get(name, cfg.isp.training_ratio)
    half = half_batch() if name in NETWORKS else 0.0
    most = host_batch or batch
    drive = reference_batch(most, speed, speed * ratio)
    return (
        Emulated("host", batch, speed, most, half).engine(most),
        Emulated(cfg.system.name, drive, speed * ratio, drive, half).engine(),
    )
