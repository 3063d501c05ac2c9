"""Base class of the paths (prepare, plan, finish) and the builder of plan rows.

Owns the interface of a path, the phases, and the rows of forward and backward. Does not own time:
a path names resources, bytes and dependencies, and the engine (engine/) computes times.
Source: this project's plan-row contract (engine/core/plan_rows.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ondie.emu.clock import ps_from_seconds
from ondie.emu.cluster import allocation
from ondie.emu.cluster.allocation import GIVEN, check_batches, check_cores_taken
from ondie.emu.cluster.collectives import allreduce
from ondie.emu.cluster.load.slowdowns import slowdown
from ondie.emu.config.config import Config
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.run.system import System
from ondie.emu.paths.closed_form import Bound
from ondie.emu.paths.layout import formats
from ondie.emu.paths.offload.options import Offload, Shares
from ondie.emu.paths.optimizer_step import Arithmetic
from ondie.emu.paths.statement import Share, Work
from ondie.emu.units import InputError
from ondie.traces import Trace

PHASES = (
    "forward", "backward", "gradients", "update", "weights_up", "synchronise", "samples",
    "recovery", "checkpoint", "levelling",
)  # fmt: skip
(
    FORWARD, BACKWARD, GRADIENTS, UPDATE, WEIGHTS_UP, SYNCHRONISE, SAMPLES, RECOVERY,
    CHECKPOINT, LEVELLING,
) = range(len(PHASES))  # fmt: skip
BACKWARD_SEGMENTS = 64
"""Number of segments of the backward pass. The gradients of a segment are sent when the segment is
complete."""

SAME = "same"
BATCHES = (SAME, *allocation.BATCHES)
"""Values of option --batch: rules for the batch sizes of path stannis. If the user gives the batch
size of the drives, option ``batch`` is set to GIVEN instead."""

NO_PROCESSOR = (
    "no in-storage processor (isp.kind = none); set isp.kind and its keys, or use --device csd-pe"
)
"""Reason that a path reports if it updates the weights in the drive's controller but the drive has
no processor."""


class Unavailable(InputError):
    """Error: this device or model cannot run the path. The message states the reason."""


class Rows:
    """Builder of plan rows with consecutive ids, starting from id ``first``."""

    def __init__(self, first: int = 0) -> None:
        self.next = first
        self._parts: list[np.ndarray] = []
        self._held = 0

    def add(self, count: int = 1, **columns: Any) -> np.ndarray:
        """Append ``count`` plan rows and return their ids, int64[count]. ``columns``: values of the
        plan columns, each a scalar or an array of length ``count``."""
        part = np.zeros(count, plan_rows.PLAN)
        ids = np.arange(self.next, self.next + count)
        part["id"] = ids
        part["after0"] = part["after1"] = -1
        for name, value in columns.items():
            part[name] = value
        self.next += count
        self._parts.append(part)
        self._held += count
        return ids

    def one(self, **columns: Any) -> int:
        """Append one plan row and return its id; ``columns`` as in :meth:`add`."""
        return int(self.add(1, **columns)[0])

    def join(self, ids: np.ndarray, phase: int) -> int:
        """Append a chain of plan rows that each wait for two rows. Return the id of the last row in
        the chain; this row completes when all rows in ``ids`` are complete."""
        count = max(len(ids) - 1, 1)
        first = self.next
        after0 = np.arange(first - 1, first + count - 1)
        after0[0] = ids[0]
        after1 = ids[1:] if len(ids) > 1 else np.array([-1])
        return int(
            self.add(count, resource=plan_rows.JOIN, phase=phase, after0=after0, after1=after1)[-1]
        )

    def fence(self, phase: int) -> int:
        """Append a plan row that completes when every row before it is complete; return its id."""
        return self.one(resource=plan_rows.FENCE, phase=phase)

    def full(self) -> bool:
        """Return True if at least MAX_CHUNK rows have been collected. The caller should then yield
        the rows."""
        return self._held >= plan_rows.MAX_CHUNK

    def take(self) -> np.ndarray:
        """Return the rows collected so far and clear the builder. Later rows continue the
        numbering."""
        out = np.concatenate(self._parts) if self._parts else np.zeros(0, plan_rows.PLAN)
        self._parts = []
        self._held = 0
        return out


@dataclass(frozen=True)
class Options:
    """User options of the paths. If only one path uses an option, the description of the option
    begins with the name of this path, such as "stannis:"."""

    weights_up: str = "fp32"
    """Number format of the weights sent to the host: "fp32" or "fp16". Must be "fp32" if ``format``
    already sends 16-bit weights."""
    form: str = "canonical"
    format: str = "fp32"
    """Storage format of weights, gradients and states: one of paths.layout.formats.FORMATS."""
    batch: str = "same"
    """stannis: rule for the batch sizes. "same": global batch of the trace. "paper": published
    batches. "tuned": batches by Algorithm 1 of STANNIS. "given": ``drive_batch`` for each drive,
    and ``host_batch`` for the host. If ``host_batch`` is None, the host's batch is tuned to that of
    the drives."""
    host_batch: int | None = None
    """stannis: batch size of the host (samples per step) if ``batch`` is "given"; otherwise the
    maximum batch size of the host, with None for the global batch of the trace."""
    drive_batch: int | None = None
    """stannis: batch size of every drive (samples per step) if ``batch`` is "given", else None."""
    cores_taken: float = 0.0
    """stannis: number of the host's cores that other programs occupy during training."""
    slowdown: str | None = None
    """stannis: model of the host's speed on the cores that ``cores_taken`` leaves free
    (cluster/load/slowdowns.py). None selects the default model for the configured drive."""
    allreduce: str = "ring"
    """stannis: algorithm of the gradient all-reduce: "ring", "tree" or "star"."""
    offload: Offload = field(default_factory=Offload)
    """host_offload: options of DeepSpeed's offload."""
    shares: Shares | None = None
    """host_offload, if a piece of a model is simulated: shares of the whole model that are on NVMe.
    These shares replace the options that count whole sub-groups or tensors."""
    compression: float = 2.0
    """smart_comp: size of the compressed gradient (indices and values) in percent of the
    uncompressed 4 B per parameter."""
    seed: int = 0
    """Seed of the random events in the drives: bit errors, failed programs and failed erases."""
    pairs: int = 0
    """Number of NVMe queue pairs for commands of other applications during the step."""
    forward_s: float | None = None
    backward_s: float | None = None
    """Duration of the backward pass per step, seconds; ``forward_s`` is that of the forward pass.
    None selects the duration in the trace."""
    step_times: str | None = None
    """Rule for the times of the forward and backward pass: one of compute.training.RULES. None
    selects "accelerator" if the configuration states the accelerator's rate and the trace states
    its multiply-accumulates, otherwise "trace"."""

    def __post_init__(self) -> None:
        self._check_cluster()
        if formats.checked(self.format) == "fp32":
            return
        if self.form != "canonical":
            raise InputError(
                f'format = "{self.format}": must be "fp32" with form = "{self.form}"; other '
                'formats require form = "canonical"'
            )
        if self.weights_up != "fp32" and self.format not in WIDE_UP:
            raise InputError(
                f'weights_up = "{self.weights_up}" has no effect, because format = '
                f'"{self.format}" already sends 16-bit weights; remove weights_up'
            )

    def _check_cluster(self) -> None:
        """Raise InputError if the options of path stannis are out of range or contradict each
        other."""
        check_batches({"host": self.host_batch, "drive": self.drive_batch}, "{}_batch =")
        if self.batch == GIVEN and self.drive_batch is None:
            raise InputError(
                f'batch = "{GIVEN}" requires drive_batch; set it, for example drive_batch = 25'
            )
        if self.batch not in (*BATCHES, GIVEN):
            raise InputError(f'batch = "{self.batch}": use {quoted(*BATCHES, GIVEN)}')
        if self.drive_batch is not None and self.batch != GIVEN:
            raise InputError(
                f'drive_batch = {self.drive_batch} requires batch = "{GIVEN}", not "{self.batch}"'
            )
        if self.allreduce not in allreduce.ALGORITHMS:
            kinds = quoted(*allreduce.ALGORITHMS)
            raise InputError(f'allreduce = "{self.allreduce}": use {kinds}')
        check_cores_taken(self.cores_taken, "cores_taken =")
        if self.slowdown is not None:
            slowdown(self.slowdown)  # raises InputError


def quoted(*names: str) -> str:
    """Return ``names`` as text, each in double quotes, separated by commas and "or": "a", "b" or
    "c"."""
    *first, last = (f'"{name}"' for name in names)
    return f"{', '.join(first)} or {last}"


WIDE_UP = tuple(f for f in formats.FORMATS if formats.Stored(f, "adam").shown.itemsize == 4)
"""Formats whose weights are sent to the host in FP32."""


@dataclass
class Path(ABC):
    """Base class: one update strategy for one configuration and one trace."""

    cfg: Config
    trace: Trace
    options: Options = field(default_factory=Options)

    name: ClassVar[str]
    title: ClassVar[str]
    updates_weights: ClassVar[bool] = True
    """True if the path moves and updates stored bytes, so that the final weights can be compared
    with the reference."""
    lossless: ClassVar[bool] = True
    """True if the path applies the gradients as recorded, so that its weights equal the recorded
    weights."""
    exchanges: ClassVar[bool] = False
    """True if the nodes exchange gradients. They do so even in a step whose update is skipped."""

    def __post_init__(self) -> None:
        reason = self.missing()
        if reason:
            raise Unavailable(f"{self.name}: {reason}")
        self.check_format()

    @abstractmethod
    def missing(self) -> str | None:
        """Return the reason why this device or model cannot run the path, or None if it can run the
        path."""

    def unstorable(self) -> str | None:
        """Return the reason why the path cannot store its vectors in the configured format, or None
        if it can store them."""
        return None if self.options.format == "fp32" else "only fp32 is supported"

    def check_format(self) -> None:
        """Raise Unavailable if the path cannot store its vectors in the configured format."""
        reason = self.unstorable()
        if reason:
            raise Unavailable(f"{self.name}: format {self.options.format}: {reason}")

    @abstractmethod
    def system(self, payload: bool, timeline: int) -> System:
        """Return a new emulated system (host and drives) that can run this path. ``payload``: True
        to store the bytes of pages. ``timeline``: maximum number of intervals in the timeline."""

    @abstractmethod
    def prepare(self, system: System, arithmetic: Arithmetic | None) -> None:
        """Place weights and states on flash without simulated time. If ``arithmetic`` is given,
        also store their bytes."""

    @abstractmethod
    def plan(self, step: int) -> Iterator[np.ndarray]:
        """Yield the plan rows of one training step, in chunks."""

    @abstractmethod
    def finish(self) -> np.ndarray | None:
        """Return the weights stored in the flash pages after the run, float32[n_params], or None if
        the run has no payload or the path keeps no weights on flash."""

    @property
    def beside_cpu(self) -> tuple[bool, bool]:
        """(reads, writes): True if the reads, or the writes, of the update stage overlap the
        computation on the host CPU."""
        return False, False

    def part(self) -> None:
        """Release the payload (the emulated bytes). Call this after the result of the run has been
        read."""
        return

    @abstractmethod
    def bound(self, step: int) -> Bound:
        """Return the closed-form bound on the duration of the update stage of step ``step``,
        computed from the configuration alone."""

    @abstractmethod
    def work(self, steps: int) -> Work:
        """Return the work of ``steps`` steps that the engine's counters do not contain (PE
        arithmetic, passes over host DRAM)."""

    def applied(self, steps: int) -> int:
        """Return the number of steps, among the first ``steps``, that update the weights. The other
        steps are skipped."""
        return sum(not step.skipped for step in self.trace.steps[:steps])

    def reference(self, arithmetic: Arithmetic, steps: int) -> np.ndarray:
        """Return the weights after ``steps`` steps with the gradients that the path applies,
        computed outside the emulator, float32[n_params]."""
        return arithmetic.reference(steps)

    @property
    def heading(self) -> str:
        """Title of the path, including the options in use, for tables."""
        return self.title

    def notes(self) -> list[str]:
        """Return the notes that are printed with the path's row in the results."""
        return []

    def share(self, steps: int) -> Share | None:
        """Return the distribution of the page programs of ``steps`` steps over the blocks that only
        this path uses, or None if the path has no such blocks."""
        return None

    def free_page(self) -> int:
        """Return the first logical page of a device's conventional namespace that the path does not
        use."""
        return 0

    def delivered(self) -> np.ndarray | None:
        """Return the weights that arrived at the host, [n_params], or None if the path sends no
        weights. Weights that were never sent are NaN."""
        return None

    @property
    def carries(self) -> bool:
        """True if the path moves the bytes of a recorded trace through the emulated pages."""
        return self.updates_weights

    @property
    def coupled_decay(self) -> bool:
        """True if the optimizer of any step adds weight decay to the gradient."""
        return self.trace.op != "adamw" and any(
            hyper.get("weight_decay", 0.0) for step in self.trace.steps for hyper in step.hyper
        )

    @abstractmethod
    def begin_step(self, step: int) -> None:
        """Provide the gradient of step ``step`` to the payload (the emulated bytes). Do nothing if
        the run has no payload."""

    def training_rows(self, out: Rows, step: int, after: int) -> np.ndarray:
        """Add the plan rows of forward and backward on the accelerator, after the row with id
        ``after``. Return the row ids of the backward segments, int64[BACKWARD_SEGMENTS]."""
        step_record = self.trace.steps[step]
        forward = out.one(
            resource=plan_rows.ACCELERATOR,
            phase=FORWARD,
            array_ps=ps_from_seconds(step_record.forward_s),
            after0=after,
        )
        total = ps_from_seconds(step_record.backward_s)
        n_segments = BACKWARD_SEGMENTS
        cuts = total * np.arange(n_segments + 1, dtype=object) // n_segments
        lengths = np.array([int(stop - start) for start, stop in zip(cuts, cuts[1:], strict=False)])
        first = out.next
        segments = out.add(
            n_segments,
            resource=plan_rows.ACCELERATOR,
            phase=BACKWARD,
            array_ps=lengths,
            after0=np.arange(first - 1, first - 1 + n_segments),
        )
        assert segments[0] == forward + 1
        return segments

    def ready_segment(self, step: int, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Return, for each range of parameters [start, stop), the backward segment after which
        its gradients are complete, int64[n].

        The segment is determined by the recorded ready times of the tensors' gradients. Without
        recorded times, layers finish in reverse order at an even rate.
        """
        step_record = self.trace.steps[step]
        segments = BACKWARD_SEGMENTS
        if step_record.ready_s is None or not step_record.backward_s:
            share = 1.0 - start / self.trace.n_params
            return np.clip(np.ceil(share * segments).astype(np.int64) - 1, 0, segments - 1)
        times = {
            id(tensor): ready_s
            for tensor, ready_s in zip(self.trace.tensors, step_record.ready_s, strict=True)
        }
        tensors = self.trace.trainable
        ready = np.array([times[id(tensor)] for tensor in tensors])
        ready = np.where(np.isfinite(ready), ready, step_record.backward_s)
        offsets = np.array([tensor.offset for tensor in tensors])
        ends = offsets + np.array([tensor.size for tensor in tensors])
        lo = np.searchsorted(ends, start, "right")
        hi = np.maximum(np.searchsorted(offsets, stop, "left"), lo + 1)
        last = np.array([ready[low:high].max() for low, high in zip(lo, hi, strict=True)])
        return np.clip(
            np.ceil(last / step_record.backward_s * segments).astype(np.int64) - 1, 0, segments - 1
        )
