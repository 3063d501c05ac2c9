"""Rows of gradients and trainings averaged over a host and its drives.

Owns what is claimed of them, the intervals, and what an exchange saved takes. Does not own what is
measured (averaging_recorded.py), the trainings (averaging_trained.py), tables and figure
(averaging_tables.py, averaging_figure.py).
Source: own; 12.6 from the batches of STANNIS (DAC 2020), Table I, and its networks, drive and
tunnel as the traces and the preset newport have them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ondie.emu.analysis.row import CHECK, IDENTITY, SHAPE, SHOWN, Row
from ondie.emu.cluster import gradient_weighting as weighting
from ondie.emu.cluster.collectives import allreduce, ring
from ondie.emu.config.config import load_preset
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.studies import averaging_nets as nets
from ondie.emu.studies.averaging_recorded import EVERY, Measured
from ondie.emu.studies.averaging_trained import (
    ALIKE,
    PLAIN,
    PRIVATE,
    UNWEIGHTED,
    WEIGHTED,
    Trained,
    runs,
)
from ondie.traces import build

SUBJECTS: dict[str, tuple[str, bool]] = {
    "GPT": ("GPT", False),
    "MobileNetV2": ("MobileNetV2", False),
    "MobileNetV2, statistics held": ("MobileNetV2", True),
}
"""(network, are the batch's statistics held), by what it is called here."""
DOUBT = 0.01
"""Chance that any of a call's intervals misses what it is to hold."""
EARLY, SAME = 10, 1e-4
"""Losses of so many first micro-batches, which roundings move by less than this of them."""
PUBLISHED = ("mobilenetv2", "inceptionv3")
"""Networks of STANNIS whose exchange is counted: its own case, and that with the largest share."""


@dataclass(frozen=True)
class Found:
    """All that a call has measured and trained."""

    measured: Mapping[str, Measured]
    """By SUBJECTS."""
    trained: Mapping[tuple[str, str, str, int], Trained]
    """By network, data, way and seed."""
    seeds: Sequence[int]
    steps: int
    skew: float

    def group(self, name: str, data: str, way: str) -> list[Trained]:
        """Of every seed."""
        return [self.trained[name, data, way, seed] for seed in self.seeds]

    def beside(
        self, name: str, data: str, way: str, what: Callable[[Trained], float]
    ) -> np.ndarray:
        """Of each seed a number less that of one node with the same samples."""
        pairs = zip(self.group(name, data, way), self.group(name, data, PLAIN), strict=True)
        return np.array([what(mine) - what(plain) for mine, plain in pairs])


def half_width(values: np.ndarray, doubt: float) -> float:
    """Half the interval that holds the mean but with a chance of ``doubt``: Student's t, by
    Cornish and Fisher's expansion."""
    n = len(values)
    if n < 2:
        return float("inf")
    z, free = NormalDist().inv_cdf(1 - doubt / 2), n - 1
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    return float(t * values.std(ddof=1) / n**0.5)


@dataclass(frozen=True)
class Exchange:
    """An exchange after every so many micro-batches."""

    bytes_per_sample: float
    """That each node of the recorded network sends."""
    saved: tuple[float, ...]
    """Share of the time with an exchange after every micro-batch that is saved, of PUBLISHED."""


@functools.cache
def exchange(name: str, every: int, hidden: bool = False) -> Exchange:
    """The ring's bytes, and time saved on a server with as many Newports; ``hidden``: it runs
    while the nodes compute, and takes time where that is shorter."""
    network, nodes = nets.NETWORKS[name], nets.DRIVES + 1
    params = sum(p.numel() for p in network.make().parameters())
    sent = ring.steps(nodes) * ring.piece_bytes(4 * params, nodes) / (every * network.batch)
    tunnels = TunnelCost.of(load_preset("newport"))
    saved = []
    for published in PUBLISHED:
        trace = build(published)
        computes = trace.steps[0].forward_s + trace.steps[0].backward_s
        takes = allreduce.exchange("ring", 4 * trace.n_params, nodes - 1, tunnels).seconds
        left = max(takes - computes, 0.0) if hidden else takes / every
        saved.append((takes - left) / (computes + takes))
    return Exchange(sent, tuple(saved))


def rows(found: Found) -> list[Row]:
    """Check rows where something can be proved; the rest is shown."""
    return [*_gradient_rows(found), *_training_rows(found)]


def _gradient_rows(found: Found) -> Iterator[Row]:
    separate = [title for title, m in found.measured.items() if m.separate]
    doubt = DOUBT / (3 * len(separate))
    tuned = nets.TUNED
    yield Row(
        "averaging", f"a drive's sample over a host's, by rank, {tuned[0]}/{tuned[1]}", IDENTITY,
        12.6, weighting.relative_weight(tuned, weighting.by_rank(tuned), 1), "times", None,
        "STANNIS, Table I: the batches of MobileNetV2",
    )  # fmt: skip
    for batches in (*(n.batches for n in nets.NETWORKS.values()), (tuned[0], *24 * [tuned[1]])):
        yield Row(
            "averaging", f"samples whose mean is as noisy as that by rank of {batches[0]} + "
            f"{len(batches) - 1} x {batches[1]}", SHOWN, sum(batches),
            weighting.effective_batch(batches, weighting.by_rank(batches)), "samples", None,
            "(sum w)^2 / sum (w^2/b)",
        )  # fmt: skip
    for title, m in found.measured.items():
        source = f"{title}: recorded steps, one in {EVERY}; weights, samples and order as recorded"
        if not SUBJECTS[title][1]:
            gaps = m.each(lambda at: at.recorded)
            many = int((gaps > m.rounding).sum())
            name = f"{title}: gradients farther than {m.rounding:g} from the recorded ones"
            kind = CHECK if m.separate else SHOWN  # other processors turn other ReLU6
            yield Row("averaging", name, kind, 0, many, "steps", 0 if m.separate else None, source)
        for data in (ALIKE, PRIVATE):
            for by in ("batch", "rank"):
                gaps = m.distances(by, data)
                if by == "batch" and m.separate:
                    name = f"{title}, {data}: weighted farther than {m.rounding:g} from the whole"
                    far = int((gaps > m.rounding).sum())
                    yield Row("averaging", name, CHECK, 0, far, "steps", 0, source)
                name = f"{title}, {data}: distance by {by} from the whole batch's gradient"
                yield Row("averaging", name, SHOWN, None, gaps.mean(), "of it", None, source)
        if not m.separate:
            continue
        right = m.batches[0] / m.batches[1]
        name = f"{title}: a drive's sample over a host's, by rank, from single samples' gradients"
        weights = m.each(lambda at: at.sample_weight)
        worst = float(weights[np.argmax(np.abs(weights - right))])
        yield Row(
            "averaging", name, CHECK, right, worst, "times", 0.01,
            f"{title}: batches {m.batches[0]} and {m.batches[1]}; of all steps the farthest",
        )  # fmt: skip
        noise = m.each(lambda at: at.noise)
        name = f"{title}: squared distance by rank over all ways to deal a batch"
        formula = "S^2 (sum w^2/b - 1/B); 99% interval of all these rows together"
        yield _held(name, 1.0, noise, doubt, "of S^2 (..)", f"{title}: {formula}")
        formula = "sum (1/n - b/B) G of the nodes' data; 99% interval of all these rows together"
        private = m.along_bias(PRIVATE)
        name = f"{title}, private: error by rank along the predicted bias"
        yield _held(name, 1.0, private, doubt, "of the bias", f"{title}: {formula}")
        alike = m.along_bias(ALIKE)
        outside = abs(alike.mean()) > half_width(alike, doubt)
        name = f"{title}, alike: intervals of the error along that bias without 0"
        yield Row("averaging", name, CHECK, 0, int(outside), "intervals", 0, f"{title}: {formula}")


def _held(name: str, right: float, values: np.ndarray, doubt: float, unit: str, source: str) -> Row:
    """A mean that has to lie within its interval around what is predicted."""
    width = half_width(values, doubt)
    kind = CHECK if np.isfinite(width) else SHOWN
    return Row("averaging", name, kind, right, float(values.mean()), unit,
               width / right if kind == CHECK else None, source)  # fmt: skip


def _training_rows(found: Found) -> Iterator[Row]:
    many = f"{found.steps:,} micro-batches per node, {len(found.seeds)} seeds"
    for name, network in nets.NETWORKS.items():
        if not network.has_statistics:
            for data in (ALIKE, PRIVATE):
                other = sum(
                    abs(a - b) > SAME * abs(b)
                    for mine, plain in zip(found.group(name, data, WEIGHTED),
                                           found.group(name, data, PLAIN), strict=True)
                    for a, b in zip(mine.losses[:EARLY], plain.losses[:EARLY], strict=True)
                )  # fmt: skip
                yield Row(
                    "averaging", f"{name}, {data}: first losses, weighted, unlike one node's",
                    CHECK, 0, other, "losses", 0,
                    f"one node with all samples: the first {EARLY} losses, to {SAME:g} of them",
                )  # fmt: skip
        both = [np.mean([t.held_loss for t in found.group(name, ALIKE, way)])
                for way in (UNWEIGHTED, PLAIN)]  # fmt: skip
        yield Row(
            "averaging", f"{name}, alike: loss by rank over that of one node", SHAPE,
            1.1907 / 1.1859, float(both[0] / both[1]), "times", None,
            "STANNIS: loss 1.1859 -> 1.1907 on six nodes, accuracy 0.31 both; another network",
        )  # fmt: skip
        for data, way in runs(name):
            mine, plain = found.group(name, data, way), found.group(name, data, PLAIN)
            for what, unit, value in (
                ("loss held out", "nat", lambda t: t.held_loss),
                ("right of those held out", "of all", lambda t: t.held_right),
                ("loss held out like the drives'", "nat", lambda t: t.private_loss),
                ("right like the drives'", "of all", lambda t: t.private_right),
            ):
                yield Row(
                    "averaging", f"{name}, {data}, {way}: {what}", SHOWN,
                    float(np.mean([value(t) for t in plain])),
                    float(np.mean([value(t) for t in mine])), unit, None,
                    f"one node with all samples beside it; {many}",
                )  # fmt: skip
