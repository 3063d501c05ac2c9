"""Constants that a calibration can fit, and their physical ranges.

Owns the range of each constant with its source, and the directions of I/O that the constant
influences. Does not own the values of constants (config/presets).
Source: stated for each constant in `ref`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ondie.emu.config.config import Config
from ondie.emu.config.loader import canonical, key_of
from ondie.emu.units import InputError, known_names, parse

MOST = 8
"""Largest number of constants in one fit."""
READS, WRITES, BOTH = ("read",), ("write",), ("read", "write")


@dataclass(frozen=True)
class Range:
    """Bounds of a constant in a fit, the source of these bounds, and the directions of I/O that the
    constant influences on a drive with small mapping units."""

    low: str
    high: str
    ref: str
    directions: tuple[str, ...] = BOTH


_LINK = "PCIe 1.0 x1 (250 MB/s before packet headers) to PCIe 5.0 x4 (15.8 GB/s before them)"
RANGES = {
    "frontend.command": Range(
        "100 ns", "31 us",
        "3.3 M random reads/s are 0.3 us per command (Micron 9550 data sheet), and a drive that "
        "starts them in hardware needs less; NVMeVirt, FAST 2023: 30.49 us of firmware per request "
        "of a 970 PRO",
    ),
    "frontend.read_delay": Range(
        "500 ns", "500 us",
        "Intel Optane P5800X data sheet: 5 us for a whole read; AWS on io2 Block Express: network "
        "volumes take under 500 us for a request of 16 KiB", READS,
    ),
    "frontend.write_delay": Range(
        "500 ns", "500 us", "as frontend.read_delay: 5 us (Optane P5800X), 500 us (io2)", WRITES,
    ),
    "link.up": Range("200 MB/s", "15.8 GB/s", _LINK, READS),
    "link.down": Range("200 MB/s", "15.8 GB/s", _LINK, WRITES),
    "flash.bus": Range("133 MB/s", "3600 MB/s", "ONFI 2.0 (133 MT/s) to ONFI 5.1 (3600 MT/s)"),
    "flash.t_read": Range(
        "3 us", "150 us",
        "Z-NAND 3 us (Cheong et al., ISSCC 2018); QLC 145 us (Lee et al., ISSCC 2018)",
    ),
    "flash.t_program": Range(
        "100 us", "11 ms",
        "Z-NAND and pSLC 100 us per page (Cheong et al., ISSCC 2018; OptimStore, HPCA 2023); a "
        "word line of QLC 10.9 ms (12 MB/s with two planes, Lee et al., ISSCC 2018)", WRITES,
    ),
    "link.latency": Range(
        "125 ns", "2 us",
        "one way 250-500 ns (PCIe round trips of 0.5-1 us, Neugebauer et al., SIGCOMM 2018); "
        "range: half to four times this",
    ),
    "ecc.decode": Range("1 us", "20 us", "LDPC decoding takes 1-20 us per page (RiF, HPCA 2024)"),
    "ecc.encode": Range(
        "500 ns", "20 us", "encoding takes no longer than decoding (RiF, HPCA 2024)", WRITES
    ),
    "dram.bandwidth": Range(
        "1.6 GB/s", "102.4 GB/s", "JEDEC: 16 bit of DDR3-800 to 128 bit of DDR5-6400"
    ),
}  # fmt: skip
"""Ranges of the constants that a calibration can fit, by configuration key."""
DEFAULT = tuple(RANGES)[:MOST]
"""Configuration keys of the constants that a calibration fits unless the user names others."""


@dataclass(frozen=True)
class Constant:
    """A constant of one fit.

    ``base``: value of the preset. ``low``, ``high``: bounds of the fit, which include ``base`` if
    it is above 0. These three values are in the base unit ``unit``. ``ref``: source of the bounds.
    ``directions``: directions of I/O that the constant influences.
    """

    key: str
    base: int
    low: int
    high: int
    ref: str
    directions: tuple[str, ...]
    unit: str


def chosen(cfg: Config, names: Sequence[str] | None = None) -> list[Constant]:
    """Return the constants of a fit of ``cfg``: those named in ``names``, or DEFAULT if ``names``
    is None.

    Raises InputError for an unknown name, a name without a range in RANGES, a name that is given
    twice, or more than MOST names.
    """
    keys = list(DEFAULT)
    if names is not None:
        if len(names) > MOST:
            raise InputError(f"--constants: {len(names)} constants; use at most {MOST}")
        keys = [canonical(name, cfg.records, "--constants: ") for name in names]
        for key in keys:
            if keys.count(key) > 1:
                raise InputError(f"--constants: {key} is given twice; name it once")
    return [_constant(cfg, key) for key in keys]


def _constant(cfg: Config, key: str) -> Constant:
    if key not in RANGES:
        raise InputError(f"--constants: {key} cannot be fitted; {known_names(key, RANGES)}")
    kind = key_of(key)[0].kind
    assert kind is not None, key
    limits, base = RANGES[key], cfg.leaf(key).value
    assert isinstance(base, int)
    low, high = parse(limits.low, kind, key), parse(limits.high, kind, key)
    if base > 0:
        low, high = min(low, base), max(high, base)
    return Constant(key, base, low, high, limits.ref, limits.directions, kind.shown[0])
