"""Tables of gradients and trainings averaged over a host and its drives.

Owns their columns. Does not own a number in them (averaging_shown.py and what it names).
Source: own.
"""

from __future__ import annotations

import numpy as np
from rich.table import Table

from ondie.emu.studies import averaging_nets as nets
from ondie.emu.studies.averaging_shown import DOUBT, PUBLISHED, Found, exchange, half_width
from ondie.emu.studies.averaging_trained import ALIKE, PLAIN, PRIVATE, WAYS, runs


def tables(found: Found) -> list[Table]:
    """Gradients by recorded step, and trainings."""
    return [_gradients(found), *(_trainings(found, name) for name in nets.NETWORKS)]


def _gradients(found: Found) -> Table:
    table = Table(
        title="Gradient of the recorded batches, averaged over a host and its drives\n"
        "distance from the whole batch's gradient, of its length: mean (most) of recorded steps",
        title_justify="left", title_style="bold",
    )  # fmt: skip
    heads = ("network", "data", "by batch", "by rank", "cosine", "drive's sample",
             "noise / formula", "bias / formula", "bias / gradient")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head == "network" else "right")
    for title, m in found.measured.items():
        for data in (ALIKE, PRIVATE):
            singly = m.separate and data == ALIKE
            table.add_row(
                title, data, *(_spanned(m.distances(by, data)) for by in ("batch", "rank")),
                f"{m.cosines('rank', data).mean():.2f}",
                f"{m.each(lambda at: at.sample_weight).mean():.2f}x" if singly else "",
                _about(m.each(lambda at: at.noise)) if singly else "",
                _about(m.along_bias(data)),
                _spanned(m.each(lambda at: at.bias_share)) if data == PRIVATE else "",
                end_section=data == PRIVATE,
            )  # fmt: skip
    table.caption = (
        "by batch: weighted; by rank: as Horovod does. drive's sample: how many of the host's it "
        "counts by rank. noise, bias: mean +- half the 99% interval; by their formulas 1, and the "
        "bias 0 where data are alike. With the batch's statistics held, a gradient is a mean over "
        "samples, and weighting is exact; as trained, each node normalises by its own"
    )
    table.caption_justify = "left"
    return table


def _spanned(values: np.ndarray) -> str:
    return f"{values.mean():.2g} ({values.max():.2g})"


def _about(values: np.ndarray) -> str:
    return f"{values.mean():.2f} +- {half_width(values, DOUBT):.2f}"


def _trainings(found: Found, name: str) -> Table:
    network = nets.NETWORKS[name]
    table = Table(
        title=f"{name}: trainings over {network.batches[0]} + {nets.DRIVES} x "
        f"{network.batches[1]} samples, {found.steps:,} micro-batches of each node, "
        f"{len(found.seeds)} seed(s)\nprivate: {found.skew:.0%} of the drives' data are "
        f"{network.private}",
        title_justify="left", title_style="bold",
    )  # fmt: skip
    heads = ("data: way", "loss", "beside one node", "accuracy", "points beside it", "drives'",
             "sent", "saved")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head == heads[0] else "right")
    wanted = runs(name)
    for data, way in wanted:
        group = found.group(name, data, way)
        loss = found.beside(name, data, way, lambda t: t.held_loss)
        right = 100 * found.beside(name, data, way, lambda t: t.held_right)
        kind, plain = WAYS[way], way == PLAIN
        spared = exchange(name, kind.every, kind.late > 0)
        saved = " / ".join(f"{share:.0%}" for share in spared.saved)
        table.add_row(
            f"{data}: {way}", f"{np.mean([t.held_loss for t in group]):.3f}",
            "" if plain else f"{loss.mean():+.3f} ({loss.min():+.3f}..{loss.max():+.3f})",
            f"{np.mean([t.held_right for t in group]):.1%}",
            "" if plain else f"{right.mean():+.1f} ({right.min():+.1f}..{right.max():+.1f})",
            f"{np.mean([t.private_right for t in group]):.1%}",
            "" if plain else f"{spared.bytes_per_sample / 1e3:,.1f} kB",
            saved if any(spared.saved) else "",
            end_section=(data, way) == [run for run in wanted if run[0] == data][-1],
        )  # fmt: skip
    table.caption = (
        "loss, accuracy: of samples held out; beside one node with the same samples, in nat and "
        "points: mean (least .. most of the seeds). drives': accuracy on those like the drives' "
        "private ones. sent: by each node, per sample. saved: of the time of "
        f"{' / '.join(PUBLISHED)} on a host with {nets.DRIVES} Newports that exchange after every "
        "micro-batch"
    )
    table.caption_justify = "left"
    return table
