"""Response of HyperTune to noise and to a decline: rows of `ondie validate hypertune`.

Owns the rows that count batch changes while no node declines, and the rows of the delay between a
decline and the batch change. Does not own the decisions (cluster/hypertune/controller.py) or the
published runs (hypertune.py).
Source: this project; no values are published. Expected values are properties that HyperTune must
have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ondie.emu.analysis.row import IDENTITY, SHOWN, Row
from ondie.emu.cluster.hypertune.controller import HyperTune, Rule
from ondie.emu.cluster.hypertune.slowdown_detector import Window
from ondie.emu.cluster.measurement_noise import Noise

SUITE = "hypertune"
EPOCHS = 1000
"""Number of epochs in which batch changes without a decline are counted."""
NOISE = Noise(Rule.noise, Rule.cpu_noise)
"""Noise of the values that nodes report in every run with HyperTune's decisions, also in those of
hypertune.py. Standard deviations: 5 % of the speed, and 0.02 for the fraction of free cores (0 to
1)."""
QUIET = (
    f"required property, not published: no decline, 5 % noise, {EPOCHS:,} epochs of 100 steps; a "
    "change would end an epoch"
)
DECLINED = (
    "required property, not published: 20 % decline that begins at 0, 25, 50 and 75 % of an epoch "
    "of 100 steps, 2,000 nodes"
)


@dataclass(frozen=True)
class Watch:
    """Results of simulated epochs in which the speed of the nodes changes only by noise.

    ``changes``: number of batch changes.
    """

    changes: int
    flags: int
    """Largest number of consecutive steps in which a node was flagged for a decline."""
    finished: int
    """Number of epochs that ran to their last step, without a batch change."""
    decline: float
    """Largest relative decline of the mean of a node's recent speeds below its expected speed."""


def watched(index: str, epochs: int, steps: int, nodes: int, noise: Noise = NOISE) -> Watch:
    """Simulate nodes whose speed changes only by noise, and count the batch changes.

    ``index``: form of Eq. 2, "gated" or "literal" (Rule.index). ``epochs``: number of epochs over
    all nodes, of ``steps`` steps each. A batch change ends the epoch, as in the papers.
    """
    rng = np.random.default_rng(3)
    rule = Rule(index=index, ends_epoch=True)
    tune, window = HyperTune(rule, np.full(nodes, 180), np.ones(nodes)), Window(nodes)
    changes, flags, finished, decline = 0, 0, 0, 0.0
    for _ in range(-(-epochs // nodes)):
        for step in range(steps):
            seen, cores = noise.add(rng, np.ones(nodes), np.ones(nodes))
            change = tune.observe(step, steps, seen, cores)
            window.push(seen)
            decline = max(decline, float(np.nanmax(np.append(1 - window.recent(), 0.0))))
            flags = max(flags, int(tune.flags.max()))
            if change is not None:
                changes += 1
                break
        else:
            finished += nodes
    return Watch(changes, flags, finished, decline)


def until_trigger(start: int, steps: int, nodes: int, decline: float = 0.2) -> np.ndarray:
    """Return the number of steps from the start of a decline until each node's batch changes,
    int64[nodes].

    The decline starts in step ``start`` of an epoch of ``steps`` steps. The result is 10**6 for a
    node whose batch does not change.
    """
    rng = np.random.default_rng([4, start])
    tune = HyperTune(Rule(), np.full(nodes, 180), np.ones(nodes))
    took = np.full(nodes, 10**6)
    for at in range(start + 20):
        declined = at >= start
        speed = np.full(nodes, 1 - decline * declined)
        seen, cores = NOISE.add(rng, speed, np.full(nodes, 0.5 if declined else 1.0))
        change = tune.observe(at % steps, steps, seen, cores)
        if change is not None:
            took[change.nodes] = np.minimum(took[change.nodes], at - start + 1)
    return took


def trigger_rows() -> Iterator[Row]:
    """Yield the rows that count batch changes while no node declines, and the rows of the delay
    between a decline and the batch change."""
    epochs, steps = EPOCHS, 100
    quiet = watched("gated", epochs, steps, 10)
    margin = 100 * float(HyperTune(Rule(), np.array([1]), np.ones(1)).margin[0])
    yield _row("changes", IDENTITY, 0, quiet.changes, QUIET, "", 0)
    yield _row("epochs finished", IDENTITY, epochs, quiet.finished, QUIET, "", 0)
    text = "largest number of consecutive flags (5 cause a change)"
    yield _row(text, SHOWN, None, quiet.flags, QUIET, "")
    text = "largest decline of a mean caused by noise (expected: margin)"
    yield _row(text, SHOWN, margin, 100 * quiet.decline, QUIET, "%")
    printed = watched("literal", epochs, steps, 1)
    for name, value in (("changes", printed.changes), ("epochs finished", printed.finished)):
        yield _row(f"index as printed: {name}", SHOWN, None, value, QUIET, "")
    took = np.concatenate([until_trigger(start, steps, 500) for start in (0, 25, 50, 75)])
    late = float((took > 10).sum())
    yield _row("nodes that change after more than 10 steps", IDENTITY, 0, late, DECLINED, "", 0)
    for name, value in (("mean", took.mean()), ("longest", took.max())):
        text = f"steps until the batch changes, {name}"
        yield _row(text, SHOWN, None, float(value), DECLINED, "steps")


def _row(
    name: str,
    kind: str,
    expected: float | None,
    found: float,
    source: str,
    unit: str,
    tolerance: float | None = None,
) -> Row:
    return Row(SUITE, name, kind, expected, found, unit, tolerance, source)
