"""One value and its provenance: the leaf record, and its construction from a file or an override.

Owns Leaf and its rules: each leaf has a source and a reference, and a range if it is assumed. Does
not own files and sections (loader.py) or dependencies between leaves (rules/).
Source: this project. Every shipped value has one of SOURCES.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cattrs
from cattrs.errors import ForbiddenExtraKeysError

from ondie.emu.config.schema.keys import Key
from ondie.emu.units import (
    INT64_MAX,
    InputError,
    exact,
    known_names,
    largest,
    parse,
    parse_count,
    parse_ratio,
    quoted,
)

SOURCES = ("datasheet", "paper", "measured", "derived", "assumed")
Value = int | float | str | bool


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a configuration with its provenance.

    `value`, `low` and `high` are in the base unit that `unit` names ("ps", "bytes", ...; None for a
    value without a unit). `text` is the spelling in the file or on the command line. For choices
    and flags, `low` and `high` are values, too, and :func:`rank` defines their order. `source` is
    one of SOURCES, "set" for an override, or "follows" for a capacity that was scaled with the
    flash (nominal_capacity.py).
    """

    key: str
    text: str
    value: Value
    low: Value | None
    high: Value | None
    source: str
    ref: str
    unit: str | None

    def resolved(self) -> dict[str, Any]:
        """Return value, unit, range, source and reference as a dictionary for result.json. The unit
        and the range are omitted if they are None."""
        record: dict[str, Any] = {"value": self.value}
        if self.unit is not None:
            record["unit"] = self.unit
        if self.low is not None and self.high is not None:
            record |= {"low": self.low, "high": self.high}
        return record | {"source": self.source, "ref": self.ref}


@dataclass(frozen=True, slots=True)
class _Table:
    """Fields of the TOML table that states one leaf: a value and its provenance."""

    value: Any
    source: str
    ref: str
    low: Any = None
    high: Any = None


def _strict_text(value: object, _: type) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{quoted(value)} is not a string")
    return value


_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)
_converter.register_structure_hook(str, _strict_text)


def read_leaf(key: Key, name: str, table: object, where: str) -> Leaf:
    """Return leaf `name` from its TOML table `{ value, source, ref, low, high }`.

    Raises InputError if the table is invalid. The message names `where`, the key and the fault.
    """
    place = f"{where}: {name}"
    if not isinstance(table, dict):
        raise InputError(
            f"{place}: {quoted(table)} has no source; write "
            f'{{ value = ..., source = "...", ref = "..." }}'
        )
    try:
        raw = _converter.structure(table, _Table)
    except ForbiddenExtraKeysError as error:
        extra = sorted(error.extra_fields)[0]
        fields = ("value", "source", "ref", "low", "high")
        raise InputError(
            f"{place}: unknown field {quoted(extra)}; {known_names(extra, fields)}"
        ) from error
    except KeyError as error:
        raise InputError(
            f"{place}: {error.args[0]} is missing; every leaf states value, source and ref"
        ) from error
    except TypeError as error:
        raise InputError(f"{place}: source and ref must be strings: {error}") from error
    return _checked(key, name, raw, place)


def _checked(key: Key, name: str, raw: _Table, place: str) -> Leaf:
    if raw.source not in SOURCES:
        raise InputError(
            f"{place}: unknown source {quoted(raw.source)}; {known_names(raw.source, SOURCES)}"
        )
    ref = " ".join(raw.ref.split())
    if not ref:
        raise InputError(
            f'{place}: ref is ""; state where the value comes from, or why it is assumed'
        )
    value = read_value(key, raw.value, place)
    if (raw.low is None) != (raw.high is None):
        missing = "low" if raw.low is None else "high"
        raise InputError(f"{place}: {missing} is missing; a range needs low and high")
    if raw.low is None:
        if raw.source == "assumed" and key.name != "system.name":
            raise InputError(
                f"{place}: {quoted(raw.value)} is assumed but has no range; state low and high"
            )
        return Leaf(name, spelled(raw.value), value, None, None, raw.source, ref, key.unit)
    low = read_value(key, raw.low, f"{place}: low")
    high = read_value(key, raw.high, f"{place}: high")
    if not rank(key, low) <= rank(key, value) <= rank(key, high):
        raise InputError(
            f"{place}: {quoted(raw.value)} lies outside its range; it must be from "
            f"{quoted(raw.low)} to {quoted(raw.high)}"
        )
    return Leaf(name, spelled(raw.value), value, low, high, raw.source, ref, key.unit)


def override(key: Key, name: str, value: object, place: str, ref: str) -> Leaf:
    """Return a leaf with source "set" for a value from the command line or a caller.

    `value`: text with a unit, or a number in base units. Raises InputError if `value` is invalid.
    The message begins with `place`.
    """
    result = read_value(key, value, place, base_units=True)
    text = exact(value, key.kind) if key.kind and isinstance(value, int) else spelled(value)
    return Leaf(name, text, result, None, None, "set", ref, key.unit)


def spelled(value: object) -> str:
    """Return a value as TOML spells it: `true` or `false` for a flag, str(value) for any other
    value.
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def rank(key: Key, value: Value) -> float:
    """Return the position of `value` in the order of its key.

    The position is the number, or the index among the choices. Raises InputError if the key is free
    text, which has no order.
    """
    if key.type is str and not key.spec.choices:
        raise InputError(
            f"{key.name}: {quoted(value)} is text and cannot have a range; remove low and high, "
            'and give a source other than "assumed"'
        )
    return key.spec.choices.index(str(value)) if key.spec.choices else float(value)


def read_value(key: Key, value: object, place: str, *, base_units: bool = False) -> Value:
    """Return `value`, from TOML or from text, in the type of the key.

    A quantity needs a unit: a bare integer other than 0 is refused, unless `base_units` is True;
    then the integer is in base units. Raises InputError if the value is invalid. The message begins
    with `place`.
    """
    result = _typed(key, value, place, base_units)
    if not isinstance(result, str) and result < key.spec.least:
        least = exact(key.spec.least, key.kind) if key.kind else key.spec.least
        raise InputError(f"{place}: {quoted(value)} is too small; must be at least {least}")
    return result


def _typed(key: Key, value: object, place: str, base_units: bool) -> Value:
    if key.type is str:
        return _choice(key, value, place)
    if key.type is bool:
        return _flag(value, place)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise InputError(
            f"{place}: {quoted(value)} is not a number; write a number, or text with a unit"
        )
    if isinstance(value, int) and value > INT64_MAX:
        most = largest(key.kind) if key.kind else str(INT64_MAX)
        raise InputError(f"{place}: {quoted(value)} is too large; must be at most {most}")
    text = value if isinstance(value, str) else repr(value)
    if key.type is float:
        return parse_ratio(text, place, key.spec.least)
    if key.kind is None:
        return parse_count(text, place, int(key.spec.least))
    if base_units and isinstance(value, int):
        text = f"{value} {key.kind.shown[0]}"
    return parse(text, key.kind, place)


def _choice(key: Key, value: object, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{place}: {quoted(value)} is not a name; write nonempty text")
    choices = key.spec.choices
    if choices and value not in choices:
        raise InputError(f"{place}: {quoted(value)} is not valid; {known_names(value, choices)}")
    if not value.isprintable():
        raise InputError(f"{place}: {quoted(value)} must be printable text on one line")
    return value


def _flag(value: object, place: str) -> bool:
    flag = {"true": True, "false": False}.get(str(value).strip().lower())
    if flag is None:
        raise InputError(f"{place}: {quoted(value)} is not a flag; write true or false")
    return flag
