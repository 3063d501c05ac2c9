"""A long update stage from short ones: simulate pieces of a model, extend them to the whole.

Owns which pieces are simulated, and how their books are extended. Does not own simulating
(compare.py) or any form of a path's time.
Source: own. An update stage repeats itself: beside what its ends cost, everything that a path takes
and moves grows with the parameters, and where it works in sub-groups, with their size and number:
q(n, s) = a + b n + c s + d n / s. Pieces differ by as much as fills blocks of every plane, and so
see all erases. One piece more than the form has terms is simulated, and held against it: the error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ondie.emu.analysis.ledger import Ledger
from ondie.emu.engine.core.totals import Totals
from ondie.emu.paths.pieces import Piece, Pieces
from ondie.traces import Trace
from ondie.traces.model import Tensor

DECAY = "weight_decay"


def reduced(trace: Trace, n: int, *, name: str, training: float) -> Trace:
    """The trace's first step on ``n`` parameters, without payload: of every trainable tensor its
    share, so that parameter groups keep theirs. Forward and backward take ``training`` of their
    time; the decay of a group is the largest of all steps, since a path takes its passes in each if
    it does in one."""
    first = trace.steps[0]
    step = dataclasses.replace(
        first,
        forward_s=first.forward_s * training,
        backward_s=first.backward_s * training,
        ready_s=None,
        hyper=tuple(_hyper(trace, group) for group in range(trace.groups)),
        skipped=False,
        found_inf=False,
        gradient_sha256=None,
        fused=(),
    )
    return dataclasses.replace(
        trace,
        name=f"{trace.name} ({name})",
        payload="none",
        tensors=_shared(trace, n),
        steps=(step,),
        digest=None,
    )


def _hyper(trace: Trace, group: int) -> dict[str, float | bool]:
    """Of the first step, with the decay that is largest in any."""
    decay = max((step.hyper[group].get(DECAY, 0.0) for step in trace.steps), key=abs)
    return {**trace.steps[0].hyper[group], **({DECAY: decay} if decay else {})}


def _shared(trace: Trace, n: int) -> tuple[Tensor, ...]:
    """The trainable tensors on ``n`` parameters, each with its share of them; none is empty."""
    whole, found = trace.n_params, []
    for t in trace.trainable:
        begin = t.offset * n // whole
        size = (t.offset + t.size) * n // whole - begin
        if size:
            shape = t.shape if size == t.size else (size,)
            found.append(
                dataclasses.replace(t, shape=shape, offset=begin, size=size, ready_order=-1)
            )
    return tuple(found)


@dataclass(frozen=True)
class Sampled:
    """That a result is extended from pieces: their parameters, and how far the one that was held
    against the others lies from what they foretell: of its time beyond theirs."""

    params: tuple[int, ...]
    error: float

    @property
    def words(self) -> str:
        """For a reader of the row."""
        millions = ", ".join(f"{n / 1e6:.4g}" for n in sorted(set(self.params)))
        return (
            f"sampled: extended from pieces of {millions} million parameters; the middle "
            f"one lies {self.error:.2%} off what the others foretell of it"
        )


def extend(
    found: Pieces, run: Callable[[Piece], Ledger], each: Callable[..., Iterable[Any]] = map
) -> tuple[Ledger, Sampled]:
    """The whole's books. ``run`` simulates a piece and has checked its own; ``each`` does so with
    all of them, as `map` does, whose longest comes first."""
    order = sorted(found.all, key=lambda piece: -piece.params)
    books: dict[Piece, Ledger] = dict(zip(order, each(run, order), strict=True))
    fitted = [books[piece] for piece in found.fitted]
    times = [book.step_s for book in fitted]
    told = float(found.weights(found.held) @ times)
    held = books[found.held].step_s
    weights = found.weights(found.whole)
    totals = _totals(weights, [book.totals for book in fitted])
    names = dict.fromkeys(name for book in fitted for name in book.phases_s)
    phases = {
        name: max(float(weights @ [book.phases_s.get(name, 0.0) for book in fitted]), 0.0)
        for name in names
    }
    error = abs(told - held) / (max(times) - min(times))
    return (
        Ledger(totals, fitted[0].samples, phases),
        Sampled(tuple(piece.params for piece in found.all), error),
    )


def _totals(weights: np.ndarray, parts: Sequence[Totals]) -> Totals:
    def whole(values: Iterable[int]) -> int:
        return max(round(float(weights @ np.array(list(values), float))), 0)

    def table(tables: Sequence[Mapping[Any, int]]) -> dict[Any, int]:
        keys = dict.fromkeys(key for one in tables for key in one)
        return {key: whole(one.get(key, 0) for one in tables) for key in keys}

    def pair(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
        return whole(p[0] for p in pairs), whole(p[1] for p in pairs)

    values: dict[str, Any] = {}
    for field in dataclasses.fields(Totals):
        of = [getattr(part, field.name) for part in parts]
        first = of[0]
        if field.name in ("page_bytes", "block_bytes", "devices"):
            values[field.name] = first
        elif field.name == "steps":
            spans = [one[0] for one in of]
            names = [name for name in spans[0] if all(name in span for span in spans)]
            values["steps"] = ({name: pair([span[name] for span in spans]) for name in names},)
        elif field.name == "worn":
            values["worn"] = tuple(
                tuple(whole(of_plane) for of_plane in zip(*dies, strict=True))
                for dies in zip(*of, strict=True)
            )
        elif isinstance(first, Mapping):
            values[field.name] = table(of)
        elif isinstance(first, tuple):
            values[field.name] = pair(of)
        else:
            values[field.name] = whole(of)
    return Totals(**values)
