"""ZeRO-Infinity's bytes and times compared with the simulation's: `ondie validate zero`.

Owns the rows of this suite, and the measurement of a drive's rate when it only reads or only
writes. Does not own the path (paths/offload/path.py). Source: DeepSpeed's NVMe swappers; DeepNVMe's
published rates.

No row is a check. The path plans transfers of the same sizes as DeepSpeed's swapper, and the device
counts their bytes. The links have the rates that DeepNVMe measured. Times are compared with closed
forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ondie.emu.analysis.compare import Run, run_path
from ondie.emu.analysis.row import IDENTITY, SHOWN, Progress, Row
from ondie.emu.compute import host_cpu
from ondie.emu.config.config import Config, load_preset
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.run.system import System
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme import command
from ondie.emu.paths.base import GRADIENTS, Options, Rows
from ondie.emu.paths.layout.volume import Extent, File, Volume
from ondie.emu.paths.offload.aio import Handles
from ondie.emu.paths.offload.options import Offload
from ondie.emu.paths.offload.path import HostOffload, PipelinedOffload
from ondie.emu.validate.synthetic_models import model

BYTES_SOURCE = (
    "NVMe bytes per parameter and step of ZeRO-Infinity, from DeepSpeed's sources; counted at the "
    "device"
)
PARAMS = 10_000_000
"""Number of parameters in the runs that count bytes. Their vectors end within a page, a block and a
sub-group."""
SMALL = "host.subgroup_params=1000000"


@dataclass(frozen=True)
class Traffic:
    """Expected bytes per parameter of one configuration.

    ``gradient``, ``parameters``: bytes of gradients written and of parameters read before the
    update. ``read``, ``written``: bytes read and written in the update.
    """

    name: str
    op: str
    gradient: float
    parameters: float
    read: float
    written: float
    offload: Offload = Offload()
    settings: tuple[str, ...] = ()
    path: type[HostOffload] = HostOffload
    format: str = "fp32"


TRAFFIC = (
    Traffic("adam, FP32 master", "adam", 4, 0, 16, 12),
    Traffic("adam, parameters on NVMe", "adam", 4, 4, 16, 14, Offload(parameters=True)),
    Traffic(
        "adam, parameters on NVMe, activation checkpointing", "adam", 4, 6, 16, 14,
        Offload(parameters=True, checkpointing=True),
    ),
    Traffic("momentum, FP32", "momentum", 4, 0, 12, 8),
    Traffic("adagrad, FP32", "adagrad", 4, 0, 12, 8),
    Traffic("adam, BF16 master", "adam", 2, 0, 12, 10, format="bf16_master"),
    Traffic("adam, all BF16", "adam", 2, 0, 8, 6, format="bf16_all"),
    Traffic("sgd, FP32", "sgd", 4, 0, 8, 4),
    Traffic("adam, pipelined", "adam", 4, 0, 16, 12, settings=(SMALL,), path=PipelinedOffload),
    Traffic(
        "adam, 4 threads on 4 drives", "adam", 4, 0, 16, 12,
        Offload(threads=4), ("system.devices=4", SMALL),
    ),
    Traffic(
        "adam, all BF16, parameters on NVMe, 3 drives", "adam", 2, 4, 8, 8,
        Offload(parameters=True), ("system.devices=3", SMALL), format="bf16_all",
    ),
)  # fmt: skip


def counted(case: Traffic) -> dict[str, float]:
    """Return the bytes per parameter that the drives count, keyed by the field names of Traffic."""
    cfg = load_preset("optimstore-r1", case.settings)
    options = Options(format=case.format, offload=case.offload)
    run = Run(case.path.name, cfg, model(case.op, PARAMS), options, payload=False)
    plan = np.concatenate(list(run.path.plan(0)))
    fence = (plan["resource"] == plan_rows.FENCE) & (plan["phase"] == GRADIENTS)
    update = int(np.flatnonzero(fence)[0])
    found: dict[str, float] = {}
    before = {"host_read_bytes": 0, "host_write_bytes": 0}
    for names, part in (
        (("parameters", "gradient"), plan[:update]), (("read", "written"), plan[update:]),
    ):  # fmt: skip
        run.system.run([part])
        now = run.system.totals(run.clock).counters
        for name, counter in zip(names, before, strict=True):
            found[name] = (now[counter] - before[counter]) / PARAMS
            before[counter] = now[counter]
    return found


def byte_rows(progress: Progress) -> Iterator[Row]:
    """Yield the validation rows of each case in TRAFFIC, in bytes per parameter: gradient,
    parameters, read, written, and their sum. A quantity that is expected and counted as 0 has no
    row."""
    for i, case in enumerate(TRAFFIC):
        if progress is not None:
            progress("zero", 0.5 * i / len(TRAFFIC))
        found = counted(case)
        columns = {
            "gradient": ("gradient written in backward", case.gradient),
            "parameters": ("parameters read in forward and backward", case.parameters),
            "read": ("read in the step", case.read),
            "written": ("written in the step", case.written),
        }
        for name, (words, expected) in columns.items():
            if expected or found[name]:
                text = f"{case.name}: {words}"
                yield Row("zero", text, IDENTITY, expected, found[name], "B/param", 0, BYTES_SOURCE)
        total = case.gradient + case.parameters + case.read + case.written
        yield Row(
            "zero", f"{case.name}: total", IDENTITY, total, sum(found.values()), "B/param", 0,
            BYTES_SOURCE,
        )  # fmt: skip


@dataclass(frozen=True)
class Drives:
    """Drives of one DeepNVMe measurement. ``read`` and ``write``: rates of all drives together
    (GB/s)."""

    name: str
    count: int
    read: float
    write: float

    def settings(self) -> tuple[str, ...]:
        """Return settings of R1 with which the link is the bottleneck in both directions.

        The channels are three times as fast as in R1, so that concurrent reads and writes do not
        compete for them.
        """
        return (
            f"system.devices={self.count}",
            f"link.up={round(self.read / self.count * 1e3)} MB/s",
            f"link.down={round(self.write / self.count * 1e3)} MB/s",
            "flash.bus=2400 MT/s", "host.dram_bandwidth=205 GB/s",
        )  # fmt: skip


DRIVES = (
    Drives("1 drive through libaio", 1, 3.7, 3.2),
    Drives("4 x gen4", 4, 10, 5),
    Drives("4 x gen5", 4, 27, 11),
    Drives("8 x gen5", 8, 48, 26),
)
RATES = ("4 Gparam/s", "0.4 Gparam/s")
"""Rates of the optimizer step on the CPU (host.adam): that of a large server, and one at which the
CPU is the bottleneck."""
INPUTS = (
    "DeepNVMe's measured rates of all drives together (DeepSpeed); the links of the emulated "
    "drives have these rates, and the rows show that the drives reach them"
)
TIMED_PARAMS = 60_000_000
PIPELINED_PARAMS = 4 << 20
"""Number of parameters of a sub-group in pipelined runs."""
Stages = tuple[float, float, float]
"""Times (s) to read, to compute (optimizer step on the CPU) and to write all parameters, each
without overlap."""


def rate(cfg: Config, kind: int, n_bytes: int, written: int) -> float:
    """Return the rate (bytes/s) of reading or writing ``n_bytes`` without other traffic.

    ``kind``: queues.READ or queues.WRITE. ``written``: number of bytes written before the
    measurement, so that blocks are erased as often as in a step.
    """
    volume = Volume.of(
        {"w": File((Extent(0, (n_bytes + written) // 4, 0),), 4)}, Geometry.of(cfg),
        cfg.system.devices, cfg.host.io_block_bytes, 1,
    )  # fmt: skip
    system = System(cfg, ("alone",))
    for dev, (lpn, pages) in enumerate(volume.used("w")):
        system.fill(dev, lpn, pages)
    out, handles, cut = Rows(), Handles(Offload(), None), written // 4
    handles.send(out, command.WRITE, 0, volume.requests("w", 0, cut), -1)
    system.run([out.take()])
    begin = system.now
    handles.send(out, kind, 0, volume.requests("w", cut, cut + n_bytes // 4), -1)
    system.run([out.take()])
    return n_bytes / (system.now - begin) * 1e12


def update_s(cfg: Config, path: type[HostOffload], n: int) -> float:
    """Return the duration of the simulated update stage of ``n`` parameters (s)."""
    result = run_path(path.name, cfg, model("adam", n), Options(), steps=1, payload=False)
    assert result.ledger is not None
    return result.ledger.update_s


def serial(stages: Stages, groups: float) -> float:
    """Return the time (s) of the update of N parameters if its stages do not overlap: N(16/R + 12/W
    + 1/c).

    R, W: rates of reading and writing (bytes/s). c: rate of the CPU (parameters/s). ``stages``: the
    times to read, to compute and to write all parameters (s). ``groups``: number of sub-groups, not
    used.
    """
    return sum(stages)


def pipelined(stages: Stages, groups: float) -> float:
    """Return the time (s) of the update of N parameters if its stages overlap: N max(16/R, 12/W,
    1/c) + fill.

    R, W, c, ``stages``: see :func:`serial`. ``groups``: number of sub-groups. Fill is the time of
    the stages of the first and last sub-group that do not overlap with other sub-groups' stages.
    """
    return max(stages) + (sum(stages) - max(stages)) / groups


def half_duplex(stages: Stages, groups: float) -> float:
    """Return N max(16/R + 12/W, 1/c) + fill, the time (s) of the update of N parameters if one
    resource of the drive serves both reads and writes.

    R, W, c, ``stages``: see :func:`serial`. ``groups``: number of sub-groups. Fill is the time by
    which the computation of a sub-group exceeds its read, plus the time by which the computation
    exceeds its write (each at least 0).
    """
    read, cpu, write = stages
    ends = max(cpu - read, 0) + max(cpu - write, 0)
    return max(read + write, cpu) + ends / groups


FORMS: dict[str, tuple[type[HostOffload], Callable[[Stages, float], float], str]] = {
    "serial": (
        HostOffload, serial,
        "serial T = N(16/R + 12/W + 1/c), one sub-group; every further sub-group adds the "
        "latency of a first read and a last program. R and W: rates of the drive when it only "
        "reads or only writes",
    ),
    "pipelined": (
        PipelinedOffload, pipelined,
        "pipelined T = N max(16/R, 12/W, 1/c) + fill: where reads and writes have no bottleneck "
        "in common",
    ),
    "half duplex": (
        PipelinedOffload, half_duplex,
        "pipelined on a drive whose reads and writes share their bottleneck (channels, or dies "
        "that program): T = N max(16/R + 12/W, 1/c) + fill",
    ),
}  # fmt: skip
NEITHER = (
    "pipelined, shown: reads and writes share only part of a bottleneck (dies program while the "
    "link transfers reads), so the step time lies between the two closed forms"
)
PRESETS = {
    "optimstore-r1": ("serial", "half duplex"),
    "optimstore-r2": ("serial", None),
    "newport": ("serial", "pipelined"),
    "laguna": ("serial", "pipelined"),
    "smartssd": ("serial", "half duplex"),
    "gen4-tlc": ("serial", None),
}
"""Names of the closed forms that hold on each preset: (for serial offload, for pipelined offload).
None means that neither of the two pipelined forms holds."""


@dataclass(frozen=True)
class Timed:
    """One configuration and its measured read and write rates (bytes/s), which are R and W of the
    closed forms."""

    name: str
    cfg: Config
    read: float
    write: float

    @staticmethod
    def of(name: str, cfg: Config) -> Timed:
        """Measure the rates at which the drives of configuration ``cfg`` read and write large
        arrays without other traffic. ``name``: name of the configuration in the validation rows."""
        n = TIMED_PARAMS
        read = rate(cfg, command.READ, 16 * n, 4 * n)
        return Timed(name, cfg, read, rate(cfg, command.WRITE, 12 * n, 4 * n))

    def rows(self, *forms: str | None) -> Iterator[Row]:
        """Yield the validation rows for each element of ``forms``: a key of FORMS, or None for both
        pipelined forms without a tolerance."""
        n = TIMED_PARAMS
        cpu = host_cpu.update_ps(self.cfg, n, host_cpu.ADAM_BYTES) / 1e12
        stages = 16 * n / self.read, cpu, 12 * n / self.write
        for form in forms:
            path = FORMS[form or "pipelined"][0]
            size = 1_000_000_000 if form == "serial" else PIPELINED_PARAMS
            leaves = {"host.subgroup_params": size}
            took = update_s(self.cfg.replace(leaves), path, n)
            for each in (form,) if form else ("pipelined", "half duplex"):
                _, closed, source = FORMS[each]
                yield Row(
                    "zero", f"{self.name}: {each}", IDENTITY if form else SHOWN,
                    closed(stages, n / PIPELINED_PARAMS), took, "s", 0.02 if form else None,
                    source if form else NEITHER,
                )  # fmt: skip


def time_rows(progress: Progress) -> Iterator[Row]:
    """Yield the rows that compare simulated update times with the closed forms, on DeepNVMe's
    drives and on presets. Also yield the rows that compare the simulated read and write rates of
    DeepNVMe's drives with the measured rates."""
    cases = [(d, c) for d in DRIVES for c in RATES]
    for i, (drives, cpu) in enumerate(cases):
        if progress is not None:
            progress("zero", 0.5 + 0.3 * i / len(cases))
        cfg = load_preset("optimstore-r1", (*drives.settings(), f"host.adam={cpu}"))
        name = f"{drives.name}, CPU Adam {cpu}"
        if cpu == RATES[0]:  # the rates of the drives do not depend on the CPU
            measured = Timed.of(name, cfg)
            for what, given, found in (
                ("read", drives.read, measured.read), ("written", drives.write, measured.write),
            ):  # fmt: skip
                text = f"{drives.name}: {what} alone"
                yield Row("zero", text, IDENTITY, given, found / 1e9, "GB/s", 0.02, INPUTS)
        timed = Timed(name, cfg, measured.read, measured.write)
        yield from timed.rows("serial", "pipelined")
    for i, (preset, forms) in enumerate(PRESETS.items()):
        if progress is not None:
            progress("zero", 0.8 + 0.2 * i / len(PRESETS))
        yield from Timed.of(preset, load_preset(preset)).rows(*forms)


def zero_rows(progress: Progress) -> list[Row]:
    """Return the rows of the suite `zero`: those of :func:`byte_rows`, then those of
    :func:`time_rows`."""
    return [*byte_rows(progress), *time_rows(progress)]
