"""HyperTune's published results compared with the simulation: `ondie validate hypertune`.

Owns these rows. Does not own the decisions (cluster/hypertune/controller.py), the steps
(cluster/training_sim.py) or the curves (cluster/load/contention.py).
Source: HyperTune (HeydariGorji et al.).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ondie.emu.analysis.row import CHECK, FIT, SHOWN, Progress, Row
from ondie.emu.cluster.batch_tuner import Engine
from ondie.emu.cluster.cluster import Fleet, Kind
from ondie.emu.cluster.collectives.multi_server import Exchanged
from ondie.emu.cluster.history import History
from ondie.emu.cluster.hypertune.controller import HyperTune, Rule
from ondie.emu.cluster.hypertune.slowdown_detector import Window
from ondie.emu.cluster.load import contention
from ondie.emu.cluster.load.contention import (
    ALONE,
    CORES,
    Link,
    Published,
    host_and_lagunas,
    three_nodes,
)
from ondie.emu.cluster.load.trace import Load
from ondie.emu.cluster.measurement_noise import Noise
from ondie.emu.cluster.training_sim import Data, Simulation

NOISE = Noise(Rule.noise, Rule.cpu_noise)
"""Noise of every run with decisions: 5 % of a speed, 2 points of a share of cores."""
TRIALS = 40
"""Runs with different noise; each row is their mean."""
BEFORE, AFTER = 20, 100
"""Number of steps before and after other programs take cores."""
EPOCH = 1000
"""Steps of an epoch with the tuned batches: no run reaches the last steps, which share the
remainder of the epoch and therefore have smaller batches. The position in the epoch, on which Eq. 2
depends, is the subject of trigger_rows."""
ABSENCE_S = 360.0
"""Time for which other programs take the cores of two nodes (s)."""
FITTED = (
    "speeds from which the slowdown of a node and the synchronization time were derived; HyperTune"
)
THREE = (
    "three equal nodes with batch 180, other programs take cores of one; synchronization: ring of "
    "13.88 MB over 1 Gb/s Ethernet (assumed)"
)
FOUR_TAKEN = (
    f"{THREE}; over 10 Gb/s, the upper end of the range, the batch is outside the tolerance: 145.6"
)
LAGUNAS = (
    "host and 36 Lagunas, batches 180/15, other programs take 6 of 8 host cores, batch at least "
    "100; published: about 72 to 74"
)
OWN = "not published; the expected value is the closed form"
RETURN = (
    "two nodes of three lose 6 and 4 of 8 cores at the same time; the cores are free again after "
    f"{ABSENCE_S:g} s"
)
QUIET = "no decline, 5 % noise: 1,000 epochs of 100 steps; a change would end an epoch"
DECLINED = "20 % decline that begins at 0, 25, 50 and 75 % of an epoch of 100 steps, 2,000 nodes"


@dataclass(frozen=True)
class Outcome:
    """Means over TRIALS runs, and the spread of the batch."""

    batch: float
    spread: float
    """Standard deviation of the batch."""
    rate: float
    """Speed after the decision (img/s)."""
    through: float
    """Speed from the interruption on (img/s), including the steps until the decision."""
    steps: np.ndarray
    """Steps until the decision, int64[trials]; 0 if there was no decision."""


def cluster_of(published: Published) -> Fleet:
    """Return the published cluster: nodes that read nothing, and synchronization of constant
    time."""
    columns = zip(published.batches, published.speeds, published.counts, strict=True)
    kinds = [
        Kind(
            name="host" if number == 0 else "drive",
            count=count,
            engine=Engine("published", ((batch, speed),)),
            cores=CORES,
            slowdown=published.slowdown.ratio,
            host=number == 0,
        )
        for number, (batch, speed, count) in enumerate(columns)
    ]
    synchronization = Exchanged("published", published.sync_s, 0.0, "")
    return Fleet(tuple(kinds), lambda present: synchronization, 0, lambda present: 0.0)


def train(
    published: Published, load: Load, steps: int, tune: HyperTune | None = None,
    noise: Noise | None = None,
) -> History:  # fmt: skip
    """Return the history of a training with the tuned batches."""
    batches, _ = published.nodes()
    data = Data(EPOCH * int(batches.sum()), np.zeros_like(batches))
    simulation = Simulation(
        cluster_of(published), batches, data, load=load, tuner=tune, noise=noise
    )
    return simulation.run(steps)


def interruption_s(published: Published) -> float:
    """Return the time at which other programs take cores: during the synchronization of step
    BEFORE - 1."""
    batches, speeds = published.nodes()
    return BEFORE * (float((batches / speeds).max()) + published.sync_s) - published.sync_s / 2


def load_of(*changes: tuple[float, int, int]) -> Load:
    """Return the load of these changes: (time in s, node, cores that other programs take)."""
    seconds, nodes, cores = zip(*changes, strict=True)
    return Load(np.array(seconds, float), np.array(nodes), np.array(cores, float))


def runs(published: Published, left: int, least: int = 1) -> Iterator[tuple[HyperTune, History]]:
    """Yield the controller and the history of TRIALS runs in which node 0 loses cores.

    After BEFORE steps node 0 keeps ``left`` of its CORES cores. ``least``: its smallest batch.
    """
    batches, speeds = published.nodes()
    limits = np.ones_like(batches)
    limits[0] = least
    load = load_of((interruption_s(published), 0, CORES - left))
    for seed in range(TRIALS):
        tune = HyperTune(Rule(), batches, speeds, least=limits)
        noise = replace(NOISE, seed=(1, seed))
        yield tune, train(published, load, BEFORE + AFTER, tune, noise)


def steps_until_decision(history: History) -> int:
    """Return the steps from the interruption to the first change of batches; 0 if there is none."""
    changed = (note.step for note in history.notes if note.what == "batches")
    return next(changed, BEFORE - 1) - BEFORE + 1


def tuned(published: Published, left: int, least: int = 1) -> Outcome:
    """Return the outcome with HyperTune's decisions; arguments as in :func:`runs`."""
    done = list(runs(published, left, least))
    batch = np.array([tune.batches[0] for tune, _ in done])
    half, end = BEFORE + AFTER // 2, BEFORE + AFTER
    return Outcome(
        float(batch.mean()),
        float(batch.std()),
        float(np.mean([history.between(half, end) for _, history in done])),
        float(np.mean([history.between(BEFORE, end) for _, history in done])),
        np.array([steps_until_decision(history) for _, history in done]),
    )


def untuned(published: Published, left: int, alone: bool = False) -> float:
    """Return the speed without decisions (img/s).

    ``alone``: the speed of node 0 alone, without synchronization.
    """
    if alone:
        published = replace(
            published, batches=published.batches[:1], speeds=published.speeds[:1], counts=(1,),
            sync_s=0.0,
        )  # fmt: skip
    return train(published, load_of((0.0, 0, CORES - left)), 4).samples_per_s


def by_hand(published: Published, left: int) -> tuple[float, float]:
    """Return the batch of the proportional rule and the speed with it (img/s), in closed form.

    The step time of the other nodes does not change.
    """
    batches, speeds = published.nodes()
    ratio = float(published.slowdown.ratio(np.array(left / CORES)))
    batch = batches[0] * ratio
    slowest = float((batches / speeds).max())
    return batch, (float(batches[1:].sum()) + batch) / (slowest + published.sync_s)


def three_rows() -> Iterator[Row]:
    """Yield the rows of three equal nodes, also at both ends of the network's range."""
    fleet = three_nodes()
    loaded = {4: contention.THREE_4_LEFT, 2: contention.THREE_2_LEFT}
    for left, rate in {8: contention.THREE, **loaded}.items():
        text = f"three nodes, {CORES - left} of 8 cores of one taken"
        yield Row("hypertune", text, FIT, rate, untuned(fleet, left), "img/s", 0.0, FITTED)
    published = {4: (140, 85.8, 0.02, 14, 2), 2: (100, 83.7, 0.06, 57, 10)}
    for left, (batch, rate, within, gain, points) in published.items():
        found = tuned(fleet, left)
        text = f"{CORES - left} cores taken"
        gained = 100 * (found.rate / untuned(fleet, left) - 1)
        source = FOUR_TAKEN if left == 4 else THREE
        yield Row("hypertune", f"{text}: batch", CHECK, batch, found.batch, "", 5 / batch, source)
        yield Row("hypertune", f"{text}: speed", CHECK, rate, found.rate, "img/s", within, THREE)
        yield Row("hypertune", f"{text}: gain", CHECK, gain, gained, "%", points / gain, THREE)
        yield from own_rows(text, found, by_hand(fleet, left))
        for link in (contention.FAST, contention.SLOW):
            yield from range_rows(text, link, left, published[left])


def own_rows(text: str, found: Outcome, closed: tuple[float, float]) -> Iterator[Row]:
    """Yield shown rows that add to the published numbers; the expected values are closed forms."""
    for name, expected, value, unit in (
        ("batch", closed[0], found.batch, ""),
        ("speed", closed[1], found.rate, "img/s"),
        ("speed, steps until the decision included", None, found.through, "img/s"),
        ("batch, standard deviation by noise", None, found.spread, ""),
        ("steps until the decision, mean", None, found.steps.mean(), "steps"),
    ):
        yield Row("hypertune", f"{text}: {name}", SHOWN, expected, float(value), unit, None, OWN)


def range_rows(
    text: str, link: Link, left: int, published: tuple[float, float, float, float, float]
) -> Iterator[Row]:
    """Yield the rows of three equal nodes over a network at one end of its range."""
    fleet = three_nodes(link)
    found = tuned(fleet, left)
    source = f"over {link.name}: {fleet.sync_s:.3f} s of synchronization per step"
    for name, expected, value, unit in (
        ("batch", published[0], found.batch, ""), ("speed", published[1], found.rate, "img/s"),
    ):  # fmt: skip
        yield Row("hypertune", f"{text}: {name}", SHOWN, expected, value, unit, None, source)


def return_rows() -> Iterator[Row]:
    """Yield the rows of two nodes whose cores are taken and freed again."""
    published = three_nodes()
    batches, speeds = published.nodes()
    begin = interruption_s(published)
    end = begin + ABSENCE_S
    load = load_of((begin, 0, 6), (begin, 1, 4), (end, 0, 0), (end, 1, 0))
    found, rates = [], []
    for seed in range(TRIALS):
        tune = HyperTune(Rule(), batches, speeds)
        history = train(published, load, 160, tune, replace(NOISE, seed=(2, seed)))
        found.append(tune.batches[:2].mean())
        rates.append(history.between(110, 160))
    for name, expected, values, unit in (
        ("batches of the two nodes at the end", contention.BATCH, found, ""),
        ("speed at the end", contention.THREE, rates, "img/s"),
    ):
        value = float(np.mean(values))
        yield Row("hypertune", name, SHOWN, expected, value, unit, None, RETURN)


def laguna_rows() -> Iterator[Row]:
    """Yield the rows of a host and 36 Lagunas."""
    fleet = host_and_lagunas()
    for text, expected, value in (
        ("host alone", ALONE, untuned(fleet, 8, alone=True)),
        ("host and 36 Lagunas", contention.WITH_DRIVES, untuned(fleet, 8)),
        ("6 of 8 host cores taken", contention.WITH_DRIVES_2_LEFT, untuned(fleet, 2)),
    ):
        yield Row("hypertune", text, FIT, expected, value, "img/s", 0.0, FITTED)
    carried, own = tuned(fleet, 2, least=100), tuned(fleet, 2)
    text = "36 Lagunas, batch 100 carried over"
    yield Row("hypertune", text, CHECK, 73, carried.rate, "img/s", 0.05, LAGUNAS)
    yield from own_rows("36 Lagunas, proportional", own, by_hand(fleet, 2))


@dataclass(frozen=True)
class Watch:
    """Results of nodes that are not interrupted, over a number of epochs."""

    changes: int
    flags: int
    """Largest number of flags in a row."""
    finished: int
    """Number of finished epochs."""
    decline: float
    """Largest relative decline of a recent mean that noise caused."""


def watched(index: str, epochs: int, steps: int, nodes: int, noise: Noise = NOISE) -> Watch:
    """Observe nodes that are not interrupted and count the changes that noise causes.

    ``index``: Rule.index. ``epochs``: total over all nodes, of ``steps`` steps each. A change ends
    the epoch, as in the papers.
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
    """Return the steps from the start of a decline until each node's batch changes, int64[nodes].

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
    """Yield the rows of false changes without a decline, and of the delay after a decline."""
    epochs, steps = 1000, 100
    quiet = watched("gated", epochs, steps, 10)
    margin = 100 * float(HyperTune(Rule(), np.array([1]), np.ones(1)).margin[0])
    yield Row("hypertune", "changes", CHECK, 0, quiet.changes, "", 0.0, QUIET)
    yield Row("hypertune", "epochs finished", CHECK, epochs, quiet.finished, "", 0.0, QUIET)
    for name, expected, value, unit in (
        ("most consecutive flags (5 cause a change)", None, quiet.flags, ""),
        (
            "largest decline of a mean caused by noise (expected: margin)",
            margin,
            100 * quiet.decline,
            "%",
        ),
    ):
        yield Row("hypertune", name, SHOWN, expected, value, unit, None, QUIET)
    printed = watched("literal", epochs, steps, 1)
    for name, value in (("changes", printed.changes), ("epochs finished", printed.finished)):
        text = f"index as printed: {name}"
        yield Row("hypertune", text, SHOWN, None, value, "", None, QUIET)
    took = np.concatenate([until_trigger(start, steps, 500) for start in (0, 25, 50, 75)])
    late = float((took > 10).sum())
    yield Row(
        "hypertune", "nodes that change after more than 10 steps", CHECK, 0, late, "", 0.0, DECLINED
    )
    for name, value in (("mean", took.mean()), ("longest", took.max())):
        text = f"steps until the batch changes, {name}"
        yield Row("hypertune", text, SHOWN, None, float(value), "steps", None, DECLINED)


def hypertune_rows(progress: Progress) -> list[Row]:
    """Return the rows of the published runs and the rows of HyperTune's response time."""
    rows: list[Row] = []
    for at, part in enumerate((three_rows, return_rows, laguna_rows, trigger_rows)):
        if progress is not None:
            progress("hypertune", at / 4)
        rows += part()
    return rows
