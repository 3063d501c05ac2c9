"""Data structures of the NVMe specifications, described by tables of fields.

Owns the record of a field, and the conversion between values and bytes. Does not own the tables
(identify_controller.py, identify_namespace.py, log_pages.py, registers.py and others).
Source: NVM Express Base Specification 2.0, section 1.5 (little-endian, bit and byte numbering).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Plain = int | str | bytes
Value = Plain | Callable[[Any], Plain]


class Field(NamedTuple):
    """Field of a data structure (see Structure)."""

    offset: int
    """Offset of the field from the start of the data structure, bytes."""
    size: int
    """Size of the field, bytes."""
    name: str
    """Abbreviation of the field's name in the specification."""
    title: str
    """Full name of the field in the specification."""
    value: Value = 0
    """Value of the field: a number (little-endian), text (ASCII, padded with spaces), or bytes
    (padded with zeros); or a function that computes the value from argument ``facts`` of
    Structure.pack."""

    def encode(self, facts: object) -> bytes:
        """Return the field as bytes[size]. ``facts``: see Structure.pack. Raises ValueError if the
        value does not fit in the field."""
        value = self.value(facts) if callable(self.value) else self.value
        if isinstance(value, int):
            if not 0 <= value < 1 << 8 * self.size:
                raise ValueError(f"{self.name} = {value}: does not fit in {self.size} bytes")
            return value.to_bytes(self.size, "little")
        data = value.encode("ascii") if isinstance(value, str) else value
        if len(data) > self.size:
            raise ValueError(f"{self.name}: {len(data)} bytes do not fit in {self.size} bytes")
        return data.ljust(self.size, b" " if isinstance(value, str) else b"\0")


@dataclass(frozen=True)
class Structure:
    """Layout of a data structure of an NVMe specification. Bytes that do not belong to a field
    are zero."""

    title: str
    size: int
    """Size of the structure, bytes."""
    source: str
    """Specification and figure that define the structure."""
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        end = 0
        for field in self.fields:
            if field.offset < end or field.offset + field.size > self.size:
                raise ValueError(
                    f"{self.title}: {field.name} has bytes {field.offset} to "
                    f"{field.offset + field.size - 1}; it must begin at byte {end} or later, and "
                    f"end before byte {self.size}"
                )
            end = field.offset + field.size

    def pack(self, facts: object = None) -> bytes:
        """Return the structure as bytes[size]. ``facts``: argument of the functions that return
        field values."""
        out = bytearray(self.size)
        for field in self.fields:
            out[field.offset : field.offset + field.size] = field.encode(facts)
        return bytes(out)

    def unpack(self, data: bytes) -> dict[str, int | bytes]:
        """Return the fields of ``data``, bytes[size], by name. Numbers of up to 16 bytes are
        returned as int; all other fields are returned as bytes. Raises ValueError if ``data`` does
        not have ``size`` bytes."""
        if len(data) != self.size:
            raise ValueError(f"{self.title}: {len(data)} bytes; must be {self.size} bytes")
        found: dict[str, int | bytes] = {}
        for field in self.fields:
            part = data[field.offset : field.offset + field.size]
            text = isinstance(field.value, str | bytes) or field.size > 16
            found[field.name] = part if text else int.from_bytes(part, "little")
        return found


def number_list(values: Mapping[int, int] | list[int], entry: int, size: int) -> bytes:
    """Return a list of little-endian numbers as bytes[size]. Bytes without a number are zero.

    ``values``: list of numbers, or numbers by index in the list. ``entry``: size of a number,
    bytes. Raises ValueError if the numbers do not fit in ``size`` bytes.
    """
    places = values if isinstance(values, Mapping) else dict(enumerate(values))
    out = bytearray(size)
    for place, value in places.items():
        if (place + 1) * entry > size:
            raise ValueError(f"entry {place} of {entry} bytes: does not fit in {size} bytes")
        out[place * entry : (place + 1) * entry] = value.to_bytes(entry, "little")
    return bytes(out)
