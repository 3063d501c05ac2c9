"""Configurations: presets and overrides as one checked, frozen tree of numbers with provenance.

Owns Config: lookup, replacement, resolution, hash, differences, tables. Does not own numbers
(presets/*.toml), files (loader.py), or units beyond their names (units.py).
Source: this project.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import cattrs

from ondie.emu.config.leaf import Leaf, Value, spelled
from ondie.emu.config.loader import (
    canonical,
    changed,
    key_of,
    ordered,
    preset_names,
    read,
    split_overrides,
)
from ondie.emu.config.rules.check import check
from ondie.emu.config.schema.keys import KEYS, SECTIONS
from ondie.emu.config.schema.tree import Tree
from ondie.emu.files import as_path
from ondie.emu.units import KINDS, InputError, exact

__all__ = [
    "Config",
    "ConfigRow",
    "Difference",
    "InputError",
    "Leaf",
    "Summary",
    "diff",
    "load_preset",
    "preset_list",
    "preset_names",
    "preset_table",
]

_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)


@dataclass(frozen=True)
class Config(Tree):
    """Configuration of one system: a host, a link and its drives, as plain numbers and their
    provenance.

    The suffix of each attribute names its base unit. `records` has a Leaf for each key.
    Configurations compare by value and can be pickled. `load_preset` builds a configuration, and
    `replace` returns a changed copy.
    """

    records: Mapping[str, Leaf] = field(repr=False, compare=False)

    def leaf(self, key: str) -> Leaf:
        """Return the record of `key`, such as "flash.t_read". The attribute name "flash.t_read_ps"
        is accepted, too.

        Raises InputError if this configuration does not have the key.
        """
        name = canonical(key, self.records, "")
        if name not in self.records:
            table = key_of(name)[0].name
            rows = [key_of(leaf)[1] for leaf in self.records if leaf.startswith(table + ".")]
            raise InputError(f'unknown key "{key}"; {table} has {", ".join(rows) or "no rows"}')
        return self.records[name]

    def leaves(self) -> list[Leaf]:
        """Return the records of all keys, in the order of the tree."""
        return list(self.records.values())

    def assumed(self) -> list[Leaf]:
        """Return the records whose source is "assumed"; each of them has a range."""
        return [leaf for leaf in self.records.values() if leaf.source == "assumed"]

    def replace(
        self, changes: Mapping[str, Value], *, ref: str = "replaced by the caller"
    ) -> Config:
        """Return a copy with `changes` (text with units, or numbers in base units), fully checked.

        Changed leaves have source "set" and no range. If the flash changes and the capacity is not
        among `changes`, the capacity follows the flash (nominal_capacity.py). Raises InputError if
        a key is unknown, a value is invalid, or a rule is broken.
        """
        return _build(changed(self.records, changes, "", ref), self.system.name, self)

    def resolved(self) -> dict[str, Any]:
        """Return the configuration as nested dictionaries: section, key, then the fields of the
        leaf (see Leaf.resolved).
        """
        tree: dict[str, Any] = {section: {} for section in SECTIONS}
        for key in KEYS.values():
            if key.table:
                tree[key.section][key.attribute] = {}
        for name, leaf in self.records.items():
            key, row = key_of(name)
            if key.table:
                tree[key.section][key.attribute][row] = leaf.resolved()
            else:
                tree[key.section][name.removeprefix(f"{key.section}.")] = leaf.resolved()
        return tree

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the resolved configuration as canonical JSON.

        The hash does not depend on the folder of a file or on the spelling of a value. The hashed
        text includes system.name. If a file does not state system.name, the name is the stem of the
        file name.
        """
        text = json.dumps(self.resolved(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


def load_preset(source: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """Return the configuration of a preset or of a TOML file.

    `source`: name of a preset, or path of a TOML file. `overrides`: texts "key=value". The capacity
    follows the flash unless an override or the file states it. Raises InputError if a file cannot
    be read, a preset, section, key or unit is unknown, a leaf or its source is missing, a value is
    invalid, or a rule between leaves is broken.
    """
    if not isinstance(source, str):
        as_path("device", source)
    where, leaves = read(os.fspath(source))
    changes = split_overrides(overrides, leaves)
    if changes:
        leaves = changed(leaves, changes, "--set ", "given on the command line")
    return _build(leaves, where)


def restored(records: Mapping[str, Mapping[str, Any]], where: str) -> Config:
    """Return the configuration whose leaves are stored in ``records``. The keys of ``records`` are
    the names of the leaves, and the values have the form of Leaf.resolved.

    Raises InputError if this program does not have the same keys, or if a rule between leaves is
    broken. The message begins with ``where``.
    """
    leaves = {}
    for name, record in records.items():
        if canonical(name, records, f"{where}: ") != name:
            raise InputError(
                f"{where}: {name} is a key of another version of ondie; use the version of ondie "
                "that wrote this configuration"
            )
        key = key_of(name)[0]
        value = record["value"]
        exactly = key.kind is not None and isinstance(value, int)
        text = exact(value, key.kind) if exactly and key.kind else spelled(value)
        leaves[name] = Leaf(
            name, text, value, record.get("low"), record.get("high"), record["source"],
            record["ref"], record.get("unit"),
        )  # fmt: skip
    missing = [name for name, key in KEYS.items() if not key.table and name not in leaves]
    if missing:
        raise InputError(
            f"{where}: {missing[0]} is missing, so the configuration is from another version of "
            "ondie; use the version of ondie that wrote it"
        )
    return _build(ordered(leaves), where)


def configuration(
    device: str | os.PathLike[str] | Config,
    settings: Iterable[str] = (),
    devices: int | None = None,
) -> Config:
    """Return the configuration of ``device`` (name of a preset, TOML file, or Config), with
    overrides. ``settings``: texts "key=value". ``devices``: number of drives.

    Raises InputError if a preset, key or value is invalid, if overrides are given with a Config, or
    if ``settings`` is a single string.
    """
    if isinstance(settings, str):
        raise InputError(f"settings = {settings!r}: must be a list, such as [{settings!r}]")
    extra = () if devices is None else (f"system.devices={devices}",)
    every = [*settings, *extra]
    if not isinstance(device, Config):
        return load_preset(device, every)
    if every:
        raise InputError(
            "settings and devices cannot be combined with a Config; use Config.replace, or give "
            "the name of a preset as device"
        )
    return device


def _build(leaves: Mapping[str, Leaf], where: str, before: Config | None = None) -> Config:
    """Return the checked configuration of `leaves`. Sections whose leaves are unchanged since
    `before` are shared with `before`. Raises InputError if a rule between leaves is broken."""
    same = before.records if before is not None else {}
    stale = {key_of(name)[0].section for name, leaf in leaves.items() if same.get(name) is not leaf}
    values: dict[str, dict[str, Any]] = {section: {} for section in stale}
    for key in KEYS.values():
        if key.table and key.section in stale:
            values[key.section][key.attribute] = {}
    for name, leaf in leaves.items():
        key, row = key_of(name)
        if key.section not in stale:
            continue
        if key.table:
            values[key.section][key.attribute][row] = leaf.value
        else:
            values[key.section][key.attribute] = leaf.value
    sections = {
        name: _converter.structure(values[name], cls) if name in stale else getattr(before, name)
        for name, cls in SECTIONS.items()
    }
    config = Config(**sections, records=dict(leaves))
    check(config, leaves, where)
    return config


@dataclass(frozen=True, slots=True)
class Summary:
    """Line of `ondie preset list` that describes one preset."""

    name: str
    capacity: str
    flash: str
    link: str
    isp: str
    pe: str
    leaves: int
    assumed: int


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One line of `ondie preset show` as text: a configuration key and its value. Without --why,
    range, source and reference are empty."""

    key: str
    value: str
    doc: str
    range: str = ""
    source: str = ""
    ref: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """Line of `ondie preset diff`: a key and its leaf in both configurations.

    The leaf is None if a configuration does not have the key.
    """

    key: str
    a: Leaf | None
    b: Leaf | None


def shown(value: Value | None, unit: str | None) -> str:
    """Return a leaf's value as text, such as "30 us", "true" or "0.07", or "" for None."""
    if value is None:
        return ""
    if unit is not None and isinstance(value, int):
        return exact(value, KINDS[unit])
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def preset_list() -> list[Summary]:
    """Return the summary of each preset that ships with the package, for `ondie preset list`."""
    lines = []
    for name in preset_names():
        config = load_preset(name)

        def text(key: str, config: Config = config) -> str:
            leaf = config.leaf(key)
            return shown(leaf.value, leaf.unit)

        geometry = " x ".join(
            text(f"flash.{key}")
            for key in ("channels", "dies_per_channel", "planes_per_die", "page")
        )
        engine = f"{text('isp.cores')} x {text('isp.frequency')}"
        isp = {"none": "none", "fpga": text("isp.engine"), "cores": engine}[config.isp.kind]
        lines.append(
            Summary(
                name,
                text("system.capacity"),
                f"{geometry} {text('flash.cell')}",
                text("link.up"),
                isp,
                text("pe.kind"),
                len(config.leaves()),
                len(config.assumed()),
            )
        )
    return lines


def preset_table(config: Config, why: bool = False) -> list[ConfigRow]:
    """Return the rows of `ondie preset show`: one for each key of ``config``. If ``why`` is True,
    the rows include range, source and reference."""
    rows = []
    for leaf in config.leaves():
        value, doc = shown(leaf.value, leaf.unit), key_of(leaf.key)[0].spec.doc
        if not why:
            rows.append(ConfigRow(leaf.key, value, doc))
            continue
        span = (
            ""
            if leaf.low is None
            else f"{shown(leaf.low, leaf.unit)} .. {shown(leaf.high, leaf.unit)}"
        )
        rows.append(ConfigRow(leaf.key, value, doc, span, leaf.source, leaf.ref))
    return rows


def diff(a: Config, b: Config) -> list[Difference]:
    """Return the keys whose values differ between two configurations, in the order of the tree."""
    pairs = [
        Difference(key, a.records.get(key), b.records.get(key))
        for key in ordered({**a.records, **b.records})
    ]
    return [
        pair for pair in pairs if pair.a is None or pair.b is None or pair.a.value != pair.b.value
    ]
