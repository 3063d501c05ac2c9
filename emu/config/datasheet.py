"""Data sheet of a drive: the figures that its manufacturer states, with their conditions.

Owns the table [datasheet] of a preset or TOML file, and its checks: names, units, and agreement
with the capacity of the configuration. Does not own the simulation of the figures
(analysis/headlines.py).
Source: data sheets state rates by block size and queue depth, latencies at queue depth 1, and all
figures for one capacity.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ondie.emu.config.config import Config
from ondie.emu.config.loader import read_table
from ondie.emu.config.rules.rule import native_bytes
from ondie.emu.units import KINDS, InputError, fmt_bytes, known_names, parse, quoted

TABLE = "datasheet"
STATES = ("fresh", "steady")
"""States of the drive in which the write figures of a data sheet apply: empty ("fresh"), or
overwritten until its state no longer changes ("steady")."""
ROW_KINDS = FIT, CHECK, SHOWN, IDENTITY = ("fit", "check", "shown", "identity")
"""Kinds of rows in a table that compares predictions with published values (analysis/row.py):
constants were fitted to the value, the value checks the model, the value is only shown, or the
value follows by arithmetic."""
RATES = ("sequential_read", "sequential_write", "random_read", "random_write")
LATENCIES = ("read_latency", "write_latency")
POWERS = ("read_power", "write_power")
ENDURANCE = "bytes_written"
UNITS = {
    "sequential_read": "bytes_per_s",
    "sequential_write": "bytes_per_s",
    "random_read": "iops",
    "random_write": "iops",
    "read_latency": "ps",
    "write_latency": "ps",
    "read_power": "mw",
    "write_power": "mw",
    ENDURANCE: "bytes",
}
"""Names of the data-sheet figures that can be simulated, and the base unit of each."""
CONDITIONS = {
    **dict.fromkeys((*RATES, *POWERS), ("block", "queue_depth")),
    **dict.fromkeys(LATENCIES, ("block",)),
    ENDURANCE: ("workload",),
}
"""Names of the conditions that a data sheet must state for each figure, by name of the figure."""
WORKLOADS = ("sequential", "random")
FIELDS = ("source", "capacity", "state", "figures")
MORE = ("what", "value", "source", "kind", "constants", "pslc")
"""Keys of an entry of ``figures`` in the TOML table [datasheet], in addition to the names of its
conditions (CONDITIONS)."""
_IOPS = re.compile(r"(\d+(?:\.\d+)?)\s*([kKM]?)\s*IOPS")
_BYTES = re.compile(r"[\d.]\s*[KkMGTP](i?)B(/s)?$")
SECTOR = 512


@dataclass(frozen=True)
class Figure:
    """One figure of a data sheet.

    ``value``: value in base units (UNITS), or None if the sheet does not state it. ``text``:
    spelling of the value in the file. ``depth``: number of commands in flight. ``pslc_full``: True
    for the write rate after all blocks in pSLC mode are full. ``kind`` and ``constants``: kind and
    constants of the figure's validation row. ``source``: document that states the figure, if it is
    not the data sheet.
    """

    what: str
    value: float | None = None
    text: str = ""
    block_bytes: int = 0
    depth: int = 1
    workload: str = ""
    pslc_full: bool = False
    kind: str = SHOWN
    constants: tuple[str, ...] = ()
    source: str = ""

    @property
    def title(self) -> str:
        """Name and conditions of the figure, such as "random read, 4 KiB, QD 128"."""
        words = [self.what.replace("_", " ")]
        if self.block_bytes:
            words += [fmt_bytes(self.block_bytes, binary=True).replace(".00 ", " ")]
        if self.what not in (*LATENCIES, ENDURANCE):
            words += [f"QD {self.depth}"]
        if self.workload:
            words += [f"{self.workload} writes"]
        if self.pslc_full:
            words += ["pSLC full"]
        return ", ".join(words)


@dataclass(frozen=True)
class DataSheet:
    """Data sheet: the figures of one drive with one capacity. ``state``: state of the drive to
    which the write figures apply (STATES)."""

    source: str
    capacity_bytes: int
    state: str
    figures: tuple[Figure, ...]


STANDARD = (
    Figure("sequential_read", block_bytes=128 << 10, depth=32),
    Figure("sequential_write", block_bytes=128 << 10, depth=32),
    Figure("random_read", block_bytes=4096, depth=256),
    Figure("random_write", block_bytes=4096, depth=256),
    Figure("read_latency", block_bytes=4096),
    Figure("write_latency", block_bytes=4096),
    Figure("read_power", block_bytes=128 << 10, depth=32),
    Figure("write_power", block_bytes=128 << 10, depth=32),
    Figure(ENDURANCE, workload="random"),
)
"""Figures that most data sheets state, with their conditions and without values."""


def standard_datasheet(cfg: Config) -> DataSheet:
    """Return a data sheet for a drive without a data sheet. It lists the figures of STANDARD and
    states no values.

    Raises InputError if the nominal capacity does not match the capacity of the flash.
    """
    sheet = DataSheet("", cfg.system.capacity_bytes, cfg.ftl.initial, STANDARD)
    check_capacity(sheet, cfg, cfg.system.name)
    return sheet


def find_datasheet(source: str | os.PathLike[str], cfg: Config) -> DataSheet:
    """Return the data sheet of a preset or TOML file, extended by the figures of STANDARD that it
    does not state. For a file without a data sheet, return the figures of STANDARD.

    Raises InputError if the file cannot be read, if the data sheet is invalid or contradicts
    ``cfg``, or if the nominal capacity does not match the capacity of the flash.
    """
    _, table = read_table(os.fspath(source), TABLE)
    if table is None:
        return standard_datasheet(cfg)
    sheet = load_datasheet(source, cfg)
    stated = {figure.what for figure in sheet.figures}
    more = tuple(figure for figure in STANDARD if figure.what not in stated)
    return replace(sheet, figures=sheet.figures + more)


def load_datasheet(source: str | os.PathLike[str], cfg: Config) -> DataSheet:
    """Return the data sheet in a preset or TOML file. ``cfg``: configuration of the file.

    Raises InputError if the file cannot be read or has no data sheet, if a field is invalid, if
    units are mixed, or if the capacity contradicts the configuration.
    """
    where, table = read_table(os.fspath(source), TABLE)
    if table is None:
        raise InputError(
            f"{where}: has no [{TABLE}]; add this section with {', '.join(FIELDS)} "
            "(`ondie preset new` writes a commented example)"
        )
    place = f"{where}: {TABLE}"
    sheet = read_datasheet(table, place)
    check_capacity(sheet, cfg, place)
    return sheet


def read_datasheet(table: Mapping[str, Any], place: str) -> DataSheet:
    """Return the data sheet of a TOML table. Raises InputError if a field is invalid or units are
    mixed. The message begins with ``place``."""
    _known(table, FIELDS, place)
    for name in FIELDS:
        if name not in table:
            raise InputError(f"{place}: {name} is missing; a data sheet states {', '.join(FIELDS)}")
    source = _text(table["source"], f"{place}: source")
    capacity = parse(_text(table["capacity"], f"{place}: capacity"), KINDS["bytes"],
                     f"{place}: capacity")  # fmt: skip
    state = _choice(table["state"], STATES, f"{place}: state")
    listed = table["figures"]
    if not isinstance(listed, list) or not listed:
        raise InputError(
            f"{place}: figures = {quoted(listed)}: must be a nonempty list, for example "
            'figures = [{ what = "random_read", value = "900 kIOPS", ... }]'
        )
    figures = tuple(_figure(one, f"{place}: figures[{at}]") for at, one in enumerate(listed))
    _check_units(str(table["capacity"]), figures, place)
    return DataSheet(source, capacity, state, figures)


def _known(table: object, fields: tuple[str, ...], place: str) -> None:
    if not isinstance(table, dict):
        raise InputError(f"{place}: {quoted(table)} is not a table")
    for name in table:
        if name not in fields:
            raise InputError(f"{place}: unknown key {quoted(name)}; {known_names(name, fields)}")


def _text(value: object, place: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InputError(f"{place}: {quoted(value)} must be a nonempty text on one line")
    return value.strip()


def _choice(value: object, choices: tuple[str, ...], place: str) -> str:
    text = _text(value, place)
    if text not in choices:
        raise InputError(f"{place}: {quoted(text)} is not valid; {known_names(text, choices)}")
    return text


def _figure(table: object, place: str) -> Figure:
    if not isinstance(table, dict) or "what" not in table or "value" not in table:
        raise InputError(
            f"{place}: {quoted(table)} must state what and value; write, for example, "
            '{ what = "random_read", value = "900 kIOPS", block = "4 KiB", queue_depth = 128 }'
        )
    what = _choice(table["what"], tuple(UNITS), f"{place}: what")
    place = f"{place} ({what})"
    needed = CONDITIONS[what]
    _known(table, (*MORE, *needed), place)
    for name in needed:
        if name not in table:
            raise InputError(f"{place}: {name} is missing; state the condition of the figure")
    kind = _choice(table.get("kind", SHOWN), ROW_KINDS, f"{place}: kind")
    constants = table.get("constants", [])
    if not isinstance(constants, list) or (kind == FIT) != bool(constants):
        raise InputError(
            f"{place}: constants = {quoted(constants)}: must be a list of keys if kind is "
            '"fit", and must be omitted otherwise'
        )
    pslc = table.get("pslc", "empty")
    return Figure(
        what,
        _value(what, table["value"], f"{place}: value"),
        str(table["value"]),
        _block(table["block"], f"{place}: block") if "block" in needed else 0,
        _depth(table["queue_depth"], f"{place}: queue_depth") if "queue_depth" in needed else 1,
        _choice(table["workload"], WORKLOADS, f"{place}: workload") if "workload" in needed else "",
        _choice(pslc, ("empty", "full"), f"{place}: pslc") == "full",
        kind,
        tuple(_text(one, f"{place}: constants") for one in constants),
        _text(table["source"], f"{place}: source") if "source" in table else "",
    )


def _value(what: str, value: object, place: str) -> float:
    """Convert ``value``, the value of figure ``what``, from the form printed in data sheets to base
    units. Raises InputError if it is invalid or not above 0. The message begins with ``place``."""
    unit = UNITS[what]
    if unit != "iops":
        number = float(parse(_text(value, place), KINDS[unit], place))
    elif isinstance(value, int) and not isinstance(value, bool):
        number = float(value)
    else:
        match = _IOPS.fullmatch(_text(value, place))
        if match is None:
            raise InputError(
                f'{place}: {quoted(value)} is not a rate; write, for example, "900 kIOPS" or 900000'
            )
        number = float(match[1]) * {"": 1, "k": 1e3, "K": 1e3, "M": 1e6}[match[2]]
    if number <= 0:
        raise InputError(f"{place}: {quoted(value)} is too small; must be above 0")
    return number


def _block(value: object, place: str) -> int:
    size = parse(_text(value, place), KINDS["bytes"], place)
    if size == 0 or size % SECTOR or size & (size - 1):
        raise InputError(
            f"{place}: {quoted(value)} is {size} B; must be a power of two of at least {SECTOR} B "
            '(data sheets that print 128 KB mean "128 KiB")'
        )
    return size


def _depth(value: object, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
        raise InputError(f"{place}: {quoted(value)} is not a whole number from 1 to 65535")
    return value


def _check_units(capacity: str, figures: tuple[Figure, ...], place: str) -> None:
    """Raise InputError if some sizes and rates are in powers of 1000 and others in powers of
    1024."""
    named = [("capacity", capacity), *((figure.what, figure.text) for figure in figures)]
    found = [(name, text, match[1]) for name, text in named if (match := _BYTES.search(text))]
    decimal = next(((name, text) for name, text, binary in found if not binary), None)
    binary = next(((name, text) for name, text, mark in found if mark), None)
    if decimal and binary:
        size = parse(binary[1].removesuffix("/s"), KINDS["bytes"], place)
        meant = fmt_bytes(size) + "/s" * binary[1].endswith("/s")
        raise InputError(
            f'{place}: {decimal[0]} = "{decimal[1]}" is in powers of 1000, but {binary[0]} = '
            f'"{binary[1]}" is in powers of 1024; state both in the same form ({binary[1]} is '
            f"{meant})"
        )


def check_capacity(sheet: DataSheet, cfg: Config, place: str) -> None:
    """Raise InputError if the capacity of the sheet is not that of the configuration, or if the
    flash of the configuration contradicts the capacity.
    """
    nominal = cfg.system.capacity_bytes
    if sheet.capacity_bytes != nominal:
        raise InputError(
            f"{place}: capacity = {fmt_bytes(sheet.capacity_bytes)}, but system.capacity = "
            f"{fmt_bytes(nominal)}; set both to the same value"
        )
    if (text := contradiction(cfg)) is not None:
        raise InputError(f"{place}: {text}")


MOST_UNUSED = 1.1
"""Maximum ratio of the capacity of a drive's flash, without a static pSLC region and
over-provisioning, to its nominal capacity. A larger ratio counts as a contradiction.
"""


def contradiction(cfg: Config) -> str | None:
    """Return a sentence if the flash contradicts the nominal capacity, else None.

    The flash outside a static pSLC region, minus over-provisioning, must have at least the nominal
    capacity and at most MOST_UNUSED times the nominal capacity.
    """
    raw, nominal = native_bytes(cfg), cfg.system.capacity_bytes
    region = " outside the static pSLC region" if cfg.ftl.pslc == "static" else ""
    exported = raw * (1 - cfg.ftl.over_provisioning)
    if nominal <= exported <= MOST_UNUSED * nominal:
        return None
    share = (raw - nominal) / raw
    change = (
        f"ftl.over_provisioning = {math.floor(share * 1e4) / 1e4:g} would give this capacity"
        if 0 <= share < 0.4
        else "change flash.blocks_per_plane"
    )
    return (
        f"system.capacity = {fmt_bytes(nominal)} contradicts the geometry: {fmt_bytes(raw)} of "
        f"flash{region} minus ftl.over_provisioning = {cfg.ftl.over_provisioning:g} is "
        f"{fmt_bytes(exported)}; {change}"
    )
