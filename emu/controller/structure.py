"""Data structures of the specification as tables of fields.

Owns the record of a field and the conversion of a table to bytes and back. Does not own any table
(identify_controller.py, identify_namespace.py, log_pages.py, registers.py).
Source: NVM Express Base Specification 2.0, section 1.5 (little-endian, bit and byte numbering).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Plain = int | str | bytes
Value = Plain | Callable[[Any], Plain]


class Field(NamedTuple):
    """Field of a structure."""

    offset: int
    """First byte in the structure."""
    size: int
    """Number of bytes."""
    name: str
    """Abbreviation that the specification uses."""
    title: str
    """Name that the specification uses."""
    value: Value = 0
    """Number (little-endian), text (ASCII, padded with spaces), bytes (padded with zeros), or a
    function of the facts of the structure that returns one of them."""

    def encode(self, facts: object) -> bytes:
        """Return the bytes of the field. Raises ValueError for a value that does not fit."""
        value = self.value(facts) if callable(self.value) else self.value
        if isinstance(value, int):
            if not 0 <= value < 1 << 8 * self.size:
                raise ValueError(f"{self.name} = {value}: does not fit in {self.size} bytes")
            return value.to_bytes(self.size, "little")
        data = value.encode("ascii") if isinstance(value, str) else value
        if len(data) > self.size:
            raise ValueError(f"{self.name}: {len(data)} bytes; the field has {self.size}")
        return data.ljust(self.size, b" " if isinstance(value, str) else b"\0")


@dataclass(frozen=True)
class Structure:
    """Data structure of the specification. Bytes of no field are reserved and zero."""

    title: str
    size: int
    """Number of bytes."""
    source: str
    """Specification and figure."""
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        end = 0
        for field in self.fields:
            if field.offset < end or field.offset + field.size > self.size:
                raise ValueError(f"{self.title}: {field.name} overlaps or leaves the structure")
            end = field.offset + field.size

    def pack(self, facts: object = None) -> bytes:
        """Return the structure as bytes[size]. ``facts``: argument of the fields' functions."""
        out = bytearray(self.size)
        for field in self.fields:
            out[field.offset : field.offset + field.size] = field.encode(facts)
        return bytes(out)

    def unpack(self, data: bytes) -> dict[str, int | bytes]:
        """Return the fields of ``data`` (bytes[size]) by name: numbers of up to 16 bytes as int,
        other fields and texts as bytes. Raises ValueError for another length."""
        if len(data) != self.size:
            raise ValueError(f"{self.title}: {len(data)} bytes; must be {self.size}")
        found: dict[str, int | bytes] = {}
        for field in self.fields:
            part = data[field.offset : field.offset + field.size]
            text = isinstance(field.value, str | bytes) or field.size > 16
            found[field.name] = part if text else int.from_bytes(part, "little")
        return found


def number_list(values: Mapping[int, int] | list[int], entry: int, size: int) -> bytes:
    """Return a list of numbers as bytes[size], ``entry`` bytes each; the rest is zero.

    ``values``: the numbers from the first entry on, or numbers by their place. Raises ValueError
    for more than fit.
    """
    places = values if isinstance(values, Mapping) else dict(enumerate(values))
    out = bytearray(size)
    for place, value in places.items():
        if (place + 1) * entry > size:
            raise ValueError(f"entry {place} of {entry} bytes: the list has {size} bytes")
        out[place * entry : (place + 1) * entry] = value.to_bytes(entry, "little")
    return bytes(out)
