"""Loader: reads presets, users' files and overrides into leaves for a configuration.

Owns the files, `base` and `include`, the check of key names (with suggestions), the check that
every key has a value, and the order in which sources override each other. Does not own the check of
a single leaf (leaf.py) or of several leaves together (rules/, called by config.py).
Source: TOML 1.0.

A preset states every leaf, in its file or in a part that it includes. A user's file states `base`
and the leaves that differ. If the file does not state system.name, the name is the stem of the file
name.
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ondie.emu.config.leaf import Leaf, Value, override, read_leaf
from ondie.emu.config.nominal_capacity import followed
from ondie.emu.config.schema.keys import ALIASES, KEYS, SECTIONS, Key
from ondie.emu.units import InputError, known_names, nearest, quoted

PRESETS = Path(__file__).parent / "presets"
PARTS = PRESETS / "parts"
NO_LEAVES = ("datasheet",)
"""Tables of a preset or TOML file that are not part of the configuration (datasheet.py)."""
_TABLES = tuple(name for name, key in KEYS.items() if key.table)
WORDS = ("base", "include", *NO_LEAVES)
_PLAIN = tuple(name for name, key in KEYS.items() if not key.table)


def preset_names() -> tuple[str, ...]:
    """Return the names of the presets that ship with the package, sorted."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


def part_names() -> tuple[str, ...]:
    """Return the sorted names of the parts. A part is a shipped file with leaves; several presets
    can include the same part."""
    return tuple(sorted(path.stem for path in PARTS.glob("*.toml")))


def key_of(name: str) -> tuple[Key, str]:
    """Return the entry of the schema to which leaf `name` belongs, and the name of the leaf's row
    if this entry is a table, else ""."""
    if name in KEYS:
        return KEYS[name], ""
    table = next(t for t in _TABLES if name.startswith(t + "."))
    return KEYS[table], name[len(table) + 1 :]


def canonical(key: str, leaves: Iterable[str], place: str) -> str:
    """Return the name of leaf `key`, which may also be an attribute such as "flash.t_read_ps".

    Raises InputError for an unknown key; the message begins with `place` and names the nearest key.
    """
    name = ALIASES.get(key, key)
    if name in _PLAIN or any(name.startswith(t + ".") and name != t + "." for t in _TABLES):
        return name
    raise InputError(
        f"{place}unknown key {quoted(key)}; nearest: {nearest_key(key, (*_PLAIN, *leaves))}"
    )


def nearest_key(key: str, names: Iterable[str]) -> str:
    """Return the name that is most similar to the unknown key `key`, for use in an error message.
    If no name is similar, return the patterns of all sections, such as "flash.*".

    A very similar name in the section of the key is preferred. The next choice is a name with the
    same last part as the key in any section.
    """
    names = tuple(names)
    last = {name.rpartition(".")[2]: name for name in reversed(names)}
    section, _, part = key.rpartition(".")
    own = [name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == section]
    if section and (same := nearest(part, own, cutoff=0.75)):
        return f"{section}.{same}"
    if part in last:
        return last[part]
    found = nearest(key, names) if "." in key else None
    close = nearest(part, last)
    return found or (last[close] if close else ", ".join(f"{s}.*" for s in SECTIONS))


def ordered(leaves: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Return the leaves in the order of the configuration tree. Leaves that are rows of the same
    table are sorted by name."""
    return dict(sorted(leaves.items(), key=lambda item: _place_of(item[0])))


_ORDER = {name: place for place, name in enumerate(KEYS)}


@functools.lru_cache(maxsize=4096)
def _place_of(name: str) -> tuple[int, str]:
    """Return the sort key of leaf `name`: the position of its key in the schema, then the name."""
    return _ORDER[key_of(name)[0].name], name


def changed(
    leaves: Mapping[str, Leaf], changes: Mapping[str, Value], place: str, ref: str
) -> dict[str, Leaf]:
    """Return a copy of `leaves` with changed values. A changed leaf has the source "set" and the
    reference `ref`.

    `changes`: values by key, as text with units or as numbers in base units. The nominal capacity
    is scaled in proportion to the flash unless it is among `changes`. Raises InputError if a key is
    unknown or a value is invalid. The message begins with `place`.
    """
    result = dict(leaves)
    for key, value in changes.items():
        name = canonical(key, leaves, place)
        result[name] = override(key_of(name)[0], name, value, place + name, ref)
    given = [canonical(key, leaves, place) for key in changes]
    return ordered(followed(leaves, result, given))


def split_overrides(texts: Sequence[str], leaves: Iterable[str]) -> dict[str, Value]:
    """Split texts "key=value" into values by canonical key.

    Raises InputError if a text has no "=", a key is unknown, or a key is set twice.
    """
    changes: dict[str, Value] = {}
    leaves = tuple(leaves)
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(
                f'--set {quoted(text)}: no value; write, for example, flash.t_read="45 us"'
            )
        name = canonical(key.strip(), leaves, f"--set {quoted(text)}: ")
        if name in changes:
            raise InputError(f"--set {quoted(text)}: {name} is set twice; state it once")
        changes[name] = value.strip()
    return changes


def read(source: str, chain: tuple[str, ...] = ()) -> tuple[str, dict[str, Leaf]]:
    """Return the name of a preset or file for error messages, and all its leaves.

    The leaves include those of `base`. `chain`: the files that refer to this file through `base`.
    Raises InputError if a file cannot be read or is invalid.
    """
    if source in preset_names():
        where, leaves = _shipped(source)
        return where, dict(leaves)
    return _read(source, chain)


@functools.cache
def _shipped(name: str) -> tuple[str, dict[str, Leaf]]:
    """Return the name and the leaves of a shipped preset; each file is read once per process."""
    return _read(name, ())


def _read(source: str, chain: tuple[str, ...]) -> tuple[str, dict[str, Leaf]]:
    path, where = _locate(source)
    content = _toml(path, where, preset_names(), "presets")
    leaves: dict[str, Leaf] = {}
    base: dict[str, Leaf] = {}
    if "base" in content:
        base = _base(content.pop("base"), path, where, chain)
    if "include" in content:
        leaves |= _include(content.pop("include"), path, where)
    for table in NO_LEAVES:
        content.pop(table, None)
    leaves |= _sections(content, where)
    if base and "system.name" not in leaves:
        leaves["system.name"] = _name_of_file(path, where)
    leaves = followed(base, base | leaves, leaves) if base else leaves
    missing = [name for name in _PLAIN if name not in leaves]
    if missing:
        raise InputError(
            f"{where}: {missing[0]} is missing (missing keys: {len(missing)}); state every key, "
            'or use a preset as base, for example base = "newport"'
        )
    return where, ordered(leaves)


def read_table(source: str, table: str) -> tuple[str, dict[str, Any] | None]:
    """Return (name of preset or file `source` for error messages, content of its table `table`).
    `table`: one of NO_LEAVES.

    The content is None if the file does not have the table; the table of the base is not used.
    Raises InputError if the file cannot be read or is invalid.
    """
    path, where = _locate(source)
    found = _toml(path, where, preset_names(), "presets").get(table)
    if found is not None and not isinstance(found, dict):
        raise InputError(f"{where}: {table} = {quoted(found)} is not a section; write [{table}]")
    return where, found


def _name_of_file(path: Path, where: str) -> Leaf:
    """Return leaf system.name for a file with a base and without a name: the stem of the file name.

    With the name of the base, results of the file could be mistaken for results of the base. Raises
    InputError if the stem is not a valid name.
    """
    leaf = {"value": path.stem, "source": "derived", "ref": "name of the file, which states none"}
    return read_leaf(KEYS["system.name"], "system.name", leaf, where)


def _sections(content: Mapping[str, Any], where: str) -> dict[str, Leaf]:
    leaves: dict[str, Leaf] = {}
    for section, table in content.items():
        if section not in SECTIONS:
            raise InputError(
                f"{where}: unknown section {quoted(section)}; "
                f"{known_names(section, (*SECTIONS, *WORDS))}"
            )
        if not isinstance(table, dict):
            raise InputError(
                f"{where}: {section} = {quoted(table)} is not a section; write [{section}]"
            )
        leaves |= _section(section, table, where)
    return leaves


def _include(name: object, path: Path, where: str) -> dict[str, Leaf]:
    """Return the leaves of a part, which several presets share.

    `name`: name of a shipped part, or a path relative to the file that includes it. A part must not
    have a base or include another part. Raises InputError if the part is unknown or invalid.
    """
    if not isinstance(name, str) or not name.isprintable():
        raise InputError(
            f"{where}: include = {quoted(name)} is not a name; write, for example, "
            'include = "management"'
        )
    place = f"{where}: include: {name}"
    names = part_names()
    if not name.endswith(".toml") and name not in names:
        raise InputError(
            f"{place}: unknown part; {known_names(name, names)}, or a path that ends in .toml"
        )
    part = path.parent / name if name.endswith(".toml") else PARTS / f"{name}.toml"
    content = _toml(part, place, names, "parts")
    for word in ("base", "include"):
        if word in content:
            raise InputError(
                f"{place}: contains {word} = {quoted(content[word])}; a part contains only sections"
            )
    return _sections(content, place)


def _locate(source: str) -> tuple[Path, str]:
    names = preset_names()
    if source in names:
        return PRESETS / f"{source}.toml", source
    if not source.isprintable() or not (source.endswith(".toml") or os.sep in source):
        known = f"{known_names(source, names)}, or a path that ends in .toml"
        raise InputError(f"unknown preset {quoted(source)}; {known}")
    return Path(source), source


def _toml(path: Path, where: str, known: tuple[str, ...], what: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{where}: no such file; {what} are {', '.join(known)}") from error
    except OSError as error:
        raise InputError(f"{where}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: is not UTF-8 text: byte {error.start} is invalid") from error
    except RecursionError as error:
        raise InputError(f"{where}: is not TOML: nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError, and integers of thousands of digits
        raise InputError(f"{where}: is not TOML: {' '.join(str(error).split())}") from error


def _base(base: object, path: Path, where: str, chain: tuple[str, ...]) -> dict[str, Leaf]:
    if not isinstance(base, str) or not base.isprintable():
        raise InputError(
            f"{where}: base = {quoted(base)} is not a name; write the name of a preset, for "
            'example base = "newport"'
        )
    chain = (*chain, str(path.resolve()))
    target = str(path.parent / base) if base.endswith(".toml") else base
    if base.endswith(".toml") and str(Path(target).resolve()) in chain:
        raise InputError(
            f"{where}: base = {quoted(base)} refers back to this file; use a preset as base"
        )
    try:
        return read(target, chain)[1]
    except InputError as error:
        raise InputError(f"{where}: base: {error}") from error


def _section(section: str, table: Mapping[str, Any], where: str) -> dict[str, Leaf]:
    leaves: dict[str, Leaf] = {}
    for short, value in table.items():
        name = ALIASES.get(f"{section}.{short}", f"{section}.{short}")
        if name not in KEYS:
            raise InputError(
                f"{where}: unknown key {quoted(name)}; nearest: {nearest_key(name, KEYS)}"
            )
        key = KEYS[name]
        if not key.table:
            rows = {name: value}
        elif isinstance(value, dict):
            rows = {f"{name}.{row}": leaf for row, leaf in value.items()}
        else:
            raise InputError(f"{where}: {name} = {quoted(value)} is not a table; write [{name}]")
        for row, leaf in rows.items():
            if row in leaves:
                raise InputError(
                    f"{where}: {row} is stated twice, once as {quoted(short)}; state it once"
                )
            if not row.isprintable() or row.endswith("."):
                raise InputError(
                    f"{where}: {quoted(row)} is not a key; write a nonempty name on one line"
                )
            leaves[row] = read_leaf(key, row, leaf, where)
    return leaves
