"""Physical quantities as text and as exact integers: "45 us", "16 KiB".

This module owns the unit tables, exact parsing (decimal fractions, no floats) and the number
formats of reports. The suffix of a key's name gives its unit: `t_read_ps` is a time in ps.
Source: SI and IEC 80000-13 prefixes (KB = 1000 B, KiB = 1024 B); ONFI: one byte per transfer.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

INT64_MAX = 2**63 - 1


class InputError(ValueError):
    """Error due to invalid input. The message is one line: location, key, value, valid values."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of quantity.

    `suffix` is the ending of attribute names and the name of the base unit in results. `units` maps
    each accepted unit to its size in base units, smallest first. `shown` lists the units used in
    output. `example` is a value for error messages. If `rounds` is true, a rate that is not a whole
    number of base units (7/3 GB/s) is rounded to the nearest whole number, half to even. Other
    kinds reject such a value.
    """

    name: str
    suffix: str
    units: Mapping[str, Fraction]
    shown: tuple[str, ...]
    example: str
    rounds: bool = False


_DECIMAL = {"": 0, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}
_BYTES = {prefix + "B": Fraction(10**power) for prefix, power in _DECIMAL.items()}
_BYTES |= {prefix + "B": Fraction(2**power) for prefix, power in _BINARY.items()}
_SIZES = {**_BYTES, "kB": Fraction(1000)}
_RATES = {f"{unit}/s": factor for unit, factor in _SIZES.items()}
_RATES |= {"MT/s": Fraction(10**6), "GT/s": Fraction(10**9)}
_RATES |= {"Mbit/s": Fraction(10**6, 8), "Gbit/s": Fraction(10**9, 8)}
_JOULES = {
    unit: Fraction(10**power)
    for unit, power in {"fJ": 0, "pJ": 3, "nJ": 6, "uJ": 9, "mJ": 12, "J": 15}.items()
}
_TIMES = {
    unit: Fraction(10**power)
    for unit, power in {"ps": 0, "ns": 3, "us": 6, "ms": 9, "s": 12}.items()
}
_LONG_TIMES = {"h": 3600 * _TIMES["s"], "d": 86_400 * _TIMES["s"]}

KINDS: dict[str, Kind] = {
    kind.suffix: kind
    for kind in (
        Kind(
            "time",
            "ps",
            {
                **_TIMES,
                **_LONG_TIMES,
                "\u00b5s": Fraction(10**6),
                "\u03bcs": Fraction(10**6),
            },
            (*_TIMES, *_LONG_TIMES),
            "45 us",
        ),
        Kind("size", "bytes", _SIZES, tuple(_BYTES), "16 KiB"),
        Kind(
            "rate",
            "bytes_per_s",
            _RATES,
            tuple(f"{unit}/s" for unit in _BYTES),
            "7.3 GB/s",
            rounds=True,
        ),
        Kind(
            "frequency",
            "hz",
            {
                unit: Fraction(10**power)
                for unit, power in {"Hz": 0, "kHz": 3, "MHz": 6, "GHz": 9}.items()
            },
            ("Hz", "kHz", "MHz", "GHz"),
            "1.0 GHz",
            rounds=True,
        ),
        Kind(
            "update rate",
            "params_per_s",
            {
                unit: Fraction(10**power)
                for unit, power in {
                    "param/s": 0,
                    "kparam/s": 3,
                    "Mparam/s": 6,
                    "Gparam/s": 9,
                }.items()
            },
            ("param/s", "kparam/s", "Mparam/s", "Gparam/s"),
            "4 Gparam/s",
            rounds=True,
        ),
        Kind(
            "FLOP rate",
            "flop_per_s",
            {
                unit: Fraction(10**power)
                for unit, power in {"FLOP/s": 0, "GFLOP/s": 9, "TFLOP/s": 12, "PFLOP/s": 15}.items()
            },
            ("FLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"),
            "312 TFLOP/s",
            rounds=True,
        ),
        Kind(
            "power",
            "mw",
            {"mW": Fraction(1), "W": Fraction(1000), "kW": Fraction(10**6)},
            ("mW", "W", "kW"),
            "120 W",
        ),
        Kind(
            "energy per bit",
            "fj_per_bit",
            {f"{unit}/bit": _JOULES[unit] for unit in ("fJ", "pJ", "nJ")},
            ("fJ/bit", "pJ/bit", "nJ/bit"),
            "5.8 pJ/bit",
        ),
        Kind("energy", "fj", _JOULES, tuple(_JOULES), "3.7 pJ"),
    )
}


def kind_of(attribute: str) -> Kind | None:
    """Return the kind of an attribute from the suffix of its name (`t_read_ps`: time), or None if
    no suffix matches.
    """
    for suffix in sorted(KINDS, key=len, reverse=True):
        if attribute == suffix or attribute.endswith("_" + suffix):
            return KINDS[suffix]
    return None


def nearest(word: str, options: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the option most similar to `word`, or None if no option is similar.

    `cutoff`: minimum similarity, from 0 to 1 (ratio of difflib.SequenceMatcher).
    """
    names = list(options)
    folded = {name.casefold(): name for name in reversed(names)}
    if word.casefold() in folded:
        return folded[word.casefold()]
    close = difflib.get_close_matches(word.casefold(), list(folded), n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


def known_names(word: str, options: Iterable[str]) -> str:
    """Return the end of an error message about an invalid option. It names the most similar valid
    option, if any, and all valid options.

    ``word``: the option that the user gave.
    """
    names = list(options)
    near = nearest(word, names)
    listed = ", ".join(names)
    return f"use one of {listed}" if near is None else f"nearest: {near} (of {listed})"


def quoted(value: object) -> str:
    """Return a value in double quotes for an error message, on one line and shortened to 60
    characters.
    """
    try:
        text = value if isinstance(value, str) else str(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        text = "a huge number"
    text = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
    return f'"{text[:57]}..."' if len(text) > 60 else f'"{text}"'


_DIGITS = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(
    r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*)", re.ASCII | re.DOTALL
)


def parse(text: str, kind: Kind, key: str) -> int:
    """Return `text` as an exact whole number of base units of `kind`.

    "0" needs no unit. Raises InputError, which names `key`, for a missing or unknown unit, a
    negative number, a value above the int64 maximum, NaN, infinity, or a fraction of the base unit
    (see Kind.rounds).
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f'{key}: {quoted(text)} is not {_a(kind)}; write for example "{kind.example}"'
        )
    digits, unit = match[1], match[2].strip()
    number = Decimal(digits)
    if number.is_zero() and not unit:
        return 0
    if unit not in kind.units:
        raise InputError(f"{key}: {quoted(text)} {_unit_problem(unit, kind)}")
    return _whole(number, kind.units[unit], kind, key, text)


def _a(kind: Kind) -> str:
    """Return the name of a kind with its indefinite article."""
    return f"an {kind.name}" if kind.name[0] in "aeiou" else f"a {kind.name}"


def _unit_problem(unit: str, kind: Kind) -> str:
    """Return the part of an error message that explains why `unit` is wrong for `kind`."""
    known = ", ".join(kind.shown)
    if not unit:
        return f'has no unit; write for example "{kind.example}" (units: {known})'
    other = next((one for one in KINDS.values() if unit in one.units), None)
    if other is not None:
        return f'is {_a(other)}, not {_a(kind)}; write for example "{kind.example}"'
    close = nearest(unit, kind.units) or min(
        kind.units,
        key=lambda known_unit: (
            -difflib.SequenceMatcher(None, unit, known_unit).ratio(),
            not unit.startswith(known_unit),  # "days" contains "s" as well as "d"
        ),
    )
    if unit.endswith("b/s") and unit[:-3] in ("M", "G", "m", "g"):
        close = f"{unit[0].upper()}B/s for bytes, {unit[0].upper()}bit/s for bits"
    return f"has an unknown unit {quoted(unit)}; nearest: {close} (units: {known})"


def _whole(number: Decimal, factor: Fraction, kind: Kind, key: str, text: str) -> int:
    """Return number x factor as a whole number from 0 to the int64 maximum.

    `key`, `text`: key and original text of the value, for messages. Raises InputError as
    :func:`parse` does.
    """
    base = kind.shown[0]
    if number.is_signed() and not number.is_zero():
        raise InputError(f"{key}: {quoted(text)} is too small; must be at least 0 {base}")
    if number.is_zero():
        return 0
    if number.adjusted() > 30:  # prevents Fraction from expanding 1e999999999 to a billion digits
        raise InputError(f"{key}: {quoted(text)} is too large; must be at most {largest(kind)}")
    if number.adjusted() < -40:
        raise InputError(f"{key}: {quoted(text)} is too small; must be at least 1 {base}")
    value = Fraction(number) * factor
    whole = round(value)
    if value != whole and not kind.rounds:
        raise InputError(
            f"{key}: {quoted(text)} is not a whole number of {base}; "
            f"nearest: {exact(max(whole, 1), kind)}"
        )
    if whole == 0:
        raise InputError(f"{key}: {quoted(text)} rounds to 0; must be at least 1 {base}")
    if whole > INT64_MAX:
        raise InputError(f"{key}: {quoted(text)} is too large; must be at most {largest(kind)}")
    return whole


def largest(kind: Kind) -> str:
    """Return the largest value of a kind as text for messages; for a time, also in days."""
    days = f" ({INT64_MAX // int(kind.units['d'])} d)" if "d" in kind.units else ""
    return exact(INT64_MAX, kind) + days


def parse_count(text: str, key: str, least: int = 0) -> int:
    """Return the plain whole number ("24", "1e9", "1_000_000") in a text, from 0 to the int64
    maximum.

    Raises InputError, which names `key`, if the text is not such a number. `least`: minimum of
    `key`; the message about a negative number states it. The caller checks that the value is at
    least `least`.
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2]:
        raise InputError(f"{key}: {quoted(text)} is not a whole number; write for example 8 or 1e9")
    number = Decimal(match[1])
    if number.is_signed() and not number.is_zero():
        raise InputError(f"{key}: {quoted(text)} is too small; must be at least {least}")
    if number.adjusted() > 30 or number > INT64_MAX:
        raise InputError(f"{key}: {quoted(text)} is too large; must be at most {INT64_MAX}")
    if number.adjusted() < -40 or number != number.to_integral_value():
        raise InputError(f"{key}: {quoted(text)} is not a whole number; write for example 8 or 1e9")
    return int(number)


def digits(text: str) -> int:
    """Return the whole number that ``text`` states in decimal digits, with or without a sign.
    Raises ValueError for other text, including text that int() accepts: "1_000", " 1", digits of
    other scripts.
    """
    if not _DIGITS.fullmatch(text):
        raise ValueError(f"{quoted(text)} is not a whole number in decimal digits")
    return int(text)


def parse_ratio(text: str, key: str, least: float = 0) -> float:
    """Return the value of a plain number or a quotient ("0.07", "3.08/32.3"), a finite float.

    Raises InputError, which names `key`, if the text is not such a number, or if a number is
    negative. `least`: minimum of `key`; the message about a negative number states it. The caller
    checks that the value is at least `least`.
    """
    parts = [_NUMBER.fullmatch(part.strip()) for part in text.split("/")]
    numbers = [Decimal(match[1]) for match in parts if match is not None and not match[2]]
    if (
        len(numbers) != len(parts)
        or len(numbers) > 2
        or any(abs(number.adjusted()) > 40 for number in numbers if number)
    ):
        raise InputError(
            f"{key}: {quoted(text)} is not a number; write for example 0.07 or 3.08/32.3"
        )
    if any(number.is_signed() and number for number in numbers):
        raise InputError(f"{key}: {quoted(text)} is too small; must be at least {least}")
    if len(numbers) == 2 and not numbers[1]:
        raise InputError(f"{key}: {quoted(text)} divides by zero; write for example 3.08/32.3")
    return float(Fraction(numbers[0]) / (Fraction(numbers[1]) if len(numbers) == 2 else 1))


def exact(value: int, kind: Kind) -> str:
    """Return the shortest text that `parse` converts back to exactly `value`: 16384 -> "16 KiB"."""
    if value == 0:
        return f"0 {kind.shown[0]}"
    best = f"{value} {kind.shown[0]}"
    for unit in kind.shown[1:]:
        scaled = Fraction(value) / kind.units[unit]
        digits = _terminating(scaled) if scaled >= 1 else None
        if digits is not None and len(f"{digits} {unit}") <= len(best):
            best = f"{digits} {unit}"
    return best


def _terminating(value: Fraction) -> str | None:
    """Return a fraction as a decimal number of up to 12 places, or None if it needs more."""
    scaled = value * 10**12
    if scaled.denominator != 1:
        return None
    whole, rest = divmod(scaled.numerator, 10**12)
    return f"{whole}.{rest:012d}".rstrip("0").rstrip(".")


def _three(value: float, kind: Kind, units: tuple[str, ...]) -> str:
    """Format ``value`` base units with three significant digits.

    The result uses the largest of ``units`` that is not larger than the value.
    """
    amount = Fraction(value)
    if amount == 0:
        return f"0 {units[0]}"
    sign, amount = ("-", -amount) if amount < 0 else ("", amount)
    for unit in reversed(units):
        scaled = amount / kind.units[unit]
        if scaled >= Fraction(9995, 10000) or unit == units[0]:  # 999.5 rounds up to 1000
            break
    places = 2 if scaled < Fraction(9995, 1000) else 1 if scaled < Fraction(9995, 100) else 0
    if scaled >= 1000:
        step = 10 ** (len(str(int(scaled))) - 3)
        return f"{sign}{round(scaled / step) * step} {unit}"
    if scaled < Fraction(9995, 10000):  # below the smallest unit
        return f"{sign}{float(scaled):.3g} {unit}"
    whole = round(scaled * 10**places)
    text = str(whole) if places == 0 else f"{whole // 10**places}.{whole % 10**places:0{places}d}"
    return f"{sign}{text} {unit}"


_DECIMAL_BYTES = ("B", "KB", "MB", "GB", "TB", "PB")
_BINARY_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def fmt_time(ps: float) -> str:
    """Format picoseconds with three significant digits: 45_600_000 -> "45.6 us"."""
    return _three(ps, KINDS["ps"], tuple(_TIMES))


def fmt_bytes(count: float, *, binary: bool = False) -> str:
    """Format bytes: 1_230_000 -> "1.23 MB", or with `binary` in KiB, MiB, ..."""
    return _three(count, KINDS["bytes"], _BINARY_BYTES if binary else _DECIMAL_BYTES)


def fmt_rate(bytes_per_s: float) -> str:
    """Format bytes per second: 7_300_000_000 -> "7.30 GB/s"."""
    return _three(bytes_per_s, KINDS["bytes_per_s"], tuple(f"{unit}/s" for unit in _DECIMAL_BYTES))


def fmt_energy(fj: float) -> str:
    """Format femtojoules: 2_480_000_000 -> "2.48 uJ"."""
    return _three(fj, KINDS["fj"], KINDS["fj"].shown)


_LARGE = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"))


def fmt_count(value: float) -> str:
    """Format a dimensionless number with three significant digits: 12_400_000 -> "12.4 M".

    Numbers below 1000 have no prefix: 99.8 -> "99.8".
    """
    for size, prefix in _LARGE:
        if abs(value) >= 0.9995 * size:  # 999.5 rounds up to 1000
            scaled = value / size
            places = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
            return f"{scaled:.{places}f}{prefix}"
    return f"{value:.3g}"


SI_PREFIXES = ((1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"))


def si_prefix(value: float) -> tuple[float, str]:
    """Return (scale, prefix) of the largest SI prefix in which ``value`` is at least 1.

    Use it for a table column or an axis with one unit: 0.025 -> (0.001, "m"). Values below 1e-9 get
    the smallest prefix, "n".
    """
    return next((each for each in SI_PREFIXES if value >= each[0]), SI_PREFIXES[-1])


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1: 1 step, 2 steps."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def fmt_flops(flop_per_s: float) -> str:
    """Format floating-point operations per second: 137_280_000_000_000 -> "137 TFLOP/s"."""
    return _three(flop_per_s, KINDS["flop_per_s"], KINDS["flop_per_s"].shown)


def fmt_update_rate(params_per_s: float) -> str:
    """Format parameters per second: 498_000_000 -> "498 Mparam/s"."""
    return _three(params_per_s, KINDS["params_per_s"], KINDS["params_per_s"].shown)


def _one_line(value: object) -> str:
    """Return the repr of a value on one line, quoted and shortened if it is longer than 60
    characters.
    """
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        return "a huge number"
    return text if len(text) <= 60 and text.isprintable() else quoted(text)


def real_number(name: str, value: float) -> float:
    """Return ``value`` as a float. Raises InputError if it is not a finite number."""
    try:
        found = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise InputError(f"{name} = {_one_line(value)}: must be a finite number")
    return found


def whole_number(name: str, value: int, least: int, most: int) -> int:
    """Return ``value`` as an int. Raises InputError if it is not a whole number from ``least`` to
    ``most``."""
    try:
        found = operator.index(value)
    except TypeError:
        raise InputError(f"{name} = {_one_line(value)}: must be a whole number") from None
    if not least <= found <= most:
        shown = found if abs(found) < 1 << 128 else quoted(found)
        raise InputError(f"{name} = {shown}: must be from {least} to {most}")
    return found
