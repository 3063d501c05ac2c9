"""HyperTune controller: resizes batches during training on nodes that also run other programs.

Owns the state of every node, and the decision to resize: its time, the nodes and their new batches.
Does not own the index (slowdown_detector.py), the rules for a batch (batch_resize.py), the data
split that follows (cluster/data_split.py), any clock, or the measurement of speeds.
Source: HyperTune (HeydariGorji et al.). This project adds the gate against noise, larger batches
when cores are freed, a new split at the next step, and a learning rate that follows the total
batch.

Hysteresis: a node is compared with the speed for which its batch was chosen (expected_speed.py), so
another resize requires another decline or freed cores. Small changes are not applied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from ondie.emu.cluster.batch_tuner import Engine
from ondie.emu.cluster.hypertune.batch_resize import Curves, rising
from ondie.emu.cluster.hypertune.expected_speed import Expectation
from ondie.emu.cluster.hypertune.slowdown_detector import FLAGS, Window, gated, literal
from ondie.emu.units import InputError, known_names

CHOICES = {
    "index": ("gated", "literal"),
    "batch": ("proportional", "eq3", "eq3-literal"),
    "learning_rate": ("linear", "sqrt", "none"),
}


@dataclass(frozen=True)
class Rule:
    """Parameters of HyperTune's decisions to resize batches. Raises InputError for an unknown
    choice, or for a number that is negative or not finite."""

    index: str = "gated"
    """Form of HyperTune's Eq. 2, which flags slow nodes: "gated" (declines in speed within the
    noise do not count) or "literal" (as printed in the paper)."""
    batch: str = "proportional"
    """Rule for the new batch of a node: "proportional" (tuned batch x measured speed / speed
    without other load), "eq3" (the inverse of the tuner's curve), or "eq3-literal" (Eq. 3 as
    printed)."""
    ends_epoch: bool = False
    """True if a change of batches ends the epoch, as in the papers. If it is False, the remaining
    samples are split again at the next step."""
    learning_rate: str = "linear"
    """Scaling of the learning rate with the total batch: "linear", "sqrt" (with the square root of
    the total batch), or "none"."""
    noise: float = 0.05
    """Standard deviation of the error of an observed speed, relative to the speed [assumed, 0.01 to
    0.05]."""
    cpu_noise: float = 0.02
    """Standard deviation of the error of an observed fraction of free cores [assumed, 0.005 to
    0.05]."""
    sigmas: float = 5.0
    """Number of standard errors by which the mean of recent speeds may be below the expected speed
    without counting as a decline. At 5 % noise, the default corresponds to about half of a 20 %
    decline."""
    least_decline: float = 0.05
    """Minimum relative decline of a node's speed that HyperTune treats as a decline, even if the
    noise is lower [assumed, 0.02 to 0.1]."""
    least_change: float = 0.05
    """Relative change of a node's batch above which the new batch is applied and the samples are
    split again [assumed, 0.02 to 0.1]."""

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            word = getattr(self, name)
            if word not in known:
                raise InputError(f"{name} {word!r}: unknown; {known_names(word, known)}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in ("float", "int") and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{field.name} {value}: must be finite and at least 0")


@dataclass(frozen=True)
class Change:
    """Decision of HyperTune: the new batches for the next step."""

    batches: np.ndarray
    """New batches of all nodes, int64[n]."""
    nodes: np.ndarray
    """Numbers of the nodes whose batch changed, int64[k], ascending."""
    before: np.ndarray
    """Previous batches of the changed nodes, int64[k]."""
    learning_rate: float
    """Factor by which the learning rate is multiplied when the new batches are applied."""
    ends_epoch: bool
    """True if the remaining samples of this epoch are dropped and a new epoch starts."""

    @property
    def after(self) -> np.ndarray:
        """New batches of the changed nodes, int64[k]."""
        after: np.ndarray = self.batches[self.nodes]
        return after


class HyperTune:
    """Controller that observes n nodes and resizes their batches; O(n) array work per step.

    ``batches``: tuned batches, int64[n]. ``speeds``: compute speeds for which the batches were
    tuned, without other load, float64[n], samples/s. ``engines``, ``kinds``: the tuner's curves,
    and the index of the curve of each node, int64[n] (batch_resize.Curves). ``least``, ``most``:
    limits of a node's batch; default: 1 and the tuned batch. ``cores``: fraction of a node's cores
    that were free when the node was tuned. Raises InputError if the arrays differ in length, if a
    value is out of range, or if ``rule.batch`` requires curves that are missing or do not rise.
    """

    def __init__(
        self,
        rule: Rule,
        batches: np.ndarray,
        speeds: np.ndarray,
        *,
        engines: Sequence[Engine] = (),
        kinds: np.ndarray | None = None,
        least: np.ndarray | int = 1,
        most: np.ndarray | int | None = None,
        cores: np.ndarray | float = 1.0,
    ) -> None:
        self.rule = rule
        if rule.batch != "proportional":
            if not engines:
                raise InputError(
                    f"batch {rule.batch!r} requires the tuner's speed curves; pass them with "
                    "engines=..."
                )
            for engine in engines:
                rising(engine)
        batches, speeds = np.asarray(batches, np.int64), np.asarray(speeds, np.float64)
        count = len(batches)
        most = batches if most is None else most
        least, most = (
            np.broadcast_to(np.asarray(limit, np.int64), count) for limit in (least, most)
        )
        cores = np.broadcast_to(np.asarray(cores, np.float64), count)
        if speeds.shape != batches.shape:
            raise InputError(
                f"{len(speeds)} speeds and {count} batches: give one speed and one batch per node"
            )
        _every("batch", batches, batches >= 1, "at least 1")
        _every("speed", speeds, np.isfinite(speeds) & (speeds > 0), "more than 0")
        _every("least batch", least, (least >= 1) & (least <= batches), "from 1 to the tuned batch")
        _every("most batch", most, most >= batches, "at least the tuned batch")
        _every("share of cores", cores, (cores > 0) & (cores <= 1), "above 0 and at most 1")
        self._curves = Curves(speeds, engines, kinds)
        self._expected = Expectation(
            cores, rule.noise, rule.cpu_noise, rule.sigmas, rule.least_decline
        )
        self._tuned = self.batches = batches
        self._least, self._most = least, most
        self._down = self._up = np.zeros(count, np.int64)
        self._ratios, self._shares = Window(count), Window(count)
        self._unloaded = self._curves.speed(batches)

    @property
    def flags(self) -> np.ndarray:
        """Number of consecutive steps, up to the last observed step, in which each node was flagged
        for a decline of its speed, int64[n]."""
        return self._down

    @property
    def margin(self) -> np.ndarray:
        """Smallest relative decline of the mean of a node's recent speeds below its expected speed
        that counts as a decline, float64[n]."""
        return self._expected.margin

    def observe(
        self, step: int, steps: int, speed: np.ndarray, cpu: np.ndarray | None = None
    ) -> Change | None:
        """Process the observations of step ``step`` (from 0) of an epoch of ``steps`` steps.

        ``speed``: compute speed of each node (samples/s), excluding synchronization and waiting,
        float64[n]. ``cpu``: fraction of each node's cores that other programs leave free, 0 to 1,
        float64[n]. NaN marks a value that was not observed. Returns the new batches, or None if no
        batch changes. Raises InputError for invalid observations.
        """
        self._check(step, steps, speed, cpu)
        ratio = speed / self._unloaded
        left = self._ratios.push(ratio)
        self._shares.push(np.nan if cpu is None else cpu)
        recent, cores = self._ratios.recent(), self._shares.recent()
        if self.rule.index == "literal":
            down = literal(self._expected.decline(ratio), step, steps)
        else:
            down = gated(self._expected.decline(recent), self._expected.margin, step, steps)
            self._expected.settle(left, self._ratios)
        up = self._expected.more_cores(cores, recent)
        self._down = np.where(down, self._down + 1, 0)
        self._up = np.where(up & ~down, self._up + 1, 0)
        shrink, grow = self._down >= FLAGS, self._up >= FLAGS
        if not (shrink.any() or grow.any()):
            return None
        return self._resize(shrink, grow, recent, cores)

    def _resize(
        self, shrink: np.ndarray, grow: np.ndarray, recent: np.ndarray, cores: np.ndarray
    ) -> Change | None:
        """Return new batches for the nodes in ``shrink`` and ``grow``, bool[n], or None if no
        change is large enough.

        With the literal index, five consecutive flags always cause a change. ``recent``: mean speed
        ratios; ``cores``: mean fractions of free cores, float64[n].
        """
        tuned = grow & self._expected.as_tuned(cores, recent)
        ratio = np.where(tuned, 1.0, recent)
        wanted = np.clip(self._wanted(ratio), self._least, self._most)
        decided = (shrink | grow) & np.isfinite(wanted)
        new = np.floor(np.where(decided, wanted, self.batches) + 1e-9).astype(np.int64)
        at = np.flatnonzero(np.abs(new - self.batches) > self.rule.least_change * self.batches)
        as_printed = self.rule.index == "literal" and bool(shrink.any())
        if not (len(at) or as_printed):
            return None
        before, total = self.batches[at], int(self.batches.sum())
        self.batches = self.batches.copy()
        self.batches[at] = new[at]
        self._expected.expect(at, recent[at], cores[at], tuned[at])
        self._unloaded = self._curves.speed(self.batches)
        counted = np.flatnonzero(shrink) if as_printed else at
        self._down[counted] = self._up[counted] = 0
        factor = self._rate(int(self.batches.sum()) / total)
        return Change(self.batches.copy(), at, before, factor, self.rule.ends_epoch)

    def _wanted(self, ratio: np.ndarray) -> np.ndarray:
        """Return the batch size (not rounded) of each node that runs at ``ratio`` of its
        uninterrupted speed, float64[n]."""
        if self.rule.batch == "proportional":
            return self._curves.within(self._tuned / self._curves.speed(self._tuned) * ratio)
        return self._curves.inverse(ratio * self._unloaded, self.rule.batch == "eq3-literal")

    def _rate(self, factor: float) -> float:
        """Return the factor by which the learning rate is multiplied if the total batch is
        multiplied by ``factor``."""
        return {"linear": factor, "sqrt": math.sqrt(factor), "none": 1.0}[self.rule.learning_rate]

    def _check(self, step: int, steps: int, speed: np.ndarray, cpu: np.ndarray | None) -> None:
        """Raise InputError for invalid observations."""
        nodes = len(self.batches)
        if not 0 <= step < steps:
            raise InputError(f"step {step} of an epoch of {steps}: must be from 0 to {steps - 1}")
        if speed.shape != (nodes,):
            raise InputError(f"{speed.size} speeds for {nodes} nodes: must be one speed per node")
        _every("speed", speed, np.isnan(speed) | (speed >= 0) & (speed < np.inf), "at least 0")
        if cpu is not None:
            if cpu.shape != (nodes,):
                raise InputError(
                    f"{cpu.size} fractions of free cores for {nodes} nodes: must be one per node"
                )
            _every("free cores", cpu, np.isnan(cpu) | (cpu >= 0) & (cpu <= 1), "from 0 to 1")


def _every(what: str, values: np.ndarray, good: np.ndarray, right: str) -> None:
    """Raise InputError, with the first invalid node, unless ``good``, bool[n], is True for all
    nodes.

    ``what``: name of the value. ``right``: description of the allowed values.
    """
    if not good.all():
        at = int(np.argmin(good))
        raise InputError(f"node {at}: {what} {values[at]}; must be {right}")
