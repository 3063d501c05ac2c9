"""A torch optimizer whose weights and states are stored in the pages of an emulated drive.

This module owns the exchange of gradients and weights between a model and the drive. It does not
own the update paths, their time or their energy (paths, analysis), or the arithmetic
(ondie.kernels).
Source: this project. Weights reach the model only through the emulated pages.

    optimizer = CSDOptimizer(model.parameters(), "adamw", device="newport", path="in_storage",
                             lr=1e-3, betas=(0.9, 0.999), eps=1e-8)

Each step passes the gradients to the path, which simulates every page and command of the update
stage. The step then writes the new weights into the model. If the path has a weights-up phase,
these are the weights that the drive sent, otherwise the weights in the drive's pages. The caller
runs forward and backward of the model, and states their duration on the accelerator. The computer
that runs this program is not the modeled accelerator, so the durations cannot be measured.

If states are stored as 8-bit codes, each tensor starts a new block of codes, as in KernelOptimizer.
Up to 255 parameters of padding follow a tensor; their weights and gradients are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ondie.emu.analysis.compare import Run
from ondie.emu.analysis.energy import Energy
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.analysis.path_choice import PATHS
from ondie.emu.analysis.power_loss.cut import Recovery
from ondie.emu.clock import LONGEST_S, check_seconds
from ondie.emu.config.config import Config, configuration
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.core.totals import sum_counters
from ondie.emu.paths.base import Options
from ondie.emu.paths.layout.formats import Stored
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.paths.optimizer_step import Arithmetic
from ondie.emu.units import InputError, known_names
from ondie.kernels import FORMATS, OPS, KernelError
from ondie.kernels.formats import BLOCK
from ondie.kernels.torch_optimizer import KernelOptimizer, array_of, tensor_of
from ondie.traces import Memory, Step, Trace, flat_tensors

UPDATING = ("host_offload", "host_offload_pipelined", "in_storage", "on_die")
"""Names of the update paths that CSDOptimizer accepts. These paths store weights and states on
flash.
"""


class Live(Trace):
    """Trace of the current step of a model in training.

    Gradients may contain NaN or infinity. The training loop must handle such gradients, as with any
    other optimizer.
    """

    def gradient(self, i: int) -> np.ndarray:
        """Return the gradient of step ``i``, float32[n_params], without a check for NaN."""
        return self._sized(self.source.gradient(self.step(i).index), f"gradient of step {i}")


class CSDOptimizer(KernelOptimizer):
    """Optimizer that updates float32 parameters on the CPU through a path of an emulated drive.

    ``op``, ``form``, ``hyper``: as in KernelOptimizer. ``format``: storage format of weights and
    states on the drive, a format of KernelOptimizer or "bf16_master". ``device``: name or file of a
    preset, or a Config. ``settings``: changes to the preset, such as "ftl.gc_policy=fifo".
    ``path``: one of UPDATING. ``forward_s``, ``backward_s``: seconds per step on the accelerator.
    ``samples``: samples per step. ``seed``: seed of random events in the drive and of stochastic
    rounding.

    The first step creates and fills the drive, in zero simulated time. Every parameter must have a
    gradient in every step. Raises InputError for an invalid argument or an invalid combination of
    device, model, path and format. Raises KernelError for an unknown ``op``, and for invalid
    hyperparameters or parameters.
    """

    def __init__(
        self,
        params: Iterable[Any],
        op: str = "adamw",
        *,
        device: str | Config = "optimstore-r1",
        path: str = "on_die",
        settings: Sequence[str] = (),
        form: str = "canonical",
        format: str = "fp32",
        forward_s: float = 0.0,
        backward_s: float = 0.0,
        samples: int = 1,
        seed: int = 0,
        **hyper: Any,
    ) -> None:
        if path not in UPDATING:
            raise InputError(f"path = {path!r}: unknown; {known_names(path, UPDATING)}")
        if op not in OPS:
            raise KernelError(f"op = {op!r}: must be one of {', '.join(OPS)}")
        self.layout = Stored(format, op)
        own = format if format in FORMATS else "fp32"  # bf16_master has the states of fp32
        for name in {"backend", "isa", "threads"} & hyper.keys():
            raise KernelError(
                f"{name}: not supported, because the drive computes the update; remove the argument"
            )
        self.cfg = configuration(device, settings)
        for name, value in (("forward_s", forward_s), ("backward_s", backward_s)):
            if not isinstance(value, int | float) or not 0 <= value <= LONGEST_S:
                raise InputError(f"{name} = {value!r}: must be from 0 to {LONGEST_S:,} seconds")
        for name, value, least, most in (
            ("samples", samples, 1, 1 << 62),
            ("seed", seed, 0, 1 << 62),
        ):
            if type(value) is not int or not least <= value <= most:
                raise InputError(
                    f"{name} = {value!r}: must be a whole number from {least} to {most}"
                )
        self.path_name, self._seconds = path, (float(forward_s), float(backward_s))
        self._samples, self._drive_seed = samples, seed
        self._run: Run | None = None
        self._steps: list[Step] = []
        self._cut_after: int | None = None
        super().__init__(params, op, form=form, format=own, seed=seed & 0xFFFFFFFF, **hyper)
        # A path that this device or model cannot run is refused here, not at the first step.
        PATHS[path](self.cfg, self._trace(self._described(), Memory({})), self._options)

    def __getstate__(self) -> dict[str, Any]:
        raise KernelError("CSDOptimizer cannot be copied or pickled; use state_dict()")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group as torch does. Raises KernelError after the first step."""
        if self._run is not None:
            raise KernelError(
                "a parameter group cannot be added after the first step; add it before step()"
            )
        super().add_param_group(param_group)

    @property
    def held(self) -> list[torch.Tensor]:
        """All parameters of the model, in the order of their storage on the drive."""
        return [param for group in self.param_groups for param in group["params"]]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Simulate a step and write the new weights into the parameters.

        ``closure``: function that recomputes the loss and the gradients. Return the loss of
        ``closure``, or None if no closure is given. Raises KernelError if a gradient is missing, if
        a parameter is not a dense float32 tensor on the CPU, or if the step counts of the
        parameters differ. Raises InputError if the simulated time exceeds clock.LONGEST_S.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, param in enumerate(self.held):
            if param.grad is None:
                raise KernelError(
                    f"parameter {number} of shape {tuple(param.shape)} has no gradient; every "
                    "parameter must have a gradient in every step"
                )
            self._check(param)
            if param.dtype != torch.float32:
                raise KernelError(f"parameter {number} is {param.dtype}; must be torch.float32")
        check_seconds(
            self.seconds + sum(self._seconds),
            f"the steps so far take {self.seconds:.3g} s of simulated time",
        )  # fmt: skip
        gradient = self._flat([param.grad for param in self.held])
        step = self._described()
        if self._run is None:
            self._run = self._made(step, gradient)
        else:
            trace = self._run.path.trace
            self._set(replace(trace, steps=(step,), source=Memory({0: gradient})))
        cut_after, self._cut_after = self._cut_after, None
        if not self._run.step(0, cut_after):
            self._run.recover()
            self._run.resume()
        self._steps.append(step)
        self._take_back(self._run)
        return loss

    def _described(self) -> Step:
        """Return the trace's record of the next step: hyperparameters, samples and times."""
        return Step(
            index=0, loss=None, samples=self._samples, forward_s=self._seconds[0],
            backward_s=self._seconds[1], optimizer_s=0.0, ready_s=None,
            hyper=tuple(self._hyper(group) for group in self.param_groups),
            count=self._counted() + 1,
        )  # fmt: skip

    def _counted(self) -> int:
        """Return the number of update steps already applied to the states. For loaded states, this
        includes the steps before they were saved. Raises KernelError if the number is not equal for
        all parameters.
        """
        found = {int(self.state.get(param, {}).get("step", 0)) for param in self.held}
        if len(found) > 1:
            raise KernelError(f"states: step counts {found}; must be equal for all parameters")
        return found.pop()

    def _made(self, step: Step, gradient: np.ndarray) -> Run:
        """Return a run of the path on a new drive that is filled with the current weights and
        states.

        ``step`` and ``gradient`` (float32[n_params]) are those of the first step.
        """
        weights = self._flat(self.held)
        trace = self._trace(step, Memory({0: gradient}, {"initial": weights}))
        given = self._initial(weights)
        return Run(self.path_name, self.cfg, trace, self._options, payload=True, initial=given)

    @property
    def _options(self) -> Options:
        return Options(form=self.kernel.form, format=self.layout.name, seed=self._drive_seed)

    def _trace(self, step: Step, source: Memory) -> Live:
        """Return a trace with the single step ``step`` and the tensors of the model. ``source``:
        source of the weights and gradients.
        """
        groups = [
            (param, i) for i, group in enumerate(self.param_groups) for param in group["params"]
        ]
        entries = []
        for number, (param, i) in enumerate(groups):
            entries.append((f"{number}", tuple(param.shape), i, -1))
            if behind := -param.numel() % self._block:
                entries.append((f"padding behind {number}", (behind,), i, -1))
        return Live(
            name="a model in training", payload="recorded", timing_source="recorded",
            op=self.kernel.op, form=self.kernel.form, gradient_dtype="float32",
            groups=len(self.param_groups), tensors=flat_tensors(entries), steps=(step,),
            samples_per_step=self._samples, bytes_per_sample=0, macs_forward=0, macs_backward=0,
            dataset_samples=0, private_samples=0, source=source,
        )  # fmt: skip

    @property
    def _block(self) -> int:
        """Alignment of each tensor in the drive's layout, in parameters."""
        return BLOCK if self.layout.format.codes else 1

    def _spans(self) -> Iterator[tuple[torch.Tensor, int, int]]:
        """Yield each parameter with its start and end position (end exclusive) in the drive's
        layout.
        """
        at = 0
        for param in self.held:
            yield param, at, at + param.numel()
            at += -(-param.numel() // self._block) * self._block

    def _flat(self, tensors: Sequence[torch.Tensor | None]) -> np.ndarray:
        """Return ``tensors`` as one vector in the drive's layout, float32[n_params], with padding
        0.
        """
        spans = list(self._spans())
        end = -(-spans[-1][2] // self._block) * self._block
        out = np.zeros(end, np.float32)
        for tensor, (_, start, stop) in zip(tensors, spans, strict=True):
            assert tensor is not None
            out[start:stop] = tensor.detach().reshape(-1).to(torch.float32).numpy()
        return out

    def _initial(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Return the arrays with which the drive is filled, by slot ("w" and the states).

        ``weights``: float32[n_params]. States that the optimizer does not have yet are 0.
        """
        slots = {slot.name: slot for slot in self.layout.slots if slot.name != "g"}
        zeros = dict(zip(self.kernel.states, self.kernel.zeros(len(weights)), strict=True))
        found = {"w": weights.copy()} | zeros
        for param, start, stop in self._spans():
            held = self.state.get(param, {})
            for name in found.keys() & held.keys():
                found[name][start // slots[name].share : slots[name].size(stop)] = array_of(
                    held[name]
                )
        found["w"] = Arithmetic.cast(found["w"], slots["w"].dtype)
        return found

    def _set(self, trace: Trace) -> None:
        """Replace the trace of the run with ``trace``, another trace of the same model."""
        assert self._run is not None and self._run.arithmetic is not None
        self._run.path.trace = self._run.arithmetic.trace = trace

    def _take_back(self, run: Run) -> None:
        """Copy the weights from the drive of ``run`` into the parameters of the model."""
        assert run.arithmetic is not None
        weights = run.path.delivered()
        if weights is None:
            stored = run.path.finish()
            assert stored is not None
            weights = run.arithmetic.shown(stored)
        wide = run.arithmetic.wide(weights)
        for param, start, stop in self._spans():
            param.copy_(torch.from_numpy(wide[start:stop]).view(param.shape))
            self.state[param]["step"] = self._steps[-1].count
        torch.autograd.graph.increment_version(self.held)

    def cut_power(self, after_events: int) -> None:
        """Cut the drive's power after ``after_events`` events of the next step, then restore the
        power.

        The step is recovered and resumed (see :attr:`recoveries`). The power is not cut if the step
        has fewer events. Raises InputError if the path is not on_die, the only path that supports
        power cuts, or if ``after_events`` is not a whole number of at least 1.
        """
        if self.path_name != OnDie.name:
            raise InputError(f"path = {self.path_name!r}: power cuts require path = {OnDie.name!r}")
        if type(after_events) is not int or after_events < 1:
            raise InputError(f"after_events = {after_events!r}: must be a whole number, at least 1")
        self._cut_after = after_events

    @property
    def recoveries(self) -> tuple[Recovery, ...]:
        """Recoveries from the power cuts so far, with the cost of each, in chronological order."""
        return () if self._run is None else tuple(self._run.recoveries)

    @property
    def seconds(self) -> float:
        """Simulated time so far (s)."""
        return 0.0 if self._run is None else self._run.system.now / 1e12

    def account(self) -> tuple[Ledger, Energy]:
        """Return (ledger, energy) of all steps so far. The ledger contains time by phase, bytes,
        flash operations and wear.

        Raises KernelError before the first step.
        """
        if self._run is None:
            raise KernelError("no step has run yet; call step() first")
        steps = tuple(replace(step, index=i) for i, step in enumerate(self._steps))
        self._set(replace(self._run.path.trace, steps=steps))
        _, book, _, joules = self._run.account()
        return book, joules

    @property
    def run(self) -> Run:
        """The run of the update path on the drive: the object that executes the steps. Raises
        KernelError if no step has run yet."""
        if self._run is None:
            raise KernelError("no step has run yet; call step() first")
        return self._run

    @property
    def steps(self) -> int:
        """Number of steps taken so far."""
        return len(self._steps)

    @property
    def met(self) -> bool:
        """True if a die register has delivered a NaN or an infinity to a processing element or to
        the host.

        The values are checked before the NaN comparator changes them. Always False with paths other
        than on_die.
        """
        payload = getattr(self._run.path, "payload", None) if self._run is not None else None
        return bool(getattr(payload, "met", False))

    def counters(self) -> dict[str, int]:
        """Return the drive's counters (engine/core/counters.py); all 0 before the first step."""
        if self._run is None:
            return dict.fromkeys(COUNTERS, 0)
        return sum_counters(self._run.system.arrays.count)

    def state_dict(self) -> dict[str, Any]:
        """Return KernelOptimizer's state dictionary, with the storage format added under the key
        "format". Reading the states takes no simulated time.
        """
        if self._run is not None:
            kept = ("w",) if self._shown != "w" else ()  # weights wider than the model's
            slots = {s.name: s for s in self.layout.slots}
            for name in (*self.kernel.states, *kept):
                vector, slot = self._stored(name), slots[name]
                for param, start, stop in self._spans():
                    part = vector[start // slot.share : slot.size(stop)].copy()
                    self.state[param][name] = tensor_of(part)
        return super().state_dict() | {"format": self.layout.name}

    def _stored(self, name: str) -> np.ndarray:
        """Return the vector in slot ``name`` with the values and dtype that are stored in the
        drive's pages.
        """
        payload = getattr(self._run.path, "payload", None) if self._run is not None else None
        assert payload is not None
        found: np.ndarray = payload.stored(name)
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load states as KernelOptimizer does. The first step fills the drive with these states.

        Raises KernelError if it is called after the first step, if the states have another storage
        format, or if they are states of another kernel.
        """
        if self._run is not None:
            raise KernelError("states cannot be loaded after the first step; load them before")
        format = state_dict.get("format", self.layout.name)
        if format != self.layout.name:
            raise KernelError(
                f"states are in format {format!r}; must be in format {self.layout.name!r}"
            )
        super().load_state_dict(state_dict | {"format": self.kernel.format})
