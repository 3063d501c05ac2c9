"""Stannis: data-parallel training on the host and the processors in N drives.

Owns the order of a step. Every node reads its samples and computes forward and backward. An
all-reduce through the tunnels sums the gradients. Every node updates its copy of the weights. The
path simulates time, not values. Does not own batch sizes, the data split and the order of an
exchange (cluster/), or the event loop (engine/).
Source: STANNIS (DAC 2020), with Horovod: gradients are exchanged after every node has computed its
gradient, not during the backward pass. Not modeled: read-ahead for the next step, and additions on
the drives. Additions on the host are modeled in the tree and the star, where the host adds whole
gradients.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from ondie.emu.clock import PS_PER_S, ps_from_seconds
from ondie.emu.cluster import allocation
from ondie.emu.cluster.allocation import GIVEN, PAPER, TUNED, Allocation, Rules
from ondie.emu.cluster.batch_tuner import Engine, tune
from ondie.emu.cluster.build import assemble
from ondie.emu.cluster.cluster import Fleet
from ondie.emu.cluster.data_split import largest_remainder
from ondie.emu.cluster.networks import network, servers
from ondie.emu.cluster.workload import Workload, of_network, of_trace, trains_network
from ondie.emu.compute import host_cpu, isp_cores, requirements, training
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.run.system import System
from ondie.emu.ftl.tables import logical_pages
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme import command
from ondie.emu.paths import statement
from ondie.emu.paths.allreduce_plan import HOST_NODE, ExchangePlan
from ondie.emu.paths.base import (
    BACKWARD,
    FORWARD,
    PHASES,
    SAME,
    SAMPLES,
    SYNCHRONISE,
    UPDATE,
    Path,
    Rows,
)
from ondie.emu.paths.closed_form import Bound, engine_s, host_update_s, parts_text
from ondie.emu.paths.layout.formats import MODEL_BYTES
from ondie.emu.paths.layout.regions import VALUE_BYTES
from ondie.emu.paths.optimizer_step import Arithmetic
from ondie.emu.paths.statement import Work
from ondie.emu.units import InputError
from ondie.kernels import get


@dataclass
class Stannis(Path):
    """Path of data-parallel training on the host and the processors in the drives. Each node keeps
    weights and states in its DRAM."""

    name: ClassVar[str] = "stannis"
    title: ClassVar[str] = "distributed, host + N CSDs"
    updates_weights: ClassVar[bool] = False
    exchanges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.geometry = Geometry.of(self.cfg)
        self.kernel = get(self.trace.op, form=self.options.form)
        self.nodes = self.cfg.system.devices + 1
        self._next = 0
        super().__post_init__()

    def unstorable(self) -> str | None:
        known = self.options.format == "fp32"
        return None if known else "vectors stay in the nodes' DRAM in FP32"

    # --- batch and speed of each node

    @property
    def ratio(self) -> float:
        """Training speed of a drive divided by that of the host; see training.training_ratio."""
        macs = self.trace.macs_forward + self.trace.macs_backward
        return training.training_ratio(self.cfg, self.trace.name, macs, self.speed(0))

    def speed(self, step: int) -> float:
        """Return the host's speed in the forward and backward phases of recorded step ``step``,
        samples per second."""
        step_record = self.trace.steps[step]
        return step_record.samples / (step_record.forward_s + step_record.backward_s)

    @cached_property
    def as_published(self) -> bool:
        """True if the trace is a network of the STANNIS papers, used with the published batch sizes
        and speeds. With batch = "same", the batch sizes and speeds are those of the trace."""
        return self.options.batch != SAME and trains_network(self.trace)

    @cached_property
    def workload(self) -> Workload:
        """Network, batches and speeds, as `ondie stannis` uses them. Raises InputError if the
        user replaces a published host batch without giving the drives' batch."""
        if not self.as_published:
            given = self.options.host_batch or self.trace.samples_per_step, self.options.drive_batch
            return of_trace(self.trace, [self.cfg], *given, timed=True)
        if self.options.host_batch is not None and self.options.batch != GIVEN:
            raise InputError(
                f"--host-batch {self.options.host_batch}: {self.trace.name} has published batch "
                "sizes, which --host-batch alone cannot replace; also give --drive-batch"
            )
        known = of_network(self.trace.name, [self.cfg])
        asked = (self.options.step_times, self.options.forward_s, self.options.backward_s)
        if all(option is None for option in asked):
            return known
        # These options change the host's speed. Drives keep their ratio or, if stated, their rate.
        rate = training.accelerator_flop_per_s(self.cfg, self.trace.name)
        usual = network(self.trace.name).tuned_host_speed
        if rate:
            step = self.trace.at_rate(rate).steps[0]
            usual = step.samples / (step.forward_s + step.backward_s)
        pace = self.speed(0) / (usual or self.speed(0))
        of_drives = 1.0 if self.cfg.isp.flops_per_cycle else pace
        drives = tuple(drive.scaled(of_drives) for drive in known.drives)
        return replace(known, host=known.host.scaled(pace), drives=drives)

    @cached_property
    def cluster(self) -> Fleet:
        """Host and drives as a cluster, built as in `ondie stannis`."""
        options = self.options
        return assemble(
            self.workload, [(self.cfg, self.nodes - 1)], allreduce=options.allreduce, reads=False,
            slowdown=options.slowdown, cores_taken=options.cores_taken,
        )  # fmt: skip

    @cached_property
    def allocation(self) -> Allocation:
        """Published, tuned or given batch of each node, chosen as in `ondie stannis`."""
        options = self.options
        rules = Rules(
            batch=options.batch, host_batch=options.host_batch, drive_batch=options.drive_batch
        )
        return allocation.chosen(self.cluster, rules)

    @cached_property
    def engines(self) -> tuple[Engine, Engine]:
        """(host, drive): models of training speed as a function of batch size. The host's model is
        for the cores that other programs leave free."""
        host, drive = self.cluster.kinds
        return host.loaded, drive.loaded

    @cached_property
    def weights(self) -> tuple[int, int]:
        """(host, drive): weights by which a global batch is divided. The weights are the batches
        found by Algorithm 1 of STANNIS with the drive as reference node. The drive's batch is the
        largest batch with which the host does not exceed the host's maximum batch, but at least 1.
        If the drive's batch is 1, the host's weight may exceed the host's maximum batch."""
        host, drive = self.engines
        found = tune((replace(host, limit=None), drive), reference=1)
        return found[0], found[1]

    def batches(self, step: int) -> tuple[int, ...]:
        """Return the number of samples of each node in step ``step``; the host is first."""
        if self.options.batch != SAME:
            host, drive = self.allocation.samples
            return (host, *[drive] * (self.nodes - 1))
        host, drive = self.weights
        parts = (host, *[drive] * (self.nodes - 1))
        return tuple(largest_remainder(self.trace.steps[step].samples, parts).tolist())

    @property
    def global_batch(self) -> int:
        """Number of samples in the first step, over all nodes."""
        return sum(self.batches(0))

    def seconds(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (forward, backward): times of each node's batch, ps, int64[nodes] each. The ratio
        of the two times is that of the trace's forward and backward times. Unless published speeds
        are used, the times are scaled so that a host with all cores free would take the recorded
        duration of the step for all samples of the step."""
        step_record = self.trace.steps[step]
        host, drive = self.engines
        trained = step_record.forward_s + step_record.backward_s
        whole = trained
        if not self.as_published:
            whole = self.cluster.kinds[HOST_NODE].engine.seconds(step_record.samples)
        over = [
            (host if i == HOST_NODE else drive).seconds(batch) / whole if batch else 0.0
            for i, batch in enumerate(self.batches(step))
        ]
        parts = [
            [ps_from_seconds(phase_s * node_over) for node_over in over]
            for phase_s in (step_record.forward_s, step_record.backward_s)
        ]
        return np.array(parts[0], np.int64), np.array(parts[1], np.int64)

    def notes(self) -> list[str]:
        """Return the notes on batch sizes and idle drives that are printed with the path's
        results."""
        batches = self.batches(0)
        drives = batches[1:]
        few, many = min(drives), max(drives)
        out = [
            f"timing only: batch {sum(batches)} = host {batches[HOST_NODE]} + {len(drives)} x "
            f"{few if few == many else f'{few} to {many}'}, drive at {self.ratio:.3g} of the "
            f"host's speed"
        ]
        if self.workload.params != self.trace.n_params:
            out.append(
                f"exchange of {self.workload.gradient_bytes / 1e6:.4g} MB for the "
                f"{self.workload.params:,} published parameters; the trace has "
                f"{self.trace.n_params:,} parameters"
            )
        if self.options.cores_taken:
            kind = self.cluster.kinds[HOST_NODE]
            rate = float(kind.slowdown(np.array([kind.left]))[0])
            out.append(
                f"other programs take {kind.cores_taken:g} of the host's {kind.cores} cores; the "
                f"host trains at {rate:.1%} of its speed"
            )
        idle = sum(batch == 0 for batch in drives)
        if idle:
            host, drive = self.weights
            share = sum(batches) * drive / (host + len(drives) * drive)
            out.append(
                f"{idle} of {len(drives)} drives get no sample: the share of a drive in a batch of "
                f"{sum(batches)} is {share:.2g} samples; --batch tuned gives each drive "
                "at least one sample"
            )
        return out

    # --- placement of samples and states

    def _device_samples(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (drive, host): for each device, the numbers of samples read by the drive and by
        the host, int64[devices] each. The host's samples are spread evenly over the drives."""
        host, *drives = self.batches(step)
        even = largest_remainder(host, [1] * len(drives))
        return np.array(drives, np.int64), even

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray, int]:
        """(drive, host, steps). ``drive`` and ``host``: number of pages reserved on each device per
        step for the samples that the drive and the host read, int64[devices]. ``steps``: number of
        steps after which the samples repeat."""
        own, host = (
            np.max(part, axis=0)
            for part in zip(*map(self._device_samples, range(len(self.trace.steps))), strict=True)
        )
        size = self.trace.bytes_per_sample
        page = self.geometry.page_bytes
        epoch = -(-self.trace.dataset_samples // self.global_batch)
        steps = min(len(self.trace.steps), epoch) if epoch else len(self.trace.steps)
        return -(-own * size // page), -(-host * size // page), steps

    def missing(self) -> str | None:
        trace = self.trace
        if (wrong := requirements.no_cores(self.cfg, "train")) is not None:
            return wrong
        if not self.cfg.tunnel.payload_bytes:
            return (
                "no tunnel between host and drives (tunnel.payload = 0); set tunnel.payload and "
                "its keys, or use --device csd-pe"
            )
        if (
            wrong := requirements.no_samples(trace) or requirements.no_times(trace, any)
        ) is not None:
            return wrong
        if self.cfg.isp.flops_per_cycle and not trace.macs_forward + trace.macs_backward:
            return (
                f"{trace.name} does not state its multiply-accumulates (macs_forward, "
                "macs_backward), which give the drive's training time; set isp.flops_per_cycle=0 "
                "and isp.training_ratio"
            )
        need = self._state_bytes
        what = (
            f"weights, states and gradient of {trace.n_params:,} parameters take {need / 1e9:.4g} "
            "GB on every node"
        )
        wrong = (
            requirements.no_speed(self.ratio)
            or requirements.no_dram(self.cfg, "dram.isp", what, need)
            or requirements.no_dram(self.cfg, "host.dram", what, need)
        )
        if wrong is not None:
            return wrong
        if self.options.batch == PAPER and not self._batches_are_published():
            return (
                f"no batches are published for {trace.name} on {self.cfg.system.name}; use batch "
                f"{TUNED}"
            )
        if self.options.batch != SAME:
            try:
                _ = self.allocation
            except InputError as error:
                return str(error)
        return self._no_flash()

    def _no_flash(self) -> str | None:
        """Return the reason why the data set does not fit on the drives, or None if it fits."""
        lpns = logical_pages(self.cfg, self.geometry)
        own, host, steps = self._places
        page = self.geometry.page_bytes
        data = -(-self.trace.dataset_samples * self.trace.bytes_per_sample // len(own))
        pages = max(int((own + host).max()) * steps, -(-data // page))
        if pages <= lpns:
            return None
        return (
            f"the data set takes {pages * page / 1e9:.4g} GB per drive, but the conventional "
            f"namespace has {lpns * page / 1e9:.4g} GB"
        )

    @property
    def _state_bytes(self) -> int:
        """Size of weights, states and gradient in the DRAM of each node, bytes."""
        return VALUE_BYTES * (1 + len(self.kernel.states) + 1) * self.trace.n_params

    def _batches_are_published(self) -> bool:
        """Return True if batches of the trace's network are published for this kind of drive."""
        return trains_network(self.trace) and self.cfg.system.name in servers(self.trace.name)

    def system(self, payload: bool, timeline: int) -> System:
        wait = self.exchange.cost.wait_ps
        return System(self.cfg, PHASES, payload=payload, timeline=timeline, relay_wait_ps=wait)

    def prepare(self, system: System, arithmetic: Arithmetic | None) -> None:
        """Place the samples of all steps on flash without simulated time. The samples of a step are
        contiguous, in the order in which they are read. Payload is not supported."""
        own, host, steps = self._places
        for dev, pages in enumerate(own + host):
            system.fill(dev, 0, int(pages) * steps)

    def begin_step(self, step: int) -> None:
        """Do nothing: the path simulates time only and has no payload."""

    def finish(self) -> np.ndarray | None:
        return None

    # --- the plan

    def plan(self, step: int) -> Iterator[np.ndarray]:
        out = Rows(self._next)
        start = out.fence(SAMPLES)
        read = yield from self._samples(out, step, start)
        trained = self._training(out, step, read)
        arrived = yield from self.exchange.rows(out, trained)
        if not self.trace.steps[step].skipped:  # overflow is detected after the exchange
            self._update(out, arrived)
        yield out.take()
        self._next = out.next

    def _samples(self, out: Rows, step: int, start: int) -> Generator[np.ndarray, None, np.ndarray]:
        """Yield the plan rows that read the samples, after the row with id ``start``. Drives
        bypass the NVMe front end; the host uses NVMe commands. Return the id of the row that each
        node waits for, int64[nodes]."""
        own, host = self._device_samples(step)
        own_pages, host_pages, steps = self._places
        lpn = step % steps * (own_pages + host_pages)
        read = np.full(self.nodes, start, np.int64)
        sent = [
            self._read(
                out, plan_rows.NVME, dev, int(lpn[dev] + own_pages[dev]), int(samples), start
            )
            for dev, samples in enumerate(host)
        ]
        ids = np.concatenate(sent)
        if len(ids):
            read[HOST_NODE] = out.join(ids, SAMPLES)
        for dev, samples in enumerate(own):
            if samples:
                ids = self._read(out, plan_rows.ISP_IO, dev, int(lpn[dev]), int(samples), start)
                read[dev + 1] = out.join(ids, SAMPLES)
            if out.full():
                yield out.take()
        return read

    def _read(
        self, out: Rows, resource: int, dev: int, lpn: int, samples: int, start: int
    ) -> np.ndarray:
        """Add plan rows that read ``samples`` consecutive samples, starting at logical page ``lpn``
        of device ``dev``, in blocks of host.io_block. ``start``: id of the row to wait for. Return
        the row ids, int64[n]."""
        size, block = samples * self.trace.bytes_per_sample, self.cfg.host.io_block_bytes
        at = np.arange(0, size, block, dtype=np.int64)
        return out.add(
            len(at),
            device=dev,
            resource=resource,
            kind=command.READ,
            phase=SAMPLES,
            lpn=lpn + at // self.geometry.page_bytes,
            bytes_out=np.minimum(size - at, block),
            after0=start,
        )

    def _training(self, out: Rows, step: int, read: np.ndarray) -> int:
        """Add the plan rows of forward and backward of every node that has samples. ``read``: id of
        the row that each node waits for, int64[nodes]. Return the id of the row that completes when
        all nodes have finished."""
        forward, backward = self.seconds(step)
        node = np.flatnonzero(self.batches(step))
        ids = read[node]
        for phase, lengths in ((FORWARD, forward), (BACKWARD, backward)):
            ids = out.add(
                len(node),
                device=np.maximum(node - 1, 0),
                resource=np.where(node == HOST_NODE, plan_rows.ACCELERATOR, plan_rows.ISP),
                phase=phase,
                array_ps=lengths[node],
                after0=ids,
            )
        return out.join(ids, SYNCHRONISE)

    @cached_property
    def exchange(self) -> ExchangePlan:
        """Plan of the gradient all-reduce between the nodes."""
        size = self.workload.gradient_bytes
        return ExchangePlan(self.cfg, self.options.allreduce, self.nodes - 1, size)

    def _update(self, out: Rows, arrived: np.ndarray) -> None:
        """Add the plan rows in which every node updates its weights. ``arrived``: for each node,
        the id of the row that delivers the summed gradient, int64[nodes]."""
        n_params = self.trace.n_params
        read = (len(self.kernel.states) + 2) * VALUE_BYTES * n_params
        out.one(
            resource=plan_rows.HOST_CPU,
            phase=UPDATE,
            array_ps=self._host_ps,
            after0=arrived[HOST_NODE],
        )
        out.add(
            self.nodes - 1,
            device=np.arange(self.nodes - 1),
            resource=plan_rows.ISP,
            phase=UPDATE,
            array_ps=self._isp_ps,
            bytes_in=read,
            bytes_out=read - VALUE_BYTES * n_params,  # all but the gradient is written back
            after0=arrived[HOST_NODE + 1 :],
        )

    @property
    def _host_ps(self) -> int:
        return host_cpu.update_ps(self.cfg, self.trace.n_params, self.kernel.bytes_per_param())

    @property
    def _isp_ps(self) -> int:
        n_params, traffic = self.trace.n_params, self.kernel.bytes_per_param()
        return isp_cores.update_ps(self.cfg, self.trace.op, self.coupled_decay, n_params, traffic)

    # --- work and closed form

    def work(self, steps: int) -> Work:
        # The published server power (STANNIS, DAC 2020; HyperTune) is
        # the average of a run that includes the exchange and the updates, so it is charged for
        # both, although the host's CPU waits for the tunnels most of that time.
        gradient = VALUE_BYTES * self.trace.n_params
        sizes = {
            "model gradient": MODEL_BYTES * self.trace.n_params,
            "gradient": gradient,
            "exchange": self.exchange.cost.host_dram_bytes,
            "states": (1 + len(self.kernel.states)) * gradient,
            "copy": 0,
            "weights": gradient,
            "model": MODEL_BYTES * self.trace.n_params,
        }
        always = ("samples arrive", "samples used", *statement.gradient_made(VALUE_BYTES))
        always = (*always, "exchange")
        updated = ("update", *statement.weights_sent(VALUE_BYTES))
        made: list[statement.HostPass] = []
        for step in range(steps):
            sizes["samples"] = self.trace.bytes_per_sample * self.batches(step)[HOST_NODE]
            names = always if self.trace.steps[step].skipped else (*always, *updated)
            made += statement.passes(names, sizes)
        return Work(host_dram=statement.total(made), host_updates=True, average_power=True)

    def bound(self, step: int) -> Bound:
        """Return the bound on the duration of the update stage: the time of the exchange by the
        cost model, plus the update time of the node that finishes last."""
        traffic = self.kernel.bytes_per_param() * self.trace.n_params
        engine = engine_s(self.cfg, self.trace.n_params, self.kernel.bytes_per_param())
        drive = {
            "ISP": self._isp_ps / PS_PER_S if engine is None else engine,
            "DRAM": traffic / self.cfg.dram.bandwidth_bytes_per_s,
        }
        times = self.exchange.cost
        where = max(drive, key=lambda name: drive[name])
        end = times.drives_s + drive[where]
        host = host_update_s(self.cfg, self.trace.n_params, self.kernel.bytes_per_param())
        if times.host_s + host > end:
            where, end = "host CPU", times.host_s + host
        if self.trace.steps[step].skipped:
            end = times.seconds
        local = end - times.seconds
        parts = [("synchronise", times.limited_by, times.seconds), ("update", where, local)]
        text = f"{parts_text(parts)}; {self.exchange.text}"
        bound = Bound(end, times.limited_by if times.seconds >= local else where, text)
        return bound.sharing(engine is None)
