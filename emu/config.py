"""Configurations: TOML presets and overrides become one checked, frozen tree with provenance.

Owns reading presets and users' files, overrides, resolution, hashing, differences and tables.
Does not hold numbers (presets/*.toml), the tree itself (schema) or rules between leaves.
Source: TOML 1.0; a preset states every leaf, a user's file states `base` and what differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import cattrs

from ondie.emu import constraints
from ondie.emu.provenance import Leaf, Value, override, read_leaf
from ondie.emu.schema import (
    ALIASES,
    KEYS,
    SECTIONS,
    Dram,
    Ecc,
    Energy,
    Flash,
    Frontend,
    Ftl,
    Host,
    Isp,
    Key,
    Link,
    Pe,
    System,
    Tunnel,
)
from ondie.emu.units import KINDS, InputError, exact, nearest, quoted

__all__ = ["Config", "Difference", "InputError", "Leaf", "Row", "diff", "load_preset",
           "preset_names", "preset_table"]

PRESETS = Path(__file__).parent / "presets"
_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)


@dataclass(frozen=True)
class Config:
    """One system: a host, a link and its drives, as plain numbers plus their provenance.

    Attributes are in base units named by their suffix; `records` holds a Leaf per key. Compares
    by value; pickles. Build it with `load_preset`, change it with `replace`.
    """

    system: System
    host: Host
    link: Link
    frontend: Frontend
    flash: Flash
    ecc: Ecc
    ftl: Ftl
    dram: Dram
    isp: Isp
    pe: Pe
    tunnel: Tunnel
    energy: Energy
    records: Mapping[str, Leaf] = field(repr=False, compare=False)

    def leaf(self, key: str) -> Leaf:
        """The record of `key` ("flash.t_read"; the attribute "flash.t_read_ps" works too)."""
        return self.records[_known(key, self.records, "")]

    def leaves(self) -> list[Leaf]:
        """Every record, in the order of the tree."""
        return list(self.records.values())

    def assumed(self) -> list[Leaf]:
        """The records whose value is assumed; each has a range."""
        return [leaf for leaf in self.records.values() if leaf.source == "assumed"]

    def replace(self, changes: Mapping[str, Value], *, ref: str = "replaced by the caller"
                ) -> Config:
        """A copy with `changes` (text with units, or numbers in base units), fully checked.

        Changed leaves have source "set" and no range. Raises InputError.
        """
        return _build(_changed(self.records, changes, "", ref), self.system.name)

    def resolved(self) -> dict[str, Any]:
        """The whole configuration as plain nested data: section -> key -> value, unit, source."""
        tree: dict[str, Any] = {section: {} for section in SECTIONS}
        for name, leaf in self.records.items():
            *parents, last = name.split(".")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = leaf.resolved()
        return tree

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the resolved content as canonical JSON: independent of path and spelling."""
        text = json.dumps(self.resolved(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


def preset_names() -> tuple[str, ...]:
    """Names of the presets that ship with the package, sorted."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


def load_preset(source: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """The configuration of a preset's name, or of a TOML file (a path or a name ending .toml).

    `overrides` are "key=value" texts. Raises InputError: unknown preset, section, key or unit,
    missing leaf or source, bad value, or a broken rule between leaves.
    """
    where, leaves = _read(os.fspath(source), ())
    changes: dict[str, Value] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set {quoted(text)}: no value; write for example "
                             'flash.t_read="45 us"')
        name = _known(key.strip(), leaves, f"--set {text.strip()}: ")
        if name in changes:
            raise InputError(f"--set {quoted(text)}: {name} is set twice; state it once")
        changes[name] = value.strip()
    if changes:
        leaves = _changed(leaves, changes, "--set ", "given on the command line")
    return _build(leaves, where)


def _changed(leaves: Mapping[str, Leaf], changes: Mapping[str, Value], place: str, ref: str
             ) -> dict[str, Leaf]:
    result = dict(leaves)
    for key, value in changes.items():
        name = _known(key, leaves, place)
        result[name] = override(_key(name), name, value, place + name, ref)
    return _ordered(result)


def _key(name: str) -> Key:
    """The schema's key of a leaf's name; the rows of a table share the table's key."""
    return KEYS[name] if name in KEYS else KEYS[name.rpartition(".")[0]]


def _known(key: str, leaves: Iterable[str], place: str) -> str:
    """The canonical name of `key`, or InputError with the nearest right one."""
    name = ALIASES.get(key, key)
    if name in KEYS and not KEYS[name].table:
        return name
    table, _, row = name.rpartition(".")
    if row and table in KEYS and KEYS[table].table:
        return name
    names = [*(n for n in KEYS if not KEYS[n].table), *leaves]
    raise InputError(f"{place}unknown key {quoted(key)}; nearest: "
                     f"{_nearest_key(key, names)}")


def _nearest_key(key: str, names: Iterable[str]) -> str:
    """The most similar key: by its last part first, so that a wrong section is found as well."""
    names = list(dict.fromkeys(names))
    last = {name.rpartition(".")[2]: name for name in reversed(names)}
    found = nearest(key, names) if "." in key else None
    part = nearest(key.rpartition(".")[2], last)
    return found or (last[part] if part else "see `ondie preset show`")


def _read(source: str, chain: tuple[str, ...]) -> tuple[str, dict[str, Leaf]]:
    """The complete leaves of a preset or file, bases resolved, and its name for errors."""
    if source.endswith(".toml") or "/" in source or os.sep in source:
        path, where = Path(source), source
    elif source in preset_names():
        path, where = PRESETS / f"{source}.toml", source
    else:
        names = preset_names()
        raise InputError(f"unknown preset {quoted(source)}; nearest: "
                         f"{nearest(source, names) or ', '.join(names)} "
                         f"(of {', '.join(names)}, or a path ending .toml)")
    content = _toml(path, where)
    leaves: dict[str, Leaf] = {}
    if "base" in content:
        leaves |= _base(content.pop("base"), path, where, chain)
    for section, table in content.items():
        if section not in SECTIONS:
            raise InputError(f"{where}: unknown section {quoted(section)}; nearest: "
                             f"{nearest(section, (*SECTIONS, 'base')) or ', '.join(SECTIONS)}")
        if not isinstance(table, dict):
            raise InputError(f"{where}: {section} = {quoted(table)} is not a section; "
                             f"write [{section}]")
        leaves |= _section(section, table, where)
    missing = [name for name, key in KEYS.items() if name not in leaves and not key.table]
    if missing:
        raise InputError(f"{where}: {missing[0]} is missing ({len(missing)} in all); state every "
                         'leaf, or start from a preset with base = "newport"')
    return where, _ordered(leaves)


def _toml(path: Path, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{where}: no such file; presets are {', '.join(preset_names())}"
                         ) from error
    except OSError as error:
        raise InputError(f"{where}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: is not UTF-8 text, byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: is not TOML: {error}") from error


def _base(base: object, path: Path, where: str, chain: tuple[str, ...]) -> dict[str, Leaf]:
    if not isinstance(base, str):
        raise InputError(f'{where}: base = {quoted(base)} is not a name; write base = "newport"')
    chain = (*chain, str(path.resolve()))
    target = str(path.parent / base) if base.endswith(".toml") else base
    if base.endswith(".toml") and str(Path(target).resolve()) in chain:
        raise InputError(f"{where}: base = {quoted(base)} leads back to itself; "
                         "start from a preset")
    try:
        return _read(target, chain)[1]
    except InputError as error:
        raise InputError(f"{where}: base: {error}") from error


def _section(section: str, table: Mapping[str, Any], where: str) -> dict[str, Leaf]:
    leaves = {}
    for short, value in table.items():
        name = ALIASES.get(f"{section}.{short}", f"{section}.{short}")
        if name not in KEYS:
            raise InputError(f"{where}: unknown key {quoted(name)}; nearest: "
                             f"{_nearest_key(name, KEYS)}")
        if name in leaves:
            raise InputError(f"{where}: {name} is stated twice, once as {quoted(short)}")
        if not KEYS[name].table:
            leaves[name] = read_leaf(KEYS[name], name, value, where)
            continue
        if not isinstance(value, dict):
            raise InputError(f"{where}: {name} = {quoted(value)} is not a table; write [{name}]")
        for row, leaf in value.items():
            leaves[f"{name}.{row}"] = read_leaf(KEYS[name], f"{name}.{row}", leaf, where)
    return leaves


def _ordered(leaves: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """The leaves in the order of the tree, rows of a table by name."""
    order = {name: place for place, name in enumerate(KEYS)}
    return dict(sorted(leaves.items(), key=lambda item: (order[_key(item[0]).name], item[0])))


def _build(leaves: Mapping[str, Leaf], where: str) -> Config:
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for key in KEYS.values():
        if key.table:
            values[key.section][key.attribute] = {}
    for name, leaf in leaves.items():
        key = _key(name)
        if key.table:
            values[key.section][key.attribute][name.rpartition(".")[2]] = leaf.value
        else:
            values[key.section][key.attribute] = leaf.value
    sections = {name: _converter.structure(values[name], cls) for name, cls in SECTIONS.items()}
    config = Config(**sections, records=dict(leaves))
    constraints.check(config, leaves, where)
    return config


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `ondie preset show`: everything as text; `why` columns empty without --why."""

    key: str
    value: str
    doc: str
    range: str = ""
    source: str = ""
    ref: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """One line of `ondie preset diff`: None where a configuration has no such leaf."""

    key: str
    a: Leaf | None
    b: Leaf | None


def shown(value: Value | None, unit: str | None) -> str:
    """A leaf's value as text: "30 us", "true", "0.07"."""
    if value is None:
        return ""
    if unit is not None and isinstance(value, int):
        return exact(value, KINDS[unit])
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def preset_table(config: Config, why: bool = False) -> list[Row]:
    """Rows for `ondie preset show`, with range, source and reference if `why`."""
    rows = []
    for leaf in config.leaves():
        value, doc = shown(leaf.value, leaf.unit), _key(leaf.key).spec.doc
        if not why:
            rows.append(Row(leaf.key, value, doc))
            continue
        span = ("" if leaf.low is None else
                f"{shown(leaf.low, leaf.unit)} .. {shown(leaf.high, leaf.unit)}")
        rows.append(Row(leaf.key, value, doc, span, leaf.source, leaf.ref))
    return rows


def diff(a: Config, b: Config) -> list[Difference]:
    """The leaves whose values differ, in the order of the tree."""
    keys = _ordered({**a.records, **b.records})
    pairs = [Difference(key, a.records.get(key), b.records.get(key)) for key in keys]
    return [d for d in pairs
            if (d.a.value if d.a else None) != (d.b.value if d.b else None)]
