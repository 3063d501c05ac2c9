"""Whether a forecast is worth it: part of `ondie validate hypertune`.

Owns these rows. Does not own the forecasts (stannis/forecast.py) or the loads (stannis/loads.py).
Source: own; HyperTune proposes prediction and publishes nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondie.emu.analysis.row import SHOWN, Progress, Row
from ondie.emu.cluster.hypertune.controller import HyperTune, Rule
from ondie.emu.cluster.load.contention import three_nodes
from ondie.emu.cluster.loads import KINDS, trace
from ondie.emu.cluster.synchronous import Nodes, Noise, simulate

NOISE = Noise(Rule.noise, Rule.cpu_noise)
NODES, INTERRUPTED, STEPS, EPOCH = 8, 3, 400, 60
TRACES = 16
"""Of each kind of load."""
FORECASTS: dict[str, Rule | None] = {
    "no HyperTune": None,
    "no forecast": Rule(forecast="none"),
    "forecast by CPU use": Rule(forecast="cpu"),
    "forecast by speed": Rule(forecast="speed"),
}


def compared(kind: str, traces: int, first: int = 0) -> dict[str, np.ndarray]:
    """Samples per second over traces of one kind of load, float64[traces] by forecast.

    Interrupted nodes have a trace each, and the noise is the same for all forecasts; ``first``:
    number of the first trace."""
    fleet = three_nodes()
    batches, speeds = (np.repeat(v[:1], NODES) for v in fleet.nodes())
    nodes = Nodes(speeds, fleet.sync_s, fleet.slowdown)
    found: dict[str, list[float]] = {name: [] for name in FORECASTS}
    for number in range(first, first + traces):
        share = trace(kind, STEPS, NODES, INTERRUPTED, np.random.default_rng([5, number]))
        for name, rule in FORECASTS.items():
            tune = None if rule is None else HyperTune(rule, batches, speeds)
            rng = np.random.default_rng([6, number])
            done = simulate(nodes, batches, share, EPOCH * int(batches.sum()), tune, NOISE, rng)
            found[name].append(done.rate())
    return {name: np.array(rates) for name, rates in found.items()}


def forecast_rows(progress: Progress) -> Iterator[Row]:
    """Whether a forecast proves itself."""
    source = (
        f"{NODES} nodes, {INTERRUPTED} of them interrupted, {TRACES} traces of each kind of load: "
        f"samples/s, gain over no forecast, and the share of traces in which it wins and loses"
    )
    for at, kind in enumerate(KINDS):
        if progress is not None:
            progress("hypertune", 0.5 + 0.5 * at / len(KINDS))
        found = compared(kind, TRACES)
        plain = found["no forecast"]
        for name, rates in found.items():
            row = f"{kind}: {name}"
            yield Row("hypertune", row, SHOWN, None, rates.mean(), "img/s", None, source)
            if not name.startswith("forecast"):
                continue
            gain = rates - plain
            error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else 0.0
            for word, value, unit in (
                ("gain", gain.mean(), "img/s"), ("gain, standard error", error, "img/s"),
                ("wins", 100 * (gain > 0).mean(), "%"), ("loses", 100 * (gain < 0).mean(), "%"),
            ):  # fmt: skip
                text = f"{row}, {word}"
                yield Row("hypertune", text, SHOWN, None, float(value), unit, None, source)
