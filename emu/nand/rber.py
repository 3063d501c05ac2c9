"""Raw bit error rate (RBER) model of flash pages.

Owns the formula over P/E cycles, retention, read disturb, cell mode and page type, and the table of
its constants for compiled code. Does not own correction or retries (ecc.py).
Source: Kim, Choi, Min, "Design Tradeoffs for SSD Reliability", FAST 2019, section 2 (power laws);
Chun et al., "RiF", HPCA 2024, figure 4 (when TLC crosses its ECC's limit); Cai et al., Proc. IEEE
105(9), 2017 (errors lie at the read reference voltages; retention and disturb shift them).

The rate of a page is ``scale * (stable + shifted)``, with

    stable  = floor + wear * cycles**wear_exponent
    shifted = leak * days**retention_exponent
              + pressure * (reads / disturb_reads)**disturb_exponent
    leak     = retention * (1 + cycles / retention_cycles)**retention_cycles_exponent
    pressure = disturb * max(cycles, 1)**disturb_cycles_exponent

and ``scale`` depends on cell mode and page type. A retry at other reference voltages reduces only
``shifted``. The FAST 2019 formula has ``cycles**m`` in ``leak``, with which a block without P/E
cycles never loses charge. With ``retention_cycles = 1``, this formula is proportional to
``(1 + cycles)**m``.
"""

from __future__ import annotations

import math

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.config.schema.flash import CELLS
from ondie.emu.engine.core.state import record_type, records
from ondie.kernels.jit import njit

RATES = record_type(
    floor="f8",
    wear="f8",
    wear_exponent="f8",
    retention="f8",
    retention_cycles="f8",
    retention_cycles_exponent="f8",
    retention_exponent="f8",
    disturb="f8",
    disturb_cycles_exponent="f8",
    disturb_exponent="f8",
    disturb_reads="f8",
)
BITS = {"pSLC": 1, "SLC": 1, "MLC": 2, "TLC": 3, "QLC": 4}
"""Number of bits per cell, which is the number of pages per word line, by cell mode. The pages are
named LSB, CSB, MSB, TSB."""
REFERENCES = {
    "balanced": ((1,), (1, 2), (2, 3, 2), (4, 4, 4, 3)),
    "binary": ((1,), (1, 2), (1, 2, 4), (1, 2, 4, 8)),
}
"""Number of reference voltages for a read of each page type, by Gray code (balanced or binary) and
bits per cell. The sum over the page types is 2**bits - 1, the number of gaps between the levels.
"""
MOST_RBER = 0.5
"""Upper limit of the bit error rate. A bit that is wrong with probability 1/2 carries no
information."""


def rates(cfg: Config) -> np.recarray:
    """Return the bit-error constants of a configuration: one record of RATES (rates per bit, times
    in days).

    If ``errors.kind`` is "none", all rates are 0. If it is "rate", all rates except ``floor`` are
    0.
    """
    made = records(RATES, 1)
    if cfg.errors.kind != "model":
        made.retention_cycles = made.disturb_reads = 1
        made.floor = cfg.errors.rate if cfg.errors.kind == "rate" else 0.0
        return made
    for name in RATES.names or ():
        made[name] = getattr(cfg.errors, name)
    return made


def scales(cfg: Config) -> np.ndarray:
    """Return the scale factor of the rates, float64[5, 4]: cell mode (index into CELLS) by page
    type.

    The factor of a page type is proportional to its number of reference voltages. The page type
    with the most reference voltages has the configured factor of the cell mode. Page types that a
    mode lacks are NaN. All factors are 1 if ``errors.kind`` is "rate".
    """
    table = np.full((len(CELLS), 4), math.nan)
    modes = {cell: getattr(cfg.errors, cell.lower()) for cell in CELLS}
    for row, (cell, factor) in enumerate(modes.items()):
        voltages = REFERENCES[cfg.errors.coding][BITS[cell] - 1]
        for page_type, count in enumerate(voltages):
            table[row, page_type] = factor * count / max(voltages)
            if cfg.errors.kind == "rate":
                table[row, page_type] = 1.0
    return table


@njit
def stable_rate(cfg, cycles):
    """Return ``stable``, the part of the bit error rate that retries do not reduce.

    ``cfg``: a record of RATES. ``cycles``: P/E cycles of the block.
    """
    return cfg.floor + cfg.wear * float(cycles) ** cfg.wear_exponent


@njit
def leak_rate(cfg, cycles):
    """Return ``leak``, the retention coefficient of a block with ``cycles`` P/E cycles.

    ``cfg``: a record of RATES. The value changes only at an erase.
    """
    return cfg.retention * (1.0 + cycles / cfg.retention_cycles) ** cfg.retention_cycles_exponent


@njit
def pressure_rate(cfg, cycles):
    """Return ``pressure``, the read-disturb coefficient of a block with ``cycles`` P/E cycles.

    ``cfg``: a record of RATES. The value changes only at an erase.
    """
    return cfg.disturb * max(float(cycles), 1.0) ** cfg.disturb_cycles_exponent


@njit
def shifted_rate(cfg, leak, pressure, days, reads):
    """Return ``shifted``, the part of the bit error rate due to retention and read disturb.

    ``cfg``: a record of RATES. ``leak``, ``pressure``: results of leak_rate() and pressure_rate().
    ``days``: days since the page was programmed. ``reads``: number of reads of the block since
    then.
    """
    rate = 0.0
    if days > 0.0:
        rate += leak * days**cfg.retention_exponent
    if reads > 0:
        rate += pressure * (reads / cfg.disturb_reads) ** cfg.disturb_exponent
    return rate


@njit
def total_rate(stable, shifted, scale):
    """Return the bit error rate of a read: ``scale * (stable + shifted)``, at most MOST_RBER."""
    return min(MOST_RBER, scale * (stable + shifted))


@njit
def retry_rate(stable, shifted, scale, gain, level):
    """Return the bit error rate at retry ``level`` (0: first read). Each retry multiplies
    ``shifted`` by ``gain``."""
    for _ in range(level):
        shifted *= gain
    return total_rate(stable, shifted, scale)
