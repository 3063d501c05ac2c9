"""Bounds of pipelined fine-tuning: Lemma 5.2 and Theorem 5.1 of NDPipe.

Owns the lemma and the theorem as functions that check their conditions. Does not own the pipeline
(pipeline.py).
Source: NDPipe (ASPLOS 2024), Lemma 5.2 (Hoeffding's inequality and a union bound) and Theorem 5.1;
Arora et al., "A convergence analysis of gradient descent for deep linear neural networks" (ICLR
2019), Theorem 1, for the steps and the largest learning rate.
"""

from __future__ import annotations

import math

from ondie.emu.units import InputError, whole_number

MOST = 1 << 62


def _number(name: str, value: float, low: float, high: float, *, end: bool = True) -> float:
    """Return ``value``. Raises InputError unless ``low`` < ``value`` < ``high``; with ``end``,
    ``value`` may also equal ``high``."""
    if not (math.isfinite(value) and low < value and (value < high or (end and value == high))):
        top = f"at most {high:g}" if end else f"below {high:g}"
        limit = "" if high == math.inf else f" and {top}"
        raise InputError(f"{name} = {value:g}: must be above {low:g}{limit}")
    return value


def generalization_gap(params: int, samples: int, probability: float) -> float:
    """Return D of Lemma 5.2: sqrt(log(2 P / t) / (2 m)).

    ``params``: P, the number of hypotheses of the union bound; the lemma uses the number of
    parameters. ``samples``: m, the number of samples of one run. ``probability``: t, the
    probability that a loss exceeds the bound; between 0 and 1, exclusive. Hoeffding's inequality
    requires the loss of every sample to lie in [0, 1]; a cross entropy must be clipped and scaled
    for that. Raises InputError if a value is outside its range.
    """
    whole_number("params", params, 1, MOST)
    whole_number("samples", samples, 1, MOST)
    _number("probability", probability, 0, 1, end=False)
    return math.sqrt(math.log(2 * params / probability) / (2 * samples))


def next_run_loss(loss: float, params: int, samples: int, probability: float) -> float:
    """Return the bound of Lemma 5.2 on the loss at the start of the second run: ``loss`` + D, where
    D is the result of :func:`generalization_gap`. The loss exceeds the bound with a probability of
    at most ``probability``.

    ``loss``: mean loss at the end of the first run, l1(T1) in the paper. Raises InputError if
    ``loss`` is outside [0, 1], where the lemma does not apply, or if another value is outside the
    range given in :func:`generalization_gap`.
    """
    if not 0 <= loss <= 1:
        raise InputError(
            f"loss = {loss:g}: Lemma 5.2 holds for losses in [0, 1]; clip and scale the loss"
        )
    return loss + generalization_gap(params, samples, probability)


def largest_rate(margin: float, layers: int, target_norm: float) -> float:
    """Return the largest learning rate of Theorem 5.1: c^((4N - 2)/N) / (6144 N^3 |F|^((6N -
    4)/N)).

    ``margin``: c, the deficiency margin. It is the smallest singular value of the target minus the
    distance between the initial weights and the target. ``layers``: N, the number of layers of the
    linear network. ``target_norm``: |F|, the Frobenius norm of the target. The rate is an upper
    bound; the paper's slides call it a minimum. Raises InputError if a value is outside its range,
    or if the margin exceeds the norm.
    """
    whole_number("layers", layers, 1, 1 << 20)
    _number("target_norm", target_norm, 0, math.inf)
    _number("margin", margin, 0, target_norm)
    up, down = (4 * layers - 2) / layers, (6 * layers - 4) / layers
    return margin**up / (6144 * layers**3 * target_norm**down)


def second_run_steps(
    loss: float, goal: float, rate: float, margin: float, layers: int, target_norm: float
) -> int:
    """Return T2 of Theorem 5.1, the number of steps after which the loss of the second run is at
    most ``goal``: log(l2(0) / e2) / (eta c^(2 (N - 1)/N)), rounded up, or 0 if ``loss`` is at most
    ``goal``.

    ``loss``: l2(0), or its bound l1(T1) + D from :func:`next_run_loss`. ``goal``: e2. ``rate``:
    eta, the learning rate of gradient descent, at most :func:`largest_rate`. The theorem's other
    conditions, which concern the weights, are those of Arora et al.: whitened data and balanced
    layers. Raises InputError if ``rate`` exceeds :func:`largest_rate`, or if another value is
    outside its range.
    """
    _number("loss", loss, 0, math.inf)
    _number("goal", goal, 0, math.inf)
    _number("rate", rate, 0, math.inf)
    most = largest_rate(margin, layers, target_norm)
    if rate > most:
        raise InputError(
            f"rate = {rate:g}: must be at most {most:g}, the largest learning rate of Theorem 5.1"
        )
    if loss <= goal:
        return 0
    return math.ceil(math.log(loss / goal) / (rate * margin ** (2 * (layers - 1) / layers)))
