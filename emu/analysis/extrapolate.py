"""Extrapolation of a long update stage from simulated samples (pieces) of a model.

Owns the reduced trace of a piece and the extrapolation of the ledgers. Does not own the choice of
pieces (paths/pieces.py) or the simulation (analysis/compare.py).
Source: this project.

An update stage is periodic except for its start and end. Every quantity is therefore linear in the
number of parameters n. If a path works in sub-groups, the quantity also depends on the size s and
the number n / s of the sub-groups: q(n, s) = a + b n + c s + d n / s. The sizes of two pieces
differ by at least a block of every plane, so that the difference between their quantities includes
erases. The number of pieces is one more than the number of terms of q. The fit does not use the
additional piece. The reported error is the deviation of this piece from q.
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
from ondie.traces.records import Tensor

DECAY = "weight_decay"


def reduced(trace: Trace, count: int, *, name: str, training: float) -> Trace:
    """Return the trace's first step, reduced to ``count`` parameters, without payload.

    Every trainable tensor is reduced in proportion, so that the relative sizes of the parameter
    groups remain. ``name`` is appended to the name of the trace. The times of forward and backward
    are multiplied by ``training``. The weight decay of a parameter group is its largest value (by
    magnitude) in any step, because a path that needs vector passes for weight decay executes them
    in every step.
    """
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
        tensors=_shared(trace, count),
        steps=(step,),
        digest=None,
    )


def _hyper(trace: Trace, group: int) -> dict[str, float | bool]:
    """Return the hyperparameters of a parameter group in the first step, with the group's largest
    weight decay (by magnitude) in any step."""
    decay = max((step.hyper[group].get(DECAY, 0.0) for step in trace.steps), key=abs)
    return {**trace.steps[0].hyper[group], **({DECAY: decay} if decay else {})}


def _shared(trace: Trace, count: int) -> tuple[Tensor, ...]:
    """Return the trainable tensors reduced to ``count`` parameters in total; tensors that become
    empty are omitted."""
    whole, found = trace.n_params, []
    for tensor in trace.trainable:
        begin = tensor.offset * count // whole
        size = (tensor.offset + tensor.size) * count // whole - begin
        if size:
            shape = tensor.shape if size == tensor.size else (size,)
            found.append(
                dataclasses.replace(tensor, shape=shape, offset=begin, size=size, ready_order=-1)
            )
    return tuple(found)


@dataclass(frozen=True)
class Sampled:
    """Record of an extrapolation: the sizes of the simulated pieces, and the error.

    ``params``: number of parameters of each piece. ``error``: difference between the simulated time
    of the held-out piece and the time predicted from the fitted pieces, relative to the range of
    the fitted pieces' times.
    """

    params: tuple[int, ...]
    error: float

    @property
    def words(self) -> str:
        """Text of a note on the extrapolation of the path's result: sizes of the pieces, and the
        prediction error of the held-out piece."""
        millions = ", ".join(f"{params / 1e6:.4g}" for params in sorted(set(self.params)))
        return (
            f"sampled: extrapolated from pieces of {millions} million parameters; the middle "
            f"piece differs by {self.error:.2%} from the prediction made from the other pieces"
        )


def extend(
    found: Pieces, run: Callable[[Piece], Ledger], each: Callable[..., Iterable[Any]] = map
) -> tuple[Ledger, Sampled]:
    """Return the ledger of the whole model, and a record of the extrapolation.

    ``found``: pieces and their weights. ``run`` simulates a piece and returns its ledger. ``each``
    applies ``run`` to all pieces, as `map` does, starting with the largest piece.
    """
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
