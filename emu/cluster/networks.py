"""Networks trained in STANNIS and HyperTune: size, tuned batches and speeds, each with a source.

Owns the reading of networks.toml. Does not own the layers of a network (traces/convnets.py), the
drive's memory and speed ratio (the presets) or the rules that use these values.
Source: given with each value in networks.toml; no speed is derived from a count of operations.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from ondie.emu.units import InputError, known_names

VALUE_BYTES = 4
"""Size of an FP32 value, bytes."""
VECTORS = 3
"""Number of vectors that have one value per parameter: weights, gradient and momentum, as in the
synthetic traces of these networks."""


@dataclass(frozen=True)
class Origin:
    """Source of a value in networks.toml: its kind (paper, derived or assumed), a reference in
    words, and the lower and upper bound of an uncertain value."""

    source: str
    ref: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Network:
    """A network and the published results of its training on a server with one kind of drive.

    Speeds are in samples/s, or None if they are not published. ``tuned_*`` are the speeds for which
    the published batches were tuned.
    """

    name: str
    title: str
    drive: str
    params: int
    bytes_per_sample: int
    activation_bytes: int
    """Size of the activations that a node stores per sample between forward and backward, bytes."""
    host_batch: int
    drive_batch: int
    host_speed: float | None
    drive_speed: float | None
    tuned_host_speed: float | None
    tuned_drive_speed: float | None
    sources: Mapping[str, Origin] = field(compare=False, repr=False)
    """Source of each value of the network, by its key in networks.toml."""

    @property
    def gradient_bytes(self) -> int:
        """Size of the FP32 gradients that an all-reduce sums, bytes."""
        return VALUE_BYTES * self.params

    @property
    def model_bytes(self) -> int:
        """Size of weights, gradient and optimizer state on a node, bytes."""
        return VECTORS * VALUE_BYTES * self.params

    def memory_limit(self, room_bytes: int) -> int:
        """Return the largest batch that fits, with the model, into ``room_bytes`` bytes of memory.
        Raises InputError if not even one sample fits."""
        most = (room_bytes - self.model_bytes) // self.activation_bytes
        if most < 1:
            raise InputError(
                f"{self.title}: the model takes {self.model_bytes / 1e9:.4g} GB and one sample "
                f"{self.activation_bytes / 1e9:.4g} GB; they do not fit together into "
                f"{room_bytes / 1e9:.4g} GB of memory"
            )
        return most


@cache
def _tables() -> dict[str, Any]:
    """Return the content of networks.toml as a dictionary."""
    text = resources.files("ondie.emu.cluster").joinpath("networks.toml").read_text("utf-8")
    return tomllib.loads(text)


CURVE = "curve"
NETWORKS: tuple[str, ...] = tuple(name for name in _tables() if name != CURVE)
"""Names of the neural networks, equal to the names of their synthetic traces."""


def half_batch() -> float:
    """Return the batch size at which the speed curve of an emulated engine reaches half of its
    asymptotic speed [assumed]."""
    return float(_tables()[CURVE]["half_batch"]["value"])


def half_batch_origin() -> Origin:
    """Return the source (paper, derived or assumed, with bounds) of the value that
    :func:`half_batch` returns."""
    leaf = _tables()[CURVE]["half_batch"]
    return Origin(leaf["source"], leaf["ref"], leaf.get("low"), leaf.get("high"))


def servers(name: str) -> tuple[str, ...]:
    """Return the kinds of drive (``newport``, ``laguna``) of the servers on which the network
    ``name`` was trained. Raises InputError for an unknown network."""
    if name not in NETWORKS:
        raise InputError(f"network {name!r}: unknown; {known_names(name, NETWORKS)}")
    return tuple(
        key
        for key, value in _tables()[name].items()
        if isinstance(value, dict) and "value" not in value
    )


def network(name: str, drive: str | None = None) -> Network:
    """Return the network ``name`` as trained on a server with one kind of drive.

    ``drive``: ``newport`` or ``laguna``; default: the first kind that the network was trained on.
    Raises InputError for an unknown network or kind.
    """
    known = servers(name)
    table = _tables()[name]
    drive = known[0] if drive is None else drive
    if drive not in known:
        raise InputError(
            f"{table['title']} on {drive!r}: no batches are published; use {' or '.join(known)}"
        )
    leaves = {
        name_of_leaf: entry
        for name_of_leaf, entry in table.items()
        if name_of_leaf not in (*known, "title")
    } | table[drive]
    value = {key: leaf["value"] for key, leaf in leaves.items()}
    return Network(
        name=name,
        title=table["title"],
        drive=drive,
        params=round(value["params"]),
        bytes_per_sample=round(value["sample"]),
        activation_bytes=round(value["activation"]),
        host_batch=value["host_batch"],
        drive_batch=value["drive_batch"],
        host_speed=value.get("host_speed"),
        drive_speed=value.get("drive_speed"),
        tuned_host_speed=value.get("tuned_host_speed", value.get("host_speed")),
        tuned_drive_speed=value.get("tuned_drive_speed", value.get("drive_speed")),
        sources={
            key: Origin(leaf["source"], leaf["ref"], leaf.get("low"), leaf.get("high"))
            for key, leaf in leaves.items()
        },
    )
