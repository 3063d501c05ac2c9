"""History of a simulated training run: a record per step, totals per node, and events.

Owns the record and the sums over it. Does not own the simulation (training_sim.py) or the output.
Source: this project.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ondie.emu.cluster.cluster import AllreduceCost, Fleet

STEP = np.dtype(
    [
        ("start_s", float),
        ("compute_s", float),  # until the last node has computed its gradient
        ("exchange_s", float),
        ("update_s", float),
        ("samples", np.int64),
        ("host_samples", np.int64),
        ("nodes", np.int64),  # present nodes
        ("waiting", float),  # mean share of compute_s spent waiting for the last node
        ("reading", float),  # mean share of compute_s spent waiting for samples
        ("host_cpu_s", float),  # CPU time of the relay
        ("joules", float),
        ("rate", float),  # learning rate / initial learning rate
    ]
)


@dataclass(frozen=True)
class Note:
    """Event of a simulated training run: its step, virtual time (s), type (``what``) and details
    (``text``)."""

    step: int
    seconds: float
    what: str
    text: str


@dataclass
class History:
    """Record of a simulated training run; the simulation appends one row per step.

    ``hosts``: number of hosts; the hosts are the first nodes.
    """

    hosts: int
    busy_s: np.ndarray
    """Total time for which each node computed in the training run, seconds, float64[nodes]."""
    samples_of: np.ndarray
    """Number of samples that each node trained on in the training run, int64[nodes]."""
    notes: list[Note] = field(default_factory=list)
    dropped: int = 0
    """Number of samples that no node trained on because their epoch ended early."""
    deferred: int = 0
    """Number of private samples of absent nodes that were not trained on by the end of
    their epoch."""
    between_joules: float = 0.0
    """Energy that the cluster used between steps, while weights were sent to joining nodes, J."""
    _rows: list[tuple[Any, ...]] = field(default_factory=list)

    @staticmethod
    def of(fleet: Fleet) -> History:
        """Return an empty history of a training run on the cluster ``fleet``."""
        return History(fleet.hosts, np.zeros(fleet.nodes), np.zeros(fleet.nodes, np.int64))

    def note(self, step: int, seconds: float, what: str, text: str) -> None:
        """Append an event to the history. The parameters are those of :class:`Note`."""
        self.notes.append(Note(step, seconds, what, text))

    def step(
        self,
        fleet: Fleet,
        start: float,
        begin: np.ndarray,
        end: np.ndarray,
        trained: float,
        done: float,
        counts: np.ndarray,
        counted: np.ndarray,
        exchange: AllreduceCost,
        there: np.ndarray,
        rate: float,
    ) -> None:
        """Append the record of a step. Times are in seconds of virtual time.

        ``start``: start of the step; ``trained``: end of all gradient computation; ``done``: end of
        the update. ``begin``, ``end``: compute interval of each node, float64[nodes]. ``counts``:
        samples of each node, int64[nodes]; ``counted``: nodes whose samples count, bool[nodes];
        ``there``: present nodes, bool[nodes]. ``rate``: learning rate / initial learning rate.
        """
        self.busy_s += np.where(counted, end - begin, 0.0)
        self.samples_of += counts
        span = trained - start
        share = 1 / (span * max(int(counted.sum()), 1)) if span else 0.0
        self._rows.append(
            (
                start,
                span,
                exchange.seconds,
                done - trained - exchange.seconds,
                int(counts.sum()),
                int(counts[: self.hosts].sum()),
                int(there.sum()),
                float((trained - end)[counted].sum()) * share,
                float((begin - start)[counted].sum()) * share,
                exchange.host_cpu_s,
                fleet.watts(there) * (done - start),
                rate,
            )
        )

    @property
    def steps(self) -> np.ndarray:
        """Records of all steps of the training run, STEP[steps]."""
        return np.array(self._rows, STEP)

    @property
    def seconds(self) -> float:
        """Virtual time at the end of the last step, seconds. Includes the time that nodes took to
        join between steps."""
        last = self._rows[-1]
        return float(sum(last[:4]))

    @property
    def samples(self) -> int:
        """Number of samples that all nodes together trained on."""
        return int(self.samples_of.sum())

    @property
    def joules(self) -> float:
        """Total energy of the training run, J, including the energy between steps."""
        return float(self.steps["joules"].sum()) + self.between_joules

    @property
    def samples_per_s(self) -> float:
        """Mean speed of the cluster over the whole training run, samples per second."""
        return self.samples / self.seconds

    @property
    def joules_per_sample(self) -> float:
        """Energy of the training run divided by the number of samples, J."""
        return self.joules / self.samples

    def between(self, first: int, last: int) -> float:
        """Return the average speed of the cluster over the steps ``first`` to ``last`` - 1, samples
        per second."""
        part = self.steps[first:last]
        compute, exchange, update = part["compute_s"], part["exchange_s"], part["update_s"]
        spent = compute + exchange + update
        return float(part["samples"].sum() / spent.sum())

    def settled(self) -> float | None:
        """Return the average speed of the cluster after the last change of batches, samples per
        second. Return None if the batches did not change, or if no step follows the last change."""
        changed = [note.step for note in self.notes if note.what == "batches"]
        first = changed[-1] + 1 if changed else len(self._rows)
        return self.between(first, len(self._rows)) if first < len(self._rows) else None

    def data(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """Return the history as a JSON-serializable dictionary.

        ``names``: name of the kind of each node; if it is given, the result includes totals per
        node.
        """
        columns = self.steps
        out: dict[str, Any] = {
            "seconds": self.seconds,
            "samples": self.samples,
            "samples_per_s": self.samples_per_s,
            "settled_samples_per_s": self.settled(),
            "joules": self.joules,
            "joules_per_sample": self.joules_per_sample,
            "dropped_samples": self.dropped,
            "deferred_samples": self.deferred,
            "steps": {name: columns[name].tolist() for name in columns.dtype.names or ()},
            "notes": [vars(note) for note in self.notes],
        }
        if names:
            out["nodes"] = {
                "kind": list(names),
                "busy_s": self.busy_s.tolist(),
                "samples": self.samples_of.tolist(),
            }
        return out
