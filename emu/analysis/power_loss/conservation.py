"""Conservation checks after a power cut, on totals that exclude lost work.

Owns the quantities of a drive at the cut, and the removal of lost work from counters, plans and
busy times. Does not own the laws (engine/core/conservation.py).
Source: this project's rule that every run, including an interrupted run, must satisfy the
conservation laws. A missing amount must belong to operations in progress at the cut.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.engine.core import plan_rows, stages
from ondie.emu.engine.core.conservation import Place, check_laws, settle_laws, station_quantity
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.run.system import PLANNED, System
from ondie.emu.nand import timing


def undone(system: System) -> np.ndarray:
    """Return the rows of the path's plan that the engine has received but not completed, as an
    array of ROW records."""
    ring = system.arrays.row.view(np.ndarray)
    ids = np.arange(system.rows_done, system.next_row) & (len(ring) - 1)
    found = ring[ids]
    return np.asarray(found[found["state"] != plan_rows.DONE])


def stop_clocks(system: System) -> None:
    """Subtract from the utilization the busy time that was recorded in advance for times after the
    power cut."""
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


SETTLED_STATIONS = {"link down": stages.DOWN, "link up": stages.UP, "DRAM": stages.DRAM}
"""Numbers of the stations of a drive (its links and its DRAM) whose byte counts exclude lost work
after a power cut, by name in Totals.bytes_by."""
SETTLED_CHANNELS = {"channels in": "size_in", "channels out": "size_out"}
"""Names of the fields of a flash channel whose byte counts exclude lost work after a power cut, by
name in Totals.bytes_by. The counts are summed over the channels of a drive."""
LOST_NAMES = {station_quantity(name): name for name in (*SETTLED_STATIONS, *SETTLED_CHANNELS)}


def settle_books(system: System, planes: int) -> dict[str, int]:
    """Subtract incomplete work from the totals of a system that stopped during a step, and return
    the lost work (pages, bytes or operations) by name.

    Planned work that is not complete is subtracted from the plan. Work that started but is not
    complete is lost: it is subtracted from the counters, and returned under the name of its counter
    or its name in Totals.bytes_by. ``planes``: number of mapping units of a stripe. Raises
    Imbalance if the lost work does not match the operations in progress.
    """
    left = undone(system)
    begun = left[left["state"] == plan_rows.STARTED]
    unfinished = system.requested_amounts(left)
    done = system.planned - unfinished
    under_way = system.requested_amounts(begun)
    lost: dict[str, int] = {}
    for dev in range(system.devices):
        mine = begun[(begun["device"] == dev) & (begun["resource"] == plan_rows.DIE)]
        drive = _Drive(system, dev)
        quantities = {
            **drive.read(),
            **_named("planned", done[dev]),
            **_named("started", under_way[dev]),
            **_started_bytes(mine),
            "unfinished_landed_pages": int(unfinished[dev, PLANNED.index("landed_pages")]),
            "stripe_pages": planes,
        }
        its = {name: quantities[f"started_{name}"] for name in ("load_bytes", "scan_bytes")}
        for name, amount in its.items():  # counted at the start of the transfer
            quantities[name] -= amount
        for name, amount in {**its, **settle_laws(quantities, f"device {dev}")}.items():
            name = LOST_NAMES.get(name, name)
            lost[name] = lost.get(name, 0) + amount
        drive.write(quantities)
        done[dev] = [quantities[f"planned_{name}"] for name in PLANNED]
    quantities = {
        "transactions_in_flight": system.transactions_in_flight,
        "pending_transactions": int(begun["pending"].sum()),
        "dies": system.devices * system.geometry.dies,
    }
    check_laws(Place.CUT_SYSTEM, quantities)
    system.planned[:] = done
    return lost


def _named(prefix: str, amounts: np.ndarray) -> dict[str, int]:
    """Return ``amounts`` by name. The names are ``prefix`` and a name of PLANNED (kinds of planned
    work of a drive), such as planned_read_pages. ``amounts``: int64[len(PLANNED)]."""
    names = (f"{prefix}_{name}" for name in PLANNED)
    return {name: int(amount) for name, amount in zip(names, amounts, strict=True)}


def _started_bytes(begun: np.ndarray) -> dict[str, int]:
    """Return the number of bytes that the plan rows ``begun`` transfer, by name of the kind of
    transfer, such as started_load_bytes. ``begun``: rows in progress on the dies of one drive."""
    return {
        f"started_{name}": int(begun[column][begun["kind"] == kind].sum())
        for name, column, kind in (
            ("load_bytes", "bytes_in", timing.VPP),
            ("scan_bytes", "tag", timing.SCAN),
            ("parity_bytes", "bytes_in", timing.BESIDE),
            ("fetched_bytes", "bytes_out", timing.FETCH),
        )
    }


class _Drive:
    """Access to the counters and byte counts of one drive of a system, as quantities by name."""

    def __init__(self, system: System, dev: int) -> None:
        geometry = system.geometry
        self.system = system
        self.count = system.arrays.count[dev]
        self.first = stages.HOST_STATIONS + dev * (stages.ECC + geometry.channels)
        self.channels = slice(dev * geometry.channels, (dev + 1) * geometry.channels)

    def read(self) -> dict[str, int]:
        """Return the drive's counters, its byte counts by station, and the constants of the
        conservation laws, by name."""
        arrays = self.system.arrays
        return {
            **{name: int(count) for name, count in zip(COUNTERS, self.count, strict=True)},
            **{
                station_quantity(name): int(arrays.fifo["size"][self.first + station])
                for name, station in SETTLED_STATIONS.items()
            },
            **{
                station_quantity(name): int(arrays.bus[side][self.channels].sum())
                for name, side in SETTLED_CHANNELS.items()
            },
            "page_bytes": self.system.geometry.page_bytes,
            "controller_ecc": int(self.system.cfg.pe.protection == "controller_ecc"),
        }

    def write(self, quantities: dict[str, int]) -> None:
        """Set the drive's counters and its byte counts by station to ``quantities``."""
        arrays = self.system.arrays
        self.count[:] = [quantities[name] for name in COUNTERS]
        for name, station in SETTLED_STATIONS.items():
            arrays.fifo["size"][self.first + station] = quantities[station_quantity(name)]
        for name, side in SETTLED_CHANNELS.items():
            arrays.bus[side][self.channels] = 0  # only the sum over the channels is used
            arrays.bus[side][self.channels.start] = quantities[station_quantity(name)]
