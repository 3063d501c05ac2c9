"""Power of a server that trains with its drives, and the energy of a sample.

Owns the reading of servers.toml and P = host + drives x drive. Does not own speeds.
Source: beside each value in servers.toml.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from ondie.emu.stannis.networks import Origin
from ondie.emu.units import KINDS, InputError, nearest, parse


@dataclass(frozen=True)
class Server:
    """Watts of a server: while its host trains, more for each drive that does, and more for the
    drives of the machine that its paper compares with."""

    name: str
    title: str
    drives: int
    host_w: float
    drive_w: float
    other_drives_w: float
    sources: Mapping[str, Origin] = field(compare=False, repr=False)

    def watts(self, drives: int) -> float:
        """With so many drives training; idle ones are inside the host's."""
        if drives < 0:
            raise InputError(f"{drives} drives: 0 or more is right")
        return self.host_w + drives * self.drive_w

    @property
    def baseline_w(self) -> float:
        """The paper's baseline: the host alone, with other drives."""
        return self.host_w + self.other_drives_w

    def joules(self, samples_per_s: float, drives: int) -> float:
        """Per sample, with so many drives training."""
        if not (math.isfinite(samples_per_s) and samples_per_s > 0):
            raise InputError(f"{samples_per_s} samples/s: more than 0 is right")
        return self.watts(drives) / samples_per_s


@cache
def _tables() -> dict[str, Any]:
    text = resources.files("ondie.emu.stannis").joinpath("servers.toml").read_text("utf-8")
    return tomllib.loads(text)


SERVERS: tuple[str, ...] = tuple(_tables())


def server(name: str) -> Server:
    """A server by the name of its drives. InputError for another."""
    if name not in SERVERS:
        raise InputError(
            f"server {name!r}: nearest: {nearest(name, SERVERS) or 'none'} "
            f"(of {', '.join(SERVERS)})"
        )
    table = dict(_tables()[name])
    title = table.pop("title")
    count = table["drives"]
    watts = {key: leaf for key, leaf in table.items() if key != "drives"}
    value = {key: _watts(leaf["value"], key) for key, leaf in watts.items()}
    return Server(
        name=name,
        title=title,
        drives=count["value"],
        host_w=value["host"],
        drive_w=value["drive"],
        other_drives_w=value["other_drives"],
        sources={"drives": Origin(count["source"], count["ref"])}
        | {key: _origin(leaf, key) for key, leaf in watts.items()},
    )


def _origin(leaf: Mapping[str, str], key: str) -> Origin:
    low, high = (_watts(leaf[end], key) if end in leaf else None for end in ("low", "high"))
    return Origin(leaf["source"], leaf["ref"], low, high)


def _watts(text: str, key: str) -> float:
    return parse(text, KINDS["mw"], key) / 1000
