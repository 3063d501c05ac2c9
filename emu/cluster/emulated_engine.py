"""Emulated engines: the step time of a preset's host or drive that trains a network.

Owns the step time as a function of the batch size, and the memory limit. Does not own speeds
(networks.py, the preset's training ratio), the benchmark (throughput_benchmark.py) or other
programs' load (load/contention.py).
Source: STANNIS (DAC 2020), Table I: one batch and speed per network and engine. Below that batch,
the step time has a constant term, so the speed is lower [assumed, networks.toml]. Above that batch,
the speed is constant. For models without a table entry, the speed is constant at every batch,
because only one batch is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ondie.emu.cluster.batch_tuner import Engine, reference_batch
from ondie.emu.cluster.networks import NETWORKS, Network, half_batch
from ondie.emu.cluster.throughput_benchmark import benchmark
from ondie.emu.compute import training
from ondie.emu.config.config import Config
from ondie.emu.units import InputError
from ondie.traces import step_times, synth

UNPUBLISHED = "its speed is not published; benchmark a real engine"


@dataclass(frozen=True)
class Emulated:
    """Engine in virtual time: calling it with a batch returns the time of a step in seconds.

    ``speed`` is the full speed (samples/s), and ``batch`` the smallest batch that reaches it.
    ``limit`` is the largest batch that fits into memory. ``half_batch`` is the batch at which the
    engine would reach half of its asymptotic speed if the curve for batches below ``batch`` applied
    to all batches.
    """

    name: str
    batch: int
    speed: float
    limit: int
    half_batch: float

    def __call__(self, batch: int) -> float:
        """Return the time of a training step with ``batch`` samples, seconds. Raises MemoryError,
        like a real engine, if ``batch`` exceeds the memory limit."""
        if batch > self.limit:
            raise MemoryError(f"{self.name}: batch {batch} exceeds the memory limit, {self.limit}")
        if batch >= self.batch:
            return batch / self.speed
        return (batch + self.half_batch) / (self.batch + self.half_batch) * self.batch / self.speed

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes to benchmark: ``batch``, and the powers of two up to twice ``batch``."""
        powers = [1 << i for i in range((2 * self.batch).bit_length())]
        return tuple(sorted({*powers, self.batch}))

    def engine(self, largest: int | None = None) -> Engine:
        """Benchmark batch sizes up to ``largest`` (default: the engine's batch) and return the
        fitted curve.

        The fitted line has exactly the speed ``speed`` at ``batch`` (throughput_benchmark.Fitted).
        If ``half_batch`` is 0, the speeds of smaller batches are unknown, and the returned engine
        has the constant speed ``speed``.
        """
        most = self.batch if largest is None else largest
        if not self.half_batch:
            return Engine(self.name, ((most, self.speed),), self.limit)
        sizes = {*(batch for batch in self.batches if batch <= most), most}
        measured = benchmark(self.name, self, sizes, repeats=1, warm_ups=0)
        return replace(measured.fit(self.batch), limit=self.limit)


def published(network: Network) -> tuple[Engine, Engine]:
    """Return the engines (host, drive) with the single batch and speed that the paper gives for
    each engine. This batch is also the largest batch of the curve.

    Raises InputError if the paper gives no speed.
    """
    speeds = network.tuned_host_speed, network.tuned_drive_speed
    if speeds[0] is None or speeds[1] is None:
        raise InputError(f"{network.title} on {network.drive}: {UNPUBLISHED}")
    return (
        Engine("host", ((network.host_batch, speeds[0]),)),
        Engine(network.drive, ((network.drive_batch, speeds[1]),)),
    )


def emulated(network: Network, cfg: Config) -> tuple[Emulated, Emulated]:
    """Return the emulated engines (host, drive) of the preset ``cfg`` for the training of a
    network.

    Raises InputError if the speed is not published, if the layers of the network are needed but not
    known, if the drives cannot train, or if one sample does not fit into memory.
    """
    host, macs = network.tuned_host_speed, 0
    if cfg.host.accelerator_peak_flop_per_s or cfg.isp.flops_per_cycle:
        macs = _macs(network)
    if rate := training.accelerator_flop_per_s(cfg, network.name):
        host = 1 / step_times.seconds(macs, 1, rate)
    if host is None:
        raise InputError(f"{network.title} on {network.drive}: {UNPUBLISHED}")
    ratio = training.training_ratio(cfg, network.name, macs, host)
    if cfg.isp.kind != "cores" or not ratio:
        raise InputError(
            f"{cfg.system.name}: its drives cannot train (isp.kind = {cfg.isp.kind}, "
            f"isp.training_ratio = {ratio:g}); use a preset whose cores can train"
        )
    drive = host * ratio
    rooms = cfg.host.dram_bytes, cfg.dram.isp_bytes
    most_host, most_drive = (network.memory_limit(room) for room in rooms)
    half = half_batch()
    return (
        Emulated("host", network.host_batch, host, most_host, half),
        Emulated(cfg.system.name, network.drive_batch, drive, most_drive, half),
    )


def _macs(network: Network) -> int:
    """Return the number of multiply-accumulates of forward and backward per sample. Raises
    InputError if the layers of the network are not known."""
    if network.name not in synth.models():
        raise InputError(
            f"{network.title}: its layers are not known, so its speed cannot be computed from "
            "the FLOP/s of a device; use a preset that sets isp.training_ratio"
        )
    trace = synth.build(network.name)
    return trace.macs_forward + trace.macs_backward


def traced(
    name: str,
    batch: int,
    speed: float,
    ratio: float,
    cfg: Config,
    host_batch: int | None = None,
    drive_batch: int | None = None,
) -> tuple[Engine, Engine]:
    """Return the engines (host, drive) of the preset ``cfg`` for a training run whose only known
    speed is that of the host at one batch.

    ``name``: name of the trace; it may be the name of a network. ``batch``, ``speed``: this batch,
    and the speed of the host at this batch (samples/s). ``ratio``: speed of a drive divided by
    ``speed`` (compute/training.py). The host's largest batch is ``host_batch`` if it is given,
    otherwise ``batch``, because no larger batch is known to fit. The drive's batch is the largest
    batch for which Algorithm 1 gives the host at most the host's largest batch, but at least 1. The
    drive's memory is assumed to hold ``drive_batch``.
    """
    half = half_batch() if name in NETWORKS else 0.0
    most = host_batch or batch
    drive = reference_batch(most, speed, speed * ratio)
    limit = max(drive, drive_batch or 0)
    return (
        Emulated("host", batch, speed, most, half).engine(most),
        Emulated(cfg.system.name, drive, speed * ratio, limit, half).engine(),
    )
