"""ONFI command and address cycles on a flash channel, by data interface.

Owns the constants of NV-DDR2, NV-DDR3 and NV-LPDDR4 (LTT), MQSim's set of constants, and the
command sequences. Does not own array times (presets) or channel grants (channel.py).
Source: ONFI 5.0, tables 4-73 (NV-DDR2, NV-DDR3) and 4-77 (NV-LPDDR4) and section 5 (commands);
Micron's public model of an ONFI 4 MLC die for values that ONFI leaves to the vendor; MQSim's
channel model for interface "MQSim".

In each of these interfaces, WE_n latches one command or address byte per tWC at any data rate. Only
the postamble depends on the timing mode (tRC, two transfers). A sequence holds the channel from its
first command cycle to the end of tWB. The controller sends one sequence after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.units import InputError

ADDRESS, ROW = 5, 3
"""Numbers of address cycles: ADDRESS = two column and three row cycles, ROW = three row cycles."""


@dataclass(frozen=True, slots=True)
class Number:
    """Timing constant in ps with its source.

    ``low`` and ``high``: range in ps if the value depends on the vendor's flash die, else -1.
    """

    ps: int
    source: str
    low: int = -1
    high: int = -1


def _ns(value: float, source: str, low: float = -1, high: float = -1) -> Number:
    return Number(round(value * 1000), source, round(low * 1000), round(high * 1000))


_ONFI = "ONFI 5.0, tables 4-73 and 4-77, all timing modes"
_PART = "Micron's model of an ONFI 4 MLC die (B0KB), NV-DDR2 and NV-DDR3, all timing modes"
NUMBERS: dict[str, Number] = {
    "tCS": _ns(20, _ONFI),
    "tCS2": _ns(40, _ONFI),  # chip enable before data out, with termination
    "tWC": _ns(25, _ONFI),
    "tADL": _ns(400, _ONFI, 300, 400),  # 300 in Micron's model
    "tWB": _ns(100, _ONFI),
    "tWHR": _ns(80, _ONFI),
    "tRHW": _ns(100, _ONFI),
    "tRR": _ns(20, _PART),
    "tCCS": _ns(400, _PART, 300, 500),  # stated in the parameter page
    "tWPRE": _ns(15, _PART, 15, 25),  # 25 with termination
    "tWPST": _ns(6.5, _PART),
    "tWPSTH": _ns(15, _PART),
    "tRPRE": _ns(15, _PART, 15, 25),  # 25 with termination
    "tDQSRE": _ns(25, _PART),
    "tRPSTH": _ns(15, _PART),
}
"""Timing constants by ONFI name, common to NV-DDR2, NV-DDR3 and NV-LPDDR4."""
SUSPEND_CYCLES = 1 + ROW
"""Number of cycles of a suspend or resume command.

Assumption: one command cycle and the row address, which selects the die. The sequences of vendors
have one to four cycles.
"""
MQSIM = {
    name: _ns(value, "MQSim, built-in constants of its NV-DDR2 channel")
    for name, value in (
        ("tCS", 20), ("tWC", 25), ("tWB", 100), ("tRR", 20), ("tADL", 70), ("tCALS", 15),
        ("tWPST", 6), ("tWPSTH", 15),
    )
}  # fmt: skip
FASTEST = {
    "NV-DDR2": (800, "timing mode 10"),
    "NV-DDR3": (2400, "timing mode 19"),
    "NV-LPDDR4": (3600, "ONFI 5.1"),
}
"""(Highest transfer rate in MT/s, source) by data interface."""


def cycles(cfg: Config) -> dict[str, np.ndarray]:
    """Return the channel times in ps by name (timing.CYCLE_NAMES), int64[planes + 1] each.

    Each array is indexed by the number of planes of a command. ``flash.t_plane_busy`` (tDBSY,
    tPLxBSY) is the time between the planes of one command. Raises InputError if ``flash.bus``
    exceeds the maximum rate of the interface.
    """
    flash = cfg.flash
    count = np.arange(flash.planes_per_die + 1)
    if flash.interface == "MQSim":
        rows = _mqsim(flash.t_plane_busy_ps, count)
    else:
        most, where = FASTEST[flash.interface]
        if flash.bus_bytes_per_s > most * 10**6:
            raise InputError(
                f"flash.bus = {flash.bus_bytes_per_s / 10**6:g} MT/s: {flash.interface} allows "
                f"at most {most} MT/s ({where})"
            )
        # Two transfers of a byte per cycle of RE_n.
        rows = _onfi(flash.t_plane_busy_ps, 2 * 10**12 // flash.bus_bytes_per_s, count)
    return {name: np.where(count > 0, row, 0).astype(np.int64) for name, row in rows.items()}


def _onfi(busy: int, t_rc: int, count: np.ndarray) -> dict[str, np.ndarray | int]:
    """Return the times of ONFI's command sequences in ps, by name, for each number of planes in
    ``count``.

    Reads: 00h, address, 32h or 30h for each plane; programs: 80h, address, data, 11h or 10h;
    erases: 60h, row, D1h or D0h; copy-back: 00h .. 35h, then 85h .. 10h. ``busy``: t_plane_busy in
    ps. ``t_rc``: cycle time of RE_n in ps.
    """
    ps = {name: number.ps for name, number in NUMBERS.items()}
    between = (count - 1) * (ps["tWB"] + busy)
    addressed = ps["tCS"] + count * (1 + ADDRESS + 1) * ps["tWC"] + between + ps["tWB"]
    data = ps["tADL"] + ps["tWPRE"] + ps["tWPST"] + ps["tWPSTH"]
    postamble = ps["tDQSRE"] + t_rc // 2 + ps["tRPSTH"]
    suspend = ps["tCS"] + SUSPEND_CYCLES * ps["tWC"] + ps["tWB"]
    return {
        "READ": addressed,
        "PROGRAM": addressed + count * data,
        "ERASE": ps["tCS"] + count * (1 + ROW + 1) * ps["tWC"] + between + ps["tWB"],
        "COPYBACK": addressed,
        "COPYBACK_IN": addressed,
        # OptimStore's commands: a program without an array, a read and a program of registers, an
        # operation code with four address cycles.
        "VPP": addressed + count * data,
        "BPR": addressed,
        "BPP": addressed,
        "ODC": ps["tCS"] + (1 + 4) * ps["tWC"] + ps["tWB"],
        "SUSPEND": suspend,
        "RESUME": suspend,
        # 78h, row, and a byte of status.
        "STATUS": ps["tCS"] + (1 + ROW) * ps["tWC"] + ps["tWHR"] + ps["tRPRE"] + t_rc + postamble,
        "OUT_FIRST": ps["tCS2"] + ps["tRR"] + ps["tRPRE"] + postamble,
        # 06h, address, E0h selects the plane.
        "OUT_NEXT": (1 + ADDRESS + 1) * ps["tWC"] + ps["tCCS"] + ps["tRHW"],
    }


def _mqsim(busy: int, count: np.ndarray) -> dict[str, np.ndarray | int]:
    """Return the times of MQSim's command sequences in ps, by name, for each number of planes in
    ``count``.

    A read has six command and address cycles, an erase four, and a program five plus one final
    cycle. The second sequence of a copy-back takes as long as a program. A resume takes no time.
    """
    ps = {name: number.ps for name, number in MQSIM.items()}
    between = (count - 1) * busy
    loaded = 5 * ps["tWC"] + ps["tADL"] + ps["tWPST"] + ps["tWB"]
    read = ps["tCS"] + count * 6 * ps["tWC"] + between + ps["tWB"] + ps["tRR"]
    program = (
        ps["tCS"] + count * loaded + (count - 1) * ps["tCALS"] + between + ps["tWC"] + ps["tWPSTH"]
    )
    erase = ps["tCS"] + count * (4 * ps["tWC"] + ps["tWB"]) + between
    return {
        "READ": read,
        "PROGRAM": program,
        "ERASE": erase,
        "COPYBACK": read,
        "COPYBACK_IN": program,
        "VPP": program,
        "BPR": read,
        "BPP": read,
        "ODC": ps["tCS"] + 5 * ps["tWC"] + ps["tWB"],
        "SUSPEND": ps["tCS"] + 3 * ps["tWC"],
        "RESUME": 0,
        "STATUS": 0,
        "OUT_FIRST": 0,
        "OUT_NEXT": 0,
    }
