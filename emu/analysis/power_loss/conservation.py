"""Conservation across a power cut: totals of completed work balance; lost work is separate.

Owns the amounts removed from counters, plans and clocks at the cut. Does not own the balances of a
run that has ended (analysis/ledger.py).
Source: STYLE, conservation: a run that does not balance fails, including an interrupted one. A
missing amount must belong to operations in progress at the cut.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.analysis.ledger import Imbalance
from ondie.emu.engine.core import counters as stats
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.core import stages as s
from ondie.emu.engine.run.system import PLANNED, System
from ondie.emu.nand import timing


def undone(system: System) -> np.ndarray:
    """Return the plan rows that were issued and are not done."""
    ring = system.arrays.row.view(np.ndarray)
    ids = np.arange(system.rows_done, system.next_row) & (len(ring) - 1)
    found = ring[ids]
    return np.asarray(found[found["state"] != rows.DONE])


def stop_clocks(system: System) -> None:
    """Remove busy time after the cut, which was booked in advance, from the utilisation."""
    arrays, now = system.arrays, system.now
    reg = arrays.reg
    for at, die in enumerate(arrays.die):
        tid = int(die.arr)
        if tid >= 0:
            txn = arrays.txn[tid]
            _take_back(arrays.use, int(txn.phase), at, int(txn.time) - now)
    for bus_index, bus in enumerate(arrays.bus):
        if int(bus.until) > now:
            phase = int(arrays.txn[int(bus.txn)].phase)
            _take_back(arrays.use, phase, int(reg["bus0"][0]) + bus_index, int(bus.until) - now)
    for fifo_index, station in enumerate(arrays.fifo):
        if int(station.head) >= 0:
            phase = int(arrays.txn[int(station.head)].phase)
            _take_back(
                arrays.use, phase, int(reg["fifo0"][0]) + fifo_index, int(station.free_at) - now
            )


def _take_back(use: np.ndarray, phase: int, leaf: int, ps: int) -> None:
    use[phase, leaf] -= min(max(ps, 0), int(use[phase, leaf]))


AT_ITS_END = {
    "vpp_pages": stats.VPP_PAGES,
    "bpp_pages": stats.BPP_PAGES,
    "stored_pages": stats.STORED_PAGES,
    "landed_pages": stats.LANDED_PAGES,
}
"""Counters that increase when an operation is done."""
BEFORE_ITS_END = {
    "bpr_pages": stats.BPR_PAGES,
    "odc_ops": stats.ODC_OPS,
    "fetched_pages": stats.FETCHED_PAGES,
}
"""Counters that increase when the die's part is done; the controller's part may be unfinished."""
AT_ITS_START = {
    "link_down_bytes": stats.DOWN_BYTES,
    "link_up_bytes": stats.RESERVOIR_UP_BYTES,
    "reservoir_read_pages": stats.RESERVOIR_READ_PAGES,
    "lifted_pages": stats.LIFTED_PAGES,
}
OTHERS_ENCODED = (
    stats.PROGRAM_PAGES, stats.GC_PROGRAM_PAGES, stats.FAILED_PAGES, stats.MAP_PROGRAM_PAGES,
    stats.PADDING_PAGES, stats.FOLD_PROGRAM_PAGES, stats.KEPT_PAGES,
)  # fmt: skip
OTHERS_DECODED = (
    stats.READ_PAGES, stats.GC_READ_PAGES, stats.MERGE_READ_PAGES, stats.MAP_READ_PAGES,
    stats.RETRY_READ_PAGES, stats.FOLD_READ_PAGES, stats.SOFT_PAGES,
)  # fmt: skip
"""Pages of the conventional namespace; there are none while dies update."""


def settle_books(system: System, planes: int) -> dict[str, int]:
    """Balance the totals of a system that stopped during a step; return the lost work.

    Planned work that is not done is removed from the plan. Work that was started and not done is
    removed from the counters and returned. ``planes``: pages of a stripe. Raises Imbalance if the
    missing amount does not match the operations in progress.
    """
    arrays, geometry = system.arrays, system.geometry
    left = undone(system)
    begun = left[left["state"] == rows.STARTED]
    done = system.planned - system.asked(left)
    under_way = system.asked(begun)
    lost: dict[str, int] = {}
    for dev in range(system.devices):
        mine = begun[begun["device"] == dev]
        settling = _Settling(system, planes, dev, done[dev], under_way[dev], mine, lost)
        settling.run()
        done[dev, PLANNED.index("lifted_pages")] -= settling.vain
    flying = len(arrays.txn) - int(arrays.reg["txns_free"][0])
    extra = flying - int(begun["pending"].sum())
    if (
        not 0 <= extra <= system.devices * geometry.dies
    ):  # each die may erase before its next program
        raise Imbalance(f"at the cut, transactions that no row knows: {extra}")
    system.planned[:] = done
    return lost


class _Settling:
    """Totals of one device at the cut.

    ``done``, ``under_way``: amounts that the rows of each kind request, by PLANNED. ``begun``: the
    rows in progress. The lost work is added to ``lost``.
    """

    def __init__(
        self, system: System, planes: int, dev: int, done: np.ndarray, under_way: np.ndarray,
        begun: np.ndarray, lost: dict[str, int],
    ) -> None:  # fmt: skip
        self.system, self.planes, self.dev, self.lost = system, planes, dev, lost
        self.count = system.arrays.count[dev]
        self.done = {name: int(amount) for name, amount in zip(PLANNED, done, strict=True)}
        self.under_way = {
            name: int(amount) for name, amount in zip(PLANNED, under_way, strict=True)
        }
        self.begun = begun
        self.vain = 0
        self.page = system.geometry.page_bytes
        self.round_trip = system.cfg.pe.protection == "controller_ecc"

    def run(self) -> None:
        self._operations()
        self._coded()
        self._transfers()

    def _hold(self, what: str, left: int, right: int) -> None:
        if left != right:
            raise Imbalance(f"at the cut, {what}: {left} against {right}")

    def _settle(self, what: str, value: int, settled: int, most: int) -> int:
        """Add the excess of ``value`` over ``settled`` to the lost work; return ``settled``.

        Raises Imbalance unless the excess is 0 to ``most``, the amount in progress.
        """
        if not 0 <= value - settled <= most:
            raise Imbalance(f"at the cut, {what}: {value} against {settled} + at most {most}")
        self.lost[what] = self.lost.get(what, 0) + value - settled
        return settled

    def _counter(self, counter: int, settled: int, most: int) -> None:
        value = int(self.count[counter])
        self.count[counter] = self._settle(stats.COUNTERS[counter], value, settled, most)

    def _bytes(self, column: str, *kinds: int) -> int:
        """Return the sum of a column over the rows of these kinds in progress on the dies."""
        its = (self.begun["resource"] == rows.DIE) & np.isin(self.begun["kind"], kinds)
        return int(self.begun[column][its].sum())

    def _operations(self) -> None:
        for name, counter in AT_ITS_END.items():
            self._hold(name, int(self.count[counter]), self.done[name])
        for name, counter in BEFORE_ITS_END.items():
            if self.round_trip or name == "fetched_pages":
                self._counter(counter, self.done[name], self.under_way[name])
            self._hold(name, int(self.count[counter]), self.done[name])
        for name, counter in AT_ITS_START.items():
            value, more = int(self.count[counter]), self.under_way[name]
            self._hold(name, value, self.done[name] + more)
            self._counter(counter, value - more, more)
        for counter, more in (
            (stats.LOAD_BYTES, self._bytes("bytes_in", timing.VPP)),
            (stats.SCAN_BYTES, self._bytes("tag", timing.SCAN)),
        ):
            self._counter(counter, int(self.count[counter]) - more, more)
        # Pages that were read for a move between dies and not programmed count as lost.
        self.vain = int(self.count[stats.LIFTED_PAGES] - self.count[stats.LANDED_PAGES])
        self.count[stats.LIFTED_PAGES] -= self.vain
        self.lost["lifted_pages"] += self.vain

    def _coded(self) -> None:
        """Settle the pages that pass through the controller's ECC.

        These are stripes to the processing elements and for parity, weights to the host, and pages
        that the controller programs.
        """
        done, under, count, page = self.done, self.under_way, self.count, self.page
        trip = int(self.round_trip)
        decoded = int(count[stats.PE_DECODED_PAGES])
        for counter, settled, most in (
            (
                stats.PE_DECODED_PAGES,
                done["bpr_pages"]
                + done["link_up_bytes"] // page
                + done["lifted_pages"]
                - self.vain,
                under["bpr_pages"]
                + under["link_up_bytes"] // page
                + under["lifted_pages"]
                + self.vain,
            ),
            (stats.PE_RETURNED_PAGES, done["bpr_pages"], under["bpr_pages"]),
            (
                stats.PE_ENCODED_PAGES,
                done["odc_ops"] * self.planes,
                under["odc_ops"] * self.planes,
            ),
        ):
            self._counter(counter, trip * settled, trip * most)
        own = int(count[stats.PE_DECODED_PAGES])
        others = sum(int(count[counter]) for counter in OTHERS_DECODED)
        self._counter(stats.ECC_DECODED_PAGES, others + own, decoded - own)
        others = sum(int(count[counter]) for counter in OTHERS_ENCODED)
        own = int(count[stats.STORED_PAGES]) + int(count[stats.PE_ENCODED_PAGES])
        own += trip * int(count[stats.LANDED_PAGES])
        most = self._bytes("bytes_in", timing.BESIDE) // page
        most += trip * (under["odc_ops"] * self.planes + under["landed_pages"])
        self._counter(stats.ECC_ENCODED_PAGES, others + own, most)

    def _transfers(self) -> None:
        """Settle the bytes over link, DRAM and channels."""
        arrays, geometry, count, page = (
            self.system.arrays,
            self.system.geometry,
            self.count,
            self.page,
        )
        first = s.HOST_STATIONS + self.dev * (s.ECC + geometry.channels)
        down, up = self.under_way["link_down_bytes"], self.under_way["link_up_bytes"]
        for name, station, counter, extra, more in (
            ("link down", s.DOWN, stats.DOWN_BYTES, stats.LINK_EXTRA_DOWN_BYTES, down),
            ("link up", s.UP, stats.RESERVOIR_UP_BYTES, stats.LINK_EXTRA_UP_BYTES, up),
        ):
            beside = int(count[extra])
            value = int(arrays.fifo["size"][first + station]) - beside
            arrays.fifo["size"][first + station] = beside + self._settle(
                name, value, int(count[counter]), more
            )
        loads, scans = (
            self._bytes("bytes_in", timing.VPP), self._bytes("tag", timing.SCAN)
        )  # fmt: skip
        made = self._bytes("bytes_in", timing.BESIDE)
        fetched = self._bytes("bytes_out", timing.FETCH)
        taken = int(count[stats.FETCHED_PAGES]) * page
        stored = int(count[stats.STORED_PAGES]) * page
        returned, encoded = (
            int(count[counter]) * page
            for counter in (stats.PE_RETURNED_PAGES, stats.PE_ENCODED_PAGES)
        )
        lifts = page * (self.under_way["lifted_pages"] + self.vain)
        lands = page * self.under_way["landed_pages"]
        lifted = landed = page * int(count[stats.LANDED_PAGES])
        trips = page * int(self.round_trip)
        going = trips * self.under_way["bpr_pages"]
        coming = going + trips * self.under_way["odc_ops"] * self.planes
        loaded, scanned = int(count[stats.LOAD_BYTES]), int(count[stats.SCAN_BYTES])
        left, sent = int(count[stats.RESERVOIR_UP_BYTES]), int(count[stats.DOWN_BYTES])
        # Data to the host pass DRAM twice (stored, then forwarded), all other data once.
        arrays.fifo["size"][first + s.DRAM] = self._settle(
            "DRAM",
            int(arrays.fifo["size"][first + s.DRAM]),
            sent + loaded + 2 * left + scanned + taken + stored + lifted + landed,
            down + loads + 2 * up + scans + fetched + made + lifts + lands,
        )
        buses = slice(self.dev * geometry.channels, (self.dev + 1) * geometry.channels)
        for name, side, settled, more in (
            (
                "channels in", "size_in", loaded + stored + returned + landed,
                loads + made + going + lands,
            ),
            (
                "channels out", "size_out", left + scanned + taken + returned + encoded + lifted,
                up + scans + fetched + coming + lifts,
            ),
        ):  # fmt: skip
            value = int(arrays.bus[side][buses].sum())
            arrays.bus[side][buses] = 0  # only the sum over the buses is used
            arrays.bus[side][self.dev * geometry.channels] = self._settle(
                name, value, settled, more
            )
