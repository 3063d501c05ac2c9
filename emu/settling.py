"""Books of a system whose power has gone: balanced as far as they were done, the rest said apart.

Owns what is taken out of counters, plans and clocks. Does not own the balances of a run that has
ended (ledger.py). Source: STYLE, conservation: a run that does not balance fails, interrupted ones
included: what is missing must have been under way.
"""

from __future__ import annotations

import numpy as np

from ondie.emu import rows, stats
from ondie.emu import stations as s
from ondie.emu.backend import timing
from ondie.emu.ledger import Imbalance
from ondie.emu.system import PLANNED, System


def undone(system: System) -> np.ndarray:
    """Rows that were handed over and are not done."""
    ring = system.arrays.row.view(np.ndarray)
    ids = np.arange(system.rows_done, system.next_row) & (len(ring) - 1)
    found = ring[ids]
    return np.asarray(found[found["state"] != rows.DONE])


def stop_clocks(system: System) -> None:
    """Work that had been booked for the time after the cut is not done."""
    a, now = system.arrays, system.now
    reg = a.reg
    for at, die in enumerate(a.die):
        t = int(die.arr)
        if t >= 0:
            x = a.txn[t]
            _take_back(a.use, int(x.phase), at, int(x.time) - now)
    for b, bus in enumerate(a.bus):
        if int(bus.until) > now:
            phase = int(a.txn[int(bus.txn)].phase)
            _take_back(a.use, phase, int(reg["bus0"][0]) + b, int(bus.until) - now)
    for f, station in enumerate(a.fifo):
        if int(station.head) >= 0:
            phase = int(a.txn[int(station.head)].phase)
            _take_back(a.use, phase, int(reg["fifo0"][0]) + f, int(station.free_at) - now)


def _take_back(use: np.ndarray, phase: int, leaf: int, ps: int) -> None:
    use[phase, leaf] -= min(max(ps, 0), int(use[phase, leaf]))


AT_ITS_END = {
    "vpp_pages": stats.VPP_PAGES,
    "bpr_pages": stats.BPR_PAGES,
    "bpp_pages": stats.BPP_PAGES,
    "odc_ops": stats.ODC_OPS,
    "landed_pages": stats.LANDED_PAGES,
}
"""Counted when an operation is done."""
AT_ITS_START = {
    "link_down_bytes": stats.DOWN_BYTES,
    "link_up_bytes": stats.RESERVOIR_UP_BYTES,
    "reservoir_read_pages": stats.RESERVOIR_READ_PAGES,
    "lifted_pages": stats.LIFTED_PAGES,
}


def settle_books(system: System) -> dict[str, int]:
    """Balance the books of a system that has stopped in the middle: what was planned and is not
    done is no longer planned, what was begun is taken out of the counters. Returns that. Raises
    Imbalance where more is missing, or less, than what was under way."""
    a, g = system.arrays, system.geometry
    left = undone(system)
    begun = left[left["state"] == rows.STARTED]
    done = system.planned - system.asked(left)
    under_way = system.asked(begun)
    lost: dict[str, int] = {}

    def hold(what: str, left: int, right: int) -> None:
        if left != right:
            raise Imbalance(f"at the cut, {what}: {left} against {right}")

    def settle(what: str, value: int, settled: int, most: int) -> int:
        """What of ``value`` was in vain: up to ``most``, of what was under way."""
        if not 0 <= value - settled <= most:
            raise Imbalance(f"at the cut, {what}: {value} against {settled} + at most {most}")
        lost[what] = lost.get(what, 0) + value - settled
        return settled

    for dev in range(system.devices):
        count = a.count[dev]
        mine = begun[begun["device"] == dev]
        for name, counter in AT_ITS_END.items():
            hold(name, int(count[counter]), int(done[dev, PLANNED.index(name)]))
        for name, counter in AT_ITS_START.items():
            i = PLANNED.index(name)
            value, more = int(count[counter]), int(under_way[dev, i])
            hold(name, value, int(done[dev, i]) + more)
            count[counter] = settle(stats.COUNTERS[counter], value, value - more, more)
        loads = int(mine["bytes_in"][mine["kind"] == timing.VPP].sum())
        scans = int(mine["tag"][mine["kind"] == timing.SCAN].sum())
        for counter, more in ((stats.LOAD_BYTES, loads), (stats.SCAN_BYTES, scans)):
            value = int(count[counter])
            count[counter] = settle(stats.COUNTERS[counter], value, value - more, more)
        # What was read to be programmed elsewhere, and is not, was read in vain.
        vain = int(count[stats.LIFTED_PAGES] - count[stats.LANDED_PAGES])
        count[stats.LIFTED_PAGES] -= vain
        done[dev, PLANNED.index("lifted_pages")] -= vain
        lost["lifted_pages"] += vain
        lifts = int(under_way[dev, PLANNED.index("lifted_pages")]) * g.page_bytes
        lifts += vain * g.page_bytes
        lands = int(under_way[dev, PLANNED.index("landed_pages")]) * g.page_bytes
        landed = int(count[stats.LANDED_PAGES]) * g.page_bytes
        first = s.HOST_STATIONS + dev * (s.ECC + g.channels)
        for name, station, counter, extra in (
            ("link down", s.DOWN, stats.DOWN_BYTES, stats.LINK_EXTRA_DOWN_BYTES),
            ("link up", s.UP, stats.RESERVOIR_UP_BYTES, stats.LINK_EXTRA_UP_BYTES),
        ):
            more = int(under_way[dev, PLANNED.index("_".join((*name.split(), "bytes")))])
            beside = int(count[extra])
            value = int(a.fifo["size"][first + station]) - beside
            a.fifo["size"][first + station] = beside + settle(
                name, value, int(count[counter]), more
            )
        out = int(count[stats.RESERVOIR_UP_BYTES] + count[stats.SCAN_BYTES])
        out += int(count[stats.LIFTED_PAGES]) * g.page_bytes
        up = int(under_way[dev, PLANNED.index("link_up_bytes")])
        down = int(under_way[dev, PLANNED.index("link_down_bytes")])
        # Through DRAM: what goes to the host twice (stored, then forwarded), the rest once.
        crossed = int(
            count[stats.DOWN_BYTES] + count[stats.LOAD_BYTES] + count[stats.RESERVOIR_UP_BYTES]
        )
        a.fifo["size"][first + s.DRAM] = settle(
            "DRAM",
            int(a.fifo["size"][first + s.DRAM]),
            crossed + out + landed,
            down + loads + 2 * up + scans + lifts + lands,
        )
        buses = slice(dev * g.channels, (dev + 1) * g.channels)
        for name, side, settled, more in (
            ("channels in", "size_in", int(count[stats.LOAD_BYTES]) + landed, loads + lands),
            ("channels out", "size_out", out, up + scans + lifts),
        ):
            value = int(a.bus[side][buses].sum())
            a.bus[side][buses] = 0  # their sum is what is asked for
            a.bus[side][dev * g.channels] = settle(name, value, settled, more)
    flying = len(a.txn) - int(a.reg["txns_free"][0])
    extra = flying - int(begun["pending"].sum())
    if not 0 <= extra <= system.devices * g.dies:  # the erase before a die's next program
        raise Imbalance(f"at the cut, transactions that no row knows: {extra}")
    system.planned[:] = done
    return lost
