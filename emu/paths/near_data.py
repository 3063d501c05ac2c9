"""NDPipe in one server: drives run the frozen layers, and the host trains the head.

Owns the order of the operations in a step. Every drive reads its samples and runs the frozen
layers. The features cross the link in FP16. The host computes forward and backward of the head, and
updates the head. The path simulates time, not values. Does not own the head
(ndpipe/trained_head.py), the reading of samples (data_parallel.py), or the event loop (engine/).
Source: NDPipe (ASPLOS 2024), FT-DMP with one run. The stores of the paper are servers; in this
path, the stores are the drives of the configuration, and the host is the Tuner. Not modeled:
several runs (ondie validate ndpipe models them), and the distribution of a new head, because
training does not need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar

import numpy as np

from ondie.emu.clock import ps_from_seconds
from ondie.emu.cluster.data_split import largest_remainder
from ondie.emu.compute import requirements, training
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.run.system import System
from ondie.emu.ndpipe.partition import FP16
from ondie.emu.ndpipe.trained_head import TrainedHead, trained_head
from ondie.emu.paths import statement
from ondie.emu.paths.base import BACKWARD, FORWARD, PHASES, SAMPLES, UPDATE, Rows
from ondie.emu.paths.closed_form import Bound, host_update_s
from ondie.emu.paths.data_parallel import Stannis
from ondie.emu.paths.layout.formats import MODEL_BYTES
from ondie.emu.paths.layout.regions import VALUE_BYTES
from ondie.emu.paths.statement import Work
from ondie.emu.units import plural
from ondie.traces import step_times


class NearData(Stannis):
    """Path in which the processors of N drives run the frozen layers of a network, and the host
    trains the head of the network."""

    name: ClassVar[str] = "ndpipe"
    title: ClassVar[str] = "frozen layers in N CSDs, head on the host"
    exchanges: ClassVar[bool] = False

    @cached_property
    def head(self) -> TrainedHead:
        """Head whose training the trace records. The trace must have a head; :meth:`missing` checks
        this."""
        found = trained_head(self.trace)
        assert isinstance(found, TrainedHead)
        return found

    @property
    def feature_bytes(self) -> int:
        """Size of the features of one sample, bytes."""
        return FP16 * self.head.inputs

    @property
    def global_batch(self) -> int:
        return self.trace.samples_per_step

    def batches(self, step: int) -> tuple[int, ...]:
        """Return the number of samples of each node in step ``step``: 0 for the host (the first
        node), and nearly equal numbers for the drives, which differ by at most 1."""
        drives = [1] * (self.nodes - 1)
        return (0, *largest_remainder(self.trace.steps[step].samples, drives).tolist())

    def frozen_s(self, step: int, samples: int) -> float:
        """Return the time (s) in which a drive runs the frozen layers over ``samples`` samples. The
        time is calculated from isp.flops_per_cycle if that is set. Otherwise it is the host's time
        divided by the training ratio of the drive."""
        macs = self.trace.macs_forward - self.head.macs
        if self.cfg.isp.flops_per_cycle:
            return step_times.seconds(macs, samples, training.drive_flop_per_s(self.cfg))
        record = self.trace.steps[step]
        host = record.forward_s * macs / self.trace.macs_forward / record.samples
        return host * samples / self.ratio

    def head_ps(self, step: int) -> tuple[int, int]:
        """Return the times (ps) of the head's forward and backward pass on the host. The forward
        time is the trace's forward time, multiplied by the head's fraction of the forward
        multiply-accumulates. The backward time is that of the trace, because only the head has a
        backward pass."""
        record = self.trace.steps[step]
        forward = record.forward_s * self.head.macs / self.trace.macs_forward
        return ps_from_seconds(forward), ps_from_seconds(record.backward_s)

    def notes(self) -> list[str]:
        samples = self.batches(0)[1:]
        few, many = min(samples), max(samples)
        each = f"{few}" if few == many else f"{few} to {many}"
        head, whole = self.head, self.trace.macs_forward
        return [
            f"timing only: {len(samples)} drives x {each} samples, {self.feature_bytes:,} bytes of "
            f"features per sample ({plural(head.vectors, 'vector')}); {head.macs / whole:.2%} of "
            "the forward multiply-accumulates are the head's, on the host"
        ]

    def missing(self) -> str | None:
        trace = self.trace
        found = trained_head(trace)
        if isinstance(found, str):
            return found
        if (
            wrong := requirements.no_cores(self.cfg, "run layers") or requirements.no_samples(trace)
        ) is not None:
            return wrong
        if trace.macs_forward <= found.macs:
            return (
                f"{trace.name} states {trace.macs_forward:,} multiply-accumulates of the forward "
                f"pass (macs_forward), of which the head has {found.macs:,}"
            )
        frozen = sum(each.size for each in trace.tensors if not each.trainable)
        layers, states = VALUE_BYTES * frozen, self._state_bytes
        return (
            requirements.no_times(trace, all)
            or requirements.no_speed(self.ratio)
            or requirements.no_dram(
                self.cfg,
                "dram.isp",
                f"{frozen:,} frozen parameters take {layers / 1e9:.4g} GB on every drive",
                layers,
            )
            or requirements.no_dram(
                self.cfg,
                "host.dram",
                f"weights, states and gradient of {trace.n_params:,} parameters of the head take "
                f"{states / 1e9:.4g} GB on the host",
                states,
            )
            or self._no_flash()
        )

    def system(self, payload: bool, timeline: int) -> System:
        return System(self.cfg, PHASES, payload=payload, timeline=timeline)

    def plan(self, step: int) -> Iterator[np.ndarray]:
        out = Rows(self._next)
        start = out.fence(SAMPLES)
        own, _ = self._device_samples(step)
        pages, _, steps = self._places
        arrived = []
        for dev in np.flatnonzero(own).tolist():
            count, lpn = int(own[dev]), int(step % steps * pages[dev])
            read = out.join(self._read(out, plan_rows.ISP_IO, dev, lpn, count, start), SAMPLES)
            made = out.one(
                device=dev, resource=plan_rows.ISP, phase=FORWARD, after0=read,
                array_ps=ps_from_seconds(self.frozen_s(step, count)),
                bytes_out=count * self.feature_bytes,
            )  # fmt: skip
            arrived.append(
                out.one(
                    device=dev,
                    resource=plan_rows.DMA_UP,
                    phase=FORWARD,
                    after0=made,
                    bytes_out=count * self.feature_bytes,
                )  # fmt: skip
            )
            if out.full():
                yield out.take()
        row = out.join(np.array(arrived), FORWARD)
        for phase, length in zip((FORWARD, BACKWARD), self.head_ps(step), strict=True):
            row = out.one(
                resource=plan_rows.ACCELERATOR, phase=phase, array_ps=length, after0=row
            )  # fmt: skip
        if not self.trace.steps[step].skipped:
            out.one(resource=plan_rows.HOST_CPU, phase=UPDATE, array_ps=self._host_ps, after0=row)
        yield out.take()
        self._next = out.next

    def work(self, steps: int) -> Work:
        gradient = VALUE_BYTES * self.trace.n_params
        sizes = {
            "model gradient": MODEL_BYTES * self.trace.n_params,
            "gradient": gradient,
            "states": (1 + len(self.kernel.states)) * gradient,
            "copy": 0,
            "weights": gradient,
            "model": MODEL_BYTES * self.trace.n_params,
        }
        always = ("samples arrive", "samples used", *statement.gradient_made(VALUE_BYTES))
        updated = ("update", *statement.weights_sent(VALUE_BYTES))
        made: list[statement.HostPass] = []
        for step in range(steps):
            sizes["samples"] = self.feature_bytes * sum(self.batches(step))
            names = always if self.trace.steps[step].skipped else (*always, *updated)
            made += statement.passes(names, sizes)
        return Work(host_dram=statement.total(made), host_updates=True)

    def bound(self, step: int) -> Bound:
        """Return the bound on the duration of the update stage: the time in which the host updates
        the head."""
        if self.trace.steps[step].skipped:
            return Bound(0.0, "host CPU", "skipped step")
        params, traffic = self.trace.n_params, self.kernel.bytes_per_param()
        seconds = host_update_s(self.cfg, params, traffic)
        slow = max(self.frozen_s(step, count) for count in self.batches(step)[1:])
        text = (
            f"{params:,} parameters of the head on the host; before this update, the drives "
            f"run the frozen layers for {slow:.4g} s"
        )
        return Bound(seconds, "host CPU", text)
