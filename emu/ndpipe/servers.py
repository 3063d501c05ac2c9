"""Servers of NDPipe and of the typical system: price, network and speed.

Owns the reading of servers.toml and the rates of servers. Does not own the layer tables
(layers.py) or the cut (partition.py).
Source: servers.toml names one per value.
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
"""Network whose forward rates servers.toml states."""


@dataclass(frozen=True)
class Server:
    """A server. ``price``: US dollars per hour. ``bytes_per_s``: of its network.
    ``macs_per_s``: multiply-accumulates per second of all its accelerators in a forward pass."""

    name: str
    title: str
    price: float
    bytes_per_s: float
    macs_per_s: float


@cache
def _tables() -> dict[str, Any]:
    """Return the content of servers.toml as a dictionary."""
    text = resources.files("ondie.emu.ndpipe").joinpath("servers.toml").read_text("utf-8")
    return tomllib.loads(text)


PHOTO = "photo"
SERVERS: tuple[str, ...] = tuple(name for name in _tables() if name != PHOTO)
"""Names of the servers."""


def server(name: str) -> Server:
    """Return a server by name. Raises InputError for an unknown name."""
    if name not in SERVERS:
        raise InputError(f"server {name!r}: {known_names(name, SERVERS)}")
    table = _tables()[name]
    value = {key: leaf["value"] for key, leaf in table.items() if key != "title"}
    macs = value["accelerators"] * value["forward"] * network(MEASURED).macs
    return Server(name, table["title"], value["price"], value["network"] / 8, macs)


def jpeg_bytes() -> int:
    """Return the size of an average stored photo, bytes [assumed]."""
    return round(_tables()[PHOTO]["jpeg"]["value"])
