"""Descriptions of MQSim's parameters (name, unit, range, default), and the parser of their values.

Owns P, the annotation of a dataclass field, and the reading of XML elements into such a dataclass.
Does not own the list of parameters (ssdconfig.py, workload_xml.py) or their combined meaning
(to_engine.py).
Source: the names, units and built-in values of MQSim's parameter sets (A. Tavakkol et al., 2018).

This reader raises errors where MQSim's reader is lenient: MQSim reads "8k" as 8, "750.5" as 750 and
"no" as true, uses the last of two values, skips unknown parameters, and leaves missing parameters
undefined.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from ondie.emu.replay.mqsim.xml import Element
from ondie.emu.units import InputError, nearest, quoted

INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class P:
    """Description of a parameter of MQSim; it annotates the dataclass field that holds the value.

    The type of the field is the type of the parameter. ``least`` and ``most`` are in ``unit``,
    MQSim's unit; the field holds ``scale`` times the value, so that a time in ns is stored in ps.
    ``default``: value in MQSim's notation that is used if the parameter is missing and has no
    effect; if the parameter has an effect, its absence is an error whose message shows the default.
    ``ignored``: reason why the value has no effect, either here or in MQSim.
    """

    name: str
    doc: str
    unit: str = ""
    least: int = 0
    most: int = INT32_MAX
    scale: int = 1
    choices: tuple[str, ...] = ()
    default: str | None = None
    aliases: tuple[str, ...] = ()
    ignored: str = ""


@dataclass(frozen=True)
class Parameter:
    """A parameter of MQSim together with the dataclass field that holds its value."""

    attribute: str
    type: Any
    p: P

    def right(self) -> str:
        """Return a phrase that states the valid values of the parameter, such as "use true or
        false"."""
        if self.type is bool:
            return "use true or false"
        if self.p.choices:
            return f"use one of {', '.join(self.p.choices)}"
        if self.type is str:
            return "use a name"
        if get_origin(self.type) is tuple:
            return f"use whole numbers from {self.p.least} to {self.p.most}, separated by commas"
        unit = f" of {self.p.unit}" if self.p.unit else ""
        if self.rate:
            return f"use a number{unit} above {self.p.least} and at most {self.p.most}"
        kind = "a number" if self.type is float else "a whole number"
        return f"use {kind}{unit} from {self.p.least} to {self.p.most}"

    @property
    def rate(self) -> bool:
        """True if the parameter is a rate in GB/s. The file may give such a rate with a fraction,
        although the field, in bytes/s, holds an integer."""
        return self.p.unit == "GB/s"


def parameters(cls: type[Any]) -> tuple[Parameter, ...]:
    """Return MQSim's parameters that the fields of the dataclass ``cls`` hold, in the order of the
    fields."""
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            kind, *marks = get_args(hint)
            found += [Parameter(field.name, kind, mark) for mark in marks if isinstance(mark, P)]
    return tuple(found)


@dataclass
class Values:
    """Values read from a parameter set of an MQSim file: values and line numbers by attribute name,
    and the parameters that are missing."""

    where: str
    values: dict[str, Any]
    lines: dict[str, int]
    missing: list[Parameter]


def read(
    elements: Sequence[Element],
    known: Sequence[Parameter],
    where: str,
    skipped: Mapping[str, str] = {},
    elsewhere: Mapping[str, str] = {},
) -> Values:
    """Return the values of ``elements``, each of which must have the name of a parameter in
    ``known``.

    ``where``: name of the file, for error messages. ``skipped``: mapping whose keys are the names
    of elements that MQSim and this reader skip. ``elsewhere``: for error messages, names of
    parameters that belong to another set, each with the name of that set. Raises InputError if the
    name of an element is neither in ``known`` nor in ``skipped``, if a name is repeated, or if a
    value is invalid.
    """
    by_name = {name: key for key in known for name in (key.p.name, *key.p.aliases)}
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for element in elements:
        place = f"{where}: line {element.line}: {element.name}"
        parameter = by_name.get(element.name)
        if parameter is None:
            if element.name in skipped:
                continue
            if element.name in elsewhere:
                raise InputError(f"{place} belongs to {elsewhere[element.name]}; move it there")
            near = nearest(element.name, [*by_name, *elsewhere])
            raise InputError(
                f"{where}: line {element.line}: unknown parameter {quoted(element.name)}; "
                + (f"nearest: {near}" if near else "MQSim has no similar parameter")
            )
        if parameter.attribute in values:
            first = lines[parameter.attribute]
            raise InputError(f"{place} is already given on line {first}; give it once")
        values[parameter.attribute] = parse(parameter, element.text, place)
        lines[parameter.attribute] = element.line
    missing = [key for key in known if key.attribute not in values]
    return Values(where, values, lines, missing)


def complete(found: Values, line: int, matters: Callable[[Parameter], bool], else_: str) -> None:
    """Set each missing parameter that has no effect to its default.

    ``line``: line at which the set of parameters begins in the file. ``matters``: function that
    returns True if a parameter has an effect. ``else_``: end of the message if the parameter has no
    default. Raises InputError if a parameter that has an effect is missing; the message names the
    first such parameter.
    """
    wanted = [key for key in found.missing if matters(key) and not key.p.ignored]
    if wanted:
        first = wanted[0].p
        count = f" ({len(wanted)} missing parameters)" if len(wanted) > 1 else ""
        would = f"MQSim would use {first.default}" if first.default is not None else else_
        raise InputError(f"{found.where}: line {line}: {first.name} is missing{count}; {would}")
    for key in found.missing:
        assert key.p.default is not None, key.p.name
        found.values[key.attribute] = parse(key, key.p.default, f"{found.where}: {key.p.name}")


_WHOLE = re.compile(r"[+-]?\d{1,40}", re.ASCII)
_REAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


def parse(parameter: Parameter, text: str, place: str) -> Any:
    """Return the value of a parameter in the field's unit. Raises InputError if ``text`` is not a
    valid value; the message states ``place`` and the valid values."""
    p, kind = parameter.p, parameter.type

    def bad(why: str = "") -> InputError:
        return InputError(f"{place} is {quoted(text)}{why}: {parameter.right()}")

    if kind is bool:
        if text.casefold() not in ("true", "false"):
            raise bad(" (MQSim reads every value but false as true)" if text else "")
        return text.casefold() == "true"
    if p.choices:
        folded = {choice.casefold(): choice for choice in p.choices}
        if text.casefold() not in folded:
            near = nearest(text, p.choices) if text else None
            raise bad(f" (nearest: {near})" if near else "")
        return folded[text.casefold()]
    if kind is str:
        if not text or not text.isprintable():
            raise bad()
        return text
    if get_origin(kind) is tuple:
        numbers = [part.strip() for part in text.split(",")]
        if not all(_WHOLE.fullmatch(each) and p.least <= int(each) <= p.most for each in numbers):
            raise bad()
        return tuple(sorted({int(each) for each in numbers}))
    if kind is float or parameter.rate:
        if not _REAL.fullmatch(text):
            raise bad()
        number = Fraction(Decimal(text))
        value = float(number) if kind is float else round(number * p.scale)
        if not p.least <= number <= p.most or (parameter.rate and value == 0):
            raise bad()
        return value
    if not _WHOLE.fullmatch(text):
        raise bad(" (MQSim would stop at the first character that is not a digit)" if text else "")
    if not p.least <= int(text) <= p.most:
        raise bad()
    return int(text) * p.scale


def spelled(parameter: Parameter, value: Any) -> str:
    """Return the value of a dataclass field in MQSim's notation: MQSim's unit and spelling."""
    if parameter.type is bool:
        return "true" if value else "false"
    if get_origin(parameter.type) is tuple:
        return ",".join(map(str, value))
    if isinstance(value, int):
        whole = Fraction(value, parameter.p.scale)
        return str(whole.numerator) if whole.denominator == 1 else repr(float(whole))
    return str(value)
