"""Servers of NDPipe and of the typical system: price, network and speed.

Owns the reading of servers.toml and the rates of servers. Does not own the layer tables (layers.py)
or the cut (partition.py).
Source: servers.toml states the source of each value.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from ondie.emu.ndpipe.architectures import network
from ondie.emu.units import InputError, known_names

MEASURED = "resnet50"
"""Name of the network for which servers.toml states the forward rates of the accelerators."""


@dataclass(frozen=True)
class Server:
    """Kind of server that a system uses. ``price``: US dollars per hour, as of ``date`` (year and
    month). ``bytes_per_s``: rate of its network. ``macs_per_s``: multiply-accumulates per second of
    all its accelerators in a forward pass. ``base_w``: power without accelerators (W). ``busy_w``,
    ``idle_w``: power of all accelerators while they compute and while they are idle (W)."""

    name: str
    title: str
    price: float
    date: str
    bytes_per_s: float
    macs_per_s: float
    base_w: float
    busy_w: float
    idle_w: float

    def watts(self, busy: float) -> float:
        """Return the mean power (W) if the accelerators compute during the fraction ``busy`` of the
        time. Raises InputError if ``busy`` is not from 0 to 1."""
        if not 0 <= busy <= 1:
            raise InputError(f"busy = {busy}: must be a fraction from 0 to 1")
        return self.base_w + self.idle_w + busy * (self.busy_w - self.idle_w)


@cache
def _tables() -> dict[str, Any]:
    """Return the content of servers.toml as a dictionary."""
    text = resources.files("ondie.emu.ndpipe").joinpath("servers.toml").read_text("utf-8")
    return tomllib.loads(text)


PHOTO, NPE = "photo", "npe"
SERVERS: tuple[str, ...] = tuple(name for name in _tables() if name not in (PHOTO, NPE))
"""Names of the kinds of servers: all tables of servers.toml except PHOTO and NPE."""


def server(name: str) -> Server:
    """Return the server ``name``. Raises InputError if the name is unknown."""
    if name not in SERVERS:
        raise InputError(f"server {name!r}: unknown; {known_names(name, SERVERS)}")
    table = _tables()[name]
    value = {key: leaf["value"] for key, leaf in table.items() if key != "title"}
    count = value["accelerators"]
    macs = count * value["forward"] * network(MEASURED).macs
    return Server(
        name, table["title"], value["price"], table["price"]["date"], value["network"] / 8, macs,
        value["base_w"], count * value["busy_w"], count * value["idle_w"],
    )  # fmt: skip


def jpeg_bytes() -> int:
    """Return the average size of a stored JPEG photo in bytes, an assumed value."""
    return round(_tables()[PHOTO]["jpeg"]["value"])


def inference_constant(name: str) -> float:
    """Return a constant of inference in a store, from the table npe of servers.toml. The table
    states the unit and the source of each constant. Raises InputError if the name is unknown."""
    table = _tables()[NPE]
    if name not in table:
        raise InputError(f"constant {name!r}: unknown; {known_names(name, table)}")
    return float(table[name]["value"])
