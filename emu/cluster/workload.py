"""Workload of a cluster: a published network or any trace, with a speed for each kind of node.

Owns the conversion of networks and traces into this description. Does not own published speeds
(networks.py) or the cluster (build.py).
Source: networks.toml for the networks of STANNIS and HyperTune. For a trace: the trace's forward
and backward times on the host, and the preset's ratio of training speeds for the drives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ondie.emu.clock import PS_PER_S
from ondie.emu.cluster.batch_tuner import Engine
from ondie.emu.cluster.emulated_engine import emulated, traced
from ondie.emu.cluster.networks import NETWORKS, VALUE_BYTES, Network, network, servers
from ondie.emu.compute import host_cpu, isp_cores, training
from ondie.emu.config.config import Config
from ondie.emu.units import InputError
from ondie.kernels import OPS, get
from ondie.traces import Trace

PUBLIC, PRIVATE = 72_000, 12_000
"""Numbers of images in STANNIS (DAC 2020): public images, and private images of its 24 drives
together."""
ROUNDED = 0.02
"""Maximum relative difference between the number of parameters that a paper prints for a network
and the number in the network's synthetic trace."""


@dataclass(frozen=True)
class Workload:
    """Training of one model by a cluster: sizes, numbers of samples, and speed of each node."""

    name: str
    params: int
    sample_bytes: int
    """Size of one sample on flash, bytes. The value 0 means that the size is unknown and reading
    takes no time."""
    public: int
    private: int
    """Number of private samples of all drives together in one epoch."""
    host: Engine
    """Training speed of a host as a function of its batch size."""
    drives: tuple[Engine, ...]
    """Training speed of a drive as a function of its batch size, for each kind of drive."""
    updates_s: tuple[float, ...]
    """Weight update time on the host, then on each kind of drive, seconds; 0 if the speeds include
    this time."""
    published: tuple[int, ...] | None = None
    """(batch size of the host, batch size of a drive) as published. None if the cluster has several
    kinds of drives, or if no batch sizes are published for its kind of drive."""
    notes: tuple[str, ...] = ()
    """Sentences, printed with the results, about the origin of the values of this workload."""

    @property
    def gradient_bytes(self) -> int:
        """Size of the FP32 gradients that an all-reduce sums, in bytes."""
        return VALUE_BYTES * self.params


def of_network(name: str, presets: Sequence[Config]) -> Workload:
    """Return the workload of one of NETWORKS on a host with drives of these presets.

    Speeds are published for whole training steps, so they include the update. Sizes, batches and
    the host's speed come from the paper in which the network is trained on drives of the first
    preset. If none was published for these drives, they come from the first paper that states them
    for the network. Raises InputError for an unknown network, or if a needed value is not
    published.
    """
    drive = presets[0].system.name
    first, engines, notes = network(name, drive if drive in servers(name) else None), [], []
    for i, cfg in enumerate(presets):
        drive = cfg.system.name
        here = drive in servers(name)
        known = network(name, drive) if here else first
        engines.append(emulated(known, cfg))
        if not here:
            notes.append(_unpublished(first, cfg, i))
    return Workload(
        name=name,
        params=first.params,
        sample_bytes=first.bytes_per_sample,
        public=PUBLIC,
        private=PRIVATE,
        host=engines[0][0].engine(),
        drives=tuple(drive.engine() for _, drive in engines),
        updates_s=(0.0,) * (1 + len(presets)),
        published=(first.host_batch, first.drive_batch)
        if [cfg.system.name for cfg in presets] == [first.drive]
        else None,
        notes=tuple(notes),
    )


def _unpublished(network: Network, cfg: Config, kind: int) -> str:
    """Return the note that lists the values not published for drives of this preset."""
    drive = cfg.system.name
    if cfg.isp.flops_per_cycle:
        return (
            f"{network.title} was not published on {drive}: the batches are those of the "
            f"{network.drive} server; the speeds follow from its MACs and the FLOP/s of {drive}"
        )
    what = "its batch and host speed" if kind else "the batches and the host's speed"
    return (
        f"{network.title} was not published on {drive}: {what} are those of the "
        f"{network.drive} server; the drives train at {drive}'s fraction of the host's speed"
    )


def of_trace(
    trace: Trace,
    presets: Sequence[Config],
    host_batch: int | None = None,
    drive_batch: int | None = None,
    *,
    timed: bool = False,
) -> Workload:
    """Return the workload of a trace's first step. ``host_batch``, ``drive_batch``: as in
    emulated_engine.traced.

    ``timed``: True if the forward and backward times in ``trace`` already apply to the first
    preset; False to derive them (compute/training.py). Raises InputError if the forward and
    backward time is unknown, if no update kernel is known, if a preset's drives cannot train, or if
    weights, states and gradient exceed a drive's memory.
    """
    if not timed:
        trace, _ = training.timed(trace, presets[0])
    step = trace.steps[0]
    if not step.forward_s + step.backward_s:
        raise InputError(
            f"{trace.origin}: the times of forward and backward are unknown; use a trace that "
            "states these times"
        )
    if trace.op not in OPS:
        reason = trace.attrs.get("op_reason", "no update kernel is known for it")
        raise InputError(f"{trace.origin}: optimizer operation {trace.op!r}: {reason}")
    speed = step.samples / (step.forward_s + step.backward_s)
    macs = trace.macs_forward + trace.macs_backward
    kernel = get(trace.op)
    coupled = bool(step.hyper and step.hyper[0].get("weight_decay")) and trace.op != "adamw"
    engines = []
    traffic = kernel.bytes_per_param()
    updates = [host_cpu.update_ps(presets[0], trace.n_params, traffic) / PS_PER_S]
    for cfg in presets:
        ratio = training.training_ratio(cfg, trace.name, macs, speed)
        if cfg.isp.kind != "cores" or not ratio:
            raise InputError(
                f"{cfg.system.name}: its drives cannot train (isp.kind = {cfg.isp.kind}, "
                f"isp.training_ratio = {ratio:g}); use a preset whose cores can train"
            )
        need = VALUE_BYTES * (2 + len(kernel.states)) * trace.n_params
        if need > cfg.dram.isp_bytes:
            raise InputError(
                f"{trace.name}: weights, states and gradient take {need / 1e9:.4g} GB on every "
                f"node, but dram.isp of {cfg.system.name} is {cfg.dram.isp_bytes / 1e9:.4g} GB"
            )
        engines.append(traced(trace.name, step.samples, speed, ratio, cfg, host_batch, drive_batch))
        updates.append(
            isp_cores.update_ps(cfg, trace.op, coupled, trace.n_params, traffic) / PS_PER_S
        )
    return Workload(
        name=trace.name,
        params=trace.n_params,
        sample_bytes=trace.bytes_per_sample,
        public=max(trace.dataset_samples - trace.private_samples, 0),
        private=trace.private_samples,
        host=engines[0][0],
        drives=tuple(drive for _, drive in engines),
        updates_s=tuple(updates),
    )


def is_network(name: str) -> bool:
    """Return True if ``name`` is the name of a network, not of a trace file."""
    return name in NETWORKS


def trains_network(trace: Trace) -> bool:
    """Return True if a trace is the synthetic trace of a network of STANNIS or HyperTune, and its
    number of parameters differs from the published, rounded number by at most the fraction
    ROUNDED."""
    if trace.name not in NETWORKS or not trace.attrs.get("synthetic"):
        return False
    return abs(trace.n_params / network(trace.name).params - 1) <= ROUNDED
