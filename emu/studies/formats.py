"""Training of a language model with each number format of the update: `ondie study formats`.

Owns the variants, their tolerances relative to FP32, the rows and the figure. Does not own the
model and its training loop (ondie.traces.scripts.gpt, which also recorded the trace gpt-small) or
the optimizer (ondie.kernels.torch_optimizer).
Source: this project.

Training is a closed loop: gradients are computed from the weights that the variant has updated.
Batches and initial weights depend only on the seed, not on the format.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ondie.emu.analysis.row import CHECK, SHOWN, Progress, Row
from ondie.emu.analysis.workers import pool
from ondie.emu.units import InputError
from ondie.kernels.torch_optimizer import KernelOptimizer
from ondie.traces.scripts import gpt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS, SEEDS = 1000, (1, 2, 3)
LAST = 10  # the loss at the end is the mean of the last tenth of the steps
PLAIN = "fp32"
APART = 0.04
"""Largest allowed relative difference between the final losses of two training runs that differ
mostly in rounding.

Training is chaotic: the final losses of FP32 with torch's rounding (gpt.train(None)) and of FP32
with this project's rounding differed by 1.9 %, 1.2 % and 1.3 % for the seeds 1, 2 and 3. The
tolerance is twice the largest of these differences. A row within the tolerance shows only that the
format does not prevent training.
"""


@dataclass(frozen=True)
class Variant:
    """Variant of the update: optimizer operation, number format and number of Newton steps.

    ``newton``: number of Newton steps of the inverse square root; None for operations without this
    parameter. ``distance``: largest allowed relative difference between the final loss of the
    variant and that of FP32; None if the difference is not checked.
    """

    op: str = "adamw"
    format: str = "fp32"
    newton: int | None = None
    distance: float | None = None


VARIANTS = {
    PLAIN: Variant(),
    "fp16": Variant(format="fp16", distance=APART),
    "bf16": Variant(format="bf16", distance=APART),
    "bf16_all": Variant(format="bf16_all"),
    "bf16_stochastic": Variant(format="bf16_stochastic", distance=APART),
    "int8_dynamic": Variant(format="int8_dynamic", distance=APART),
    "int8_linear": Variant(format="int8_linear", distance=APART),
    "on die, no Newton step": Variant("adamw_on_die", newton=0, distance=APART),
    "on die, 1 Newton step": Variant("adamw_on_die", newton=1, distance=APART),
    "on die, 2 Newton steps": Variant("adamw_on_die", newton=2, distance=APART),
}
"""Variants of the update by name. The operation adamw_on_die takes ``newton``, the number of Newton
steps, in place of eps."""

Losses = Mapping[tuple[str, int], Sequence[float]]
"""Loss of every step (nat/token) of each training run, by (variant, seed)."""


def train(name: str, seed: int, steps: int = STEPS) -> list[float]:
    """Train the small GPT with the variant ``name``, and return the loss of every step (nat/token).

    All losses after the first NaN are also NaN.
    """
    variant = VARIANTS[name]

    def update(groups: Any, **hyper: Any) -> KernelOptimizer:
        if variant.newton is not None:
            del hyper["eps"]
            hyper["newton"] = variant.newton
        return KernelOptimizer(groups, variant.op, format=variant.format, seed=seed, **hyper)

    found = gpt.train(update, steps, seed).losses
    return found + [math.nan] * (steps - len(found))


def losses(
    names: Sequence[str], seeds: Sequence[int], steps: int, jobs: int, progress: Progress = None
) -> dict[tuple[str, int], list[float]]:
    """Train every variant with every seed, and return the loss of every step (nat/token) by
    (variant, seed).

    ``jobs``: largest number of worker processes, each of which executes one training run at a time.
    Raises InputError if a process was killed. All workers are terminated on an error or interrupt.
    """
    wanted = [(name, seed, steps) for seed in seeds for name in names]
    found: dict[tuple[str, int], list[float]] = {}
    with pool("formats", min(jobs, len(wanted))) as run:
        for (name, seed, _), loss in run(train, wanted):
            found[name, seed] = loss
            if progress is not None:
                progress("formats", len(found) / len(wanted))
    return found


def end(loss: Sequence[float]) -> float:
    """Return the final loss of a training run: the mean of ``loss`` over the last tenth of the
    steps."""
    return float(np.mean(loss[-max(1, len(loss) // LAST) :]))


def rows(found: Losses) -> list[Row]:
    """Return rows that compare the final loss of each variant with the final loss of FP32 with the
    same seed."""
    made = []
    for (name, seed), loss in found.items():
        if name == PLAIN:
            continue
        distance = VARIANTS[name].distance
        made.append(
            Row(
                "formats", f"{name}, seed {seed}: loss at the end",
                SHOWN if distance is None else CHECK,
                end(found[PLAIN, seed]), end(loss), "nat/token", distance,
                f"compared with FP32: small GPT, AdamW, {len(loss):,} steps in closed loop",
            )
        )  # fmt: skip
    return made


def run_study(
    save: Callable[[Figure], dict[str, bytes]],
    seeds: Sequence[int] = SEEDS,
    steps: int = STEPS,
    jobs: int | None = None,
    progress: Progress = None,
) -> tuple[list[Row], dict[str, bytes]]:
    """Train with all VARIANTS of the update. Return the rows, and the files of the figure by
    suffix.

    ``save``: function that converts a figure to files. ``jobs``: number of worker processes; None
    for one process per core. Raises InputError for invalid arguments.
    """
    if steps < 1:
        raise InputError(f"steps = {steps}: must be at least 1")
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(
            f"seeds = {', '.join(map(str, seeds)) or 'none'}: must be one or more distinct seeds"
        )
    if not all(0 <= seed < 1 << 32 for seed in seeds):
        raise InputError(
            f"seeds = {', '.join(map(str, seeds))}: each seed must be from 0 to 2**32 - 1"
        )
    found = losses(list(VARIANTS), seeds, steps, jobs or os.cpu_count() or 1, progress)
    ordered = {(n, s): found[n, s] for n in VARIANTS for s in seeds}
    return rows(ordered), draw(ordered, save)


def smooth(loss: Sequence[float], width: int) -> np.ndarray:
    """Return the moving average over ``width`` steps, float64[steps - width + 1]."""
    return np.convolve(loss, np.full(width, 1 / width), "valid")


def draw(found: Losses, save: Callable[[Figure], dict[str, bytes]]) -> dict[str, bytes]:
    """Draw the loss curves of all variants, and the relative difference of each curve from the FP32
    curve.

    Lines are means over the seeds. Areas span the smallest to the largest value of all seeds.
    Returns {"png": bytes, "pdf": bytes}; the files contain no date.
    """
    import matplotlib  # takes a second, which each training process would spend
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for name, _ in found))
    seeds = list(dict.fromkeys(seed for _, seed in found))
    steps = len(next(iter(found.values())))
    width = max(1, steps // 20)
    at = np.arange(width, steps + 1)
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(11, 4.2), layout="constrained")
        curve, apart = figure.subplots(1, 2)
        for number, name in enumerate(names):
            each = np.array([smooth(found[name, seed], width) for seed in seeds])
            plain = np.array([smooth(found[PLAIN, seed], width) for seed in seeds])
            color = "black" if name == PLAIN else f"C{number - 1}"
            style = "--" if VARIANTS[name].newton is not None else "-"
            curve.plot(at, each.mean(0), style, color=color, linewidth=1, label=name)
            if name != PLAIN:
                gap = each / plain - 1
                apart.plot(at, gap.mean(0), style, color=color, linewidth=1)
                apart.fill_between(at, gap.min(0), gap.max(0), color=color, alpha=0.12, lw=0)
        curve.set(xlabel="step", ylabel="loss, nat/token")
        curve.set_title(f"Loss, averaged over {width} steps and {len(seeds)} seeds", fontsize=9)
        curve.legend(fontsize=8)
        apart.axhline(0, color="black", linewidth=1)
        apart.set(xlabel="step", ylabel="relative difference of the loss (1 = 100 %)")
        apart.set_title(
            "Loss relative to FP32 with the same seed (line: mean, area: range over the seeds)",
            fontsize=9,
        )
        return save(figure)
