"""Inference in storage servers (stores; NDPipe's engine NPE), with each optimization on or off.

Owns the six stages of inference, the effect of each optimization on their times, and the
bottleneck. Does not own the simulation of stages and drives (pipeline.py, flash.py) or the
constants (servers.toml).
Source: NDPipe (ASPLOS 2024): load, decode, resize, normalize, feature extraction, classification;
pipelining, then preprocessed and compressed photos, then an inference engine with quantization and
larger batches. The times are this project's.

Without pipelining, a store processes one batch at a time. With pipelining, stages on the same
processor share the processor in proportion to their work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ondie.emu.clock import PS_PER_S
from ondie.emu.config.config import Config
from ondie.emu.ndpipe.layers import Network
from ondie.emu.ndpipe.pipeline import RECEIVE, STAGES, Plan, Store, Times, simulate
from ondie.emu.ndpipe.servers import inference_constant, jpeg_bytes, server
from ondie.emu.units import InputError, known_names, whole_number

PIPELINING, PREPROCESSED, COMPRESSED, QUANTIZED, BATCH = OPTIMIZATIONS = (
    "pipelining", "preprocessed", "compressed", "quantized", "batch",
)  # fmt: skip
"""Names of the optimizations of NDPipe's inference, in the order in which the paper adds them."""
LOAD, FEATURES, CLASSIFICATION = "load", "features", "classification"
CORES = ("decode", "resize", "normalize")
"""Names of the inference stages that run on the CPU cores of a store."""
NPE_STAGES = (LOAD, *CORES, FEATURES, CLASSIFICATION)
"""Names of the six stages of inference in a store. The stage "decode" decodes JPEG files or, if the
photos are stored preprocessed and compressed, decompresses the photos."""
PROCESSORS = {
    "flash": (LOAD,), "cores": CORES, "accelerator": (FEATURES, CLASSIFICATION),
    "network of the Tuner": (RECEIVE,),
}  # fmt: skip
"""Names of the inference stages by the resource that they use: the resources of one store, and the
network shared by all stores."""
DEPTH = len(STAGES) + 2
"""Maximum number of batches that a store with pipelining has in memory."""
US = PS_PER_S // 10**6


@dataclass(frozen=True)
class Inference:
    """Result of a simulation of inference in the stores with the given optimizations.

    ``read_bytes``: size of a photo on flash in the form that inference reads. ``stored_bytes``:
    size of all stored forms of a photo, including the JPEG file, which is kept. ``work_us``: time
    per photo (us) of each stage, and of the Tuner's network (RECEIVE), if no other work uses the
    resource; for the stage ``load``, the simulated busy time per photo. ``photos_per_s``:
    throughput of all stores, measured over the second half of the photos. ``bottleneck``: name of
    the resource with the longest busy time and, in parentheses, of its longest stage.
    """

    optimizations: tuple[str, ...]
    batch: int
    read_bytes: int
    stored_bytes: int
    work_us: dict[str, float]
    photos_per_s: float
    bottleneck: str

    def expected_photos_per_s(self, stores: int) -> float:
        """Return the throughput of ``stores`` stores, in photos per second, from a closed form.

        Without pipelining, the rate of a store is the reciprocal of the sum of its stages' times.
        With pipelining, it is the reciprocal of the time of its slowest resource. The Tuner's
        network, which all stores share, can limit the rate of all stores further.
        """
        each = {name: _sum(self.work_us, stages) for name, stages in PROCESSORS.items()}
        shared = each.pop("network of the Tuner")
        own = max(each.values()) if PIPELINING in self.optimizations else sum(each.values())
        return 1e6 / max(own / stores, shared)


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Return ``names``, the names of optimizations, in the order of the paper.

    Raises InputError if a name is unknown or occurs twice, or if ``compressed`` is used without
    ``preprocessed``: a JPEG file is compressed already.
    """
    for name in names:
        if name not in OPTIMIZATIONS:
            raise InputError(f"optimization {name!r}: unknown; {known_names(name, OPTIMIZATIONS)}")
        if list(names).count(name) > 1:
            raise InputError(f"optimization {name!r}: is named twice; name it once")
    if COMPRESSED in names and PREPROCESSED not in names:
        raise InputError(
            f"optimization {COMPRESSED!r}: needs {PREPROCESSED!r}; a JPEG file is compressed "
            "already"
        )
    return tuple(name for name in OPTIMIZATIONS if name in names)


def read_bytes(net: Network, optimizations: Sequence[str]) -> int:
    """Return the number of bytes per photo that inference with ``optimizations`` reads from
    flash."""
    if PREPROCESSED not in optimizations:
        return jpeg_bytes()
    size = net.inputs * inference_constant("stored_value")
    return round(size / inference_constant("compression") if COMPRESSED in optimizations else size)


def work(net: Network, optimizations: Sequence[str], batch: int) -> dict[str, float]:
    """Return the time per photo (us) of each inference stage except ``load``, and of the transfer
    of a label to the Tuner. The times assume that no other work uses the processor or the
    network."""
    if PREPROCESSED not in optimizations:
        cores = [inference_constant(f"{name}_us") for name in CORES]
    else:
        size = net.inputs * inference_constant("stored_value")
        inflate = 1e6 * size / inference_constant("inflate")
        cores = [inflate if COMPRESSED in optimizations else 0.0, 0.0, 0.0]
    rate = server("store").macs_per_s * _batch_speed(batch)
    if QUANTIZED in optimizations:
        rate *= inference_constant("quantized")
    return {
        **dict(zip(CORES, cores, strict=True)),
        FEATURES: 1e6 * (net.macs - net.head.macs) / rate,
        CLASSIFICATION: 1e6 * net.head.macs / rate,
        RECEIVE: 1e6 * inference_constant("label") / server("tuner").bytes_per_s,
    }


def _batch_speed(batch: int) -> float:
    """Return the speed of an accelerator with ``batch`` photos per batch, relative to its speed
    with the batch size at which the rates of the servers were measured."""
    half, measured = inference_constant("half_batch"), inference_constant("measured_batch")
    return batch / (batch + half) * (measured + half) / measured


def infer(
    net: Network, cfg: Config, optimizations: Sequence[str], stores: int, photos: int, batch: int
) -> Inference:
    """Simulate inference on ``photos`` photos in each of ``stores`` stores; each store has one
    drive.

    ``batch``: photos per batch. Raises InputError if a number is outside its range, the names of
    the optimizations are invalid (see :func:`chosen`), there are fewer than two batches, or the
    photos do not fit on the drive.
    """
    names = chosen(optimizations)
    whole_number("stores", stores, 1, 1 << 16)
    whole_number("batch", batch, 1, 1 << 20)
    whole_number("photos", photos, 2 * batch, 1 << 30)
    pipelined, size, alone = PIPELINING in names, read_bytes(net, names), work(net, names, batch)
    spans = dict(alone)
    if pipelined:
        for stages in (CORES, (FEATURES, CLASSIFICATION)):
            total = _sum(alone, stages)
            spans |= {name: total if alone[name] else 0.0 for name in stages}
    decode, resize, normalize, features, classify, receive = (
        round(US * spans[name]) for name in (*NPE_STAGES[1:], RECEIVE)
    )
    times = Times(decode, resize, normalize, features, classify, receive, 0)  # no training
    plan = Plan(2, batch, size, depth=DEPTH if pipelined else 1)
    found = simulate([Store(photos)] * stores, times, plan, cfg)
    alone = {LOAD: found.busy_ps[LOAD] / photos / US, **alone}
    half, end = found.ready_ps
    later = stores * (photos - photos // 2)
    stored = size + (jpeg_bytes() if PREPROCESSED in names else 0)
    rate = later * PS_PER_S / (end - half)
    return Inference(names, batch, size, stored, alone, rate, _bottleneck(alone, stores))


def ladder(
    net: Network, cfg: Config, optimizations: Sequence[str], stores: int, photos: int,
    batches: tuple[int, int],
) -> Iterator[Inference]:  # fmt: skip
    """Yield the result of inference without optimizations, then with one more of ``optimizations``
    each time, in the order of the paper. ``batches``: photos per batch without and with the
    optimization ``batch``. Raises InputError as :func:`infer` does, or if the second value of
    ``batches`` is below the first."""
    small, large = batches
    whole_number("large batch", large, small, 1 << 20)
    names = chosen(optimizations)
    for count in range(len(names) + 1):
        used = names[:count]
        yield infer(net, cfg, used, stores, photos, large if BATCH in used else small)


def _bottleneck(work_us: dict[str, float], stores: int) -> str:
    """Return the name of the resource with the longest busy time and, in parentheses, of its
    longest stage."""
    shared = {RECEIVE: stores * work_us[RECEIVE]}
    times = work_us | shared
    resource = max(PROCESSORS, key=lambda name: _sum(times, PROCESSORS[name]))
    stage = max(PROCESSORS[resource], key=lambda name: times[name])
    return f"{resource} ({stage})"


def _sum(work_us: dict[str, float], stages: Sequence[str]) -> float:
    """Return the sum of the times of ``stages`` (us)."""
    return sum(work_us[name] for name in stages)
