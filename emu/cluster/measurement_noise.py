"""Measurement noise: random errors of the speeds and fractions of free cores that nodes report.

Owns the random errors of these reported values. Does not own the variation of step times
(jitter.py), or the gate that tolerates both (hypertune/expected_speed.py).
Source: this project; errors are normally distributed and independent from step to step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the errors of the values that nodes report; the errors do not change
    the training itself."""

    speed: float = 0.0
    """Standard deviation of the error of a reported speed, relative to the speed."""
    cpu: float = 0.0
    """Standard deviation of the error of a reported fraction of free cores."""
    seed: int | tuple[int, ...] = 0

    def generator(self) -> np.random.Generator:
        """Return a new random number generator for the errors, with the seed ``seed`` of this
        object."""
        return np.random.default_rng(self.seed)

    def add(
        self, random: np.random.Generator, speed: np.ndarray, cores: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the speeds and fractions of free cores that the nodes report in a step,
        float64[nodes] each: the true values ``speed`` and ``cores`` with random errors.

        A reported speed is at least 0, and a reported fraction is from 0 to 1. NaN values are not
        changed.
        """
        nodes = len(speed)
        reported = speed * np.maximum(1 + self.speed * random.standard_normal(nodes), 0)
        return reported, np.clip(cores + self.cpu * random.standard_normal(nodes), 0, 1)
