"""Power-loss protection: capacitors power the drive while it writes completed data to flash.

Owns the start of saving data after a power cut, the amount of data left to write, the energy of
these writes, and the minimum energy that the cache of a configuration requires. Does not own the
cut (engine/run/power_system.py), the writes themselves (data_cache.py, ftl/trim_maps.py) or the
data that a store preserves when the process is killed (nand/cache_file.py).
Source: NVMe base specification (volatile write cache, FLUSH, FUA); data sheets of PM9A3 and Micron
7450, whose capacitors protect the write cache.

Data is saved by ordinary destaging, as for a FLUSH. Merges with flash, garbage collection, word
lines and failures are simulated as usual, and recovery reads ordinary pages. The drive does not
have a dump area.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config
from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import PROGRAMMED, SENSED
from ondie.emu.engine.core.state import Arrays
from ondie.emu.engine.core.totals import sum_counters
from ondie.emu.ftl import padding, trim_maps
from ondie.emu.nand import channel, die_scheduler
from ondie.emu.nand.ecc import charged_ps
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme import data_cache, power_cut
from ondie.emu.units import InputError, plural
from ondie.kernels.jit import njit

FJ_PER_J = 1e15
EVENTS = 1
"""Number of simulation events between two checks of the energy drawn from the capacitors."""
NAMES = "mapping unit", "trim map"
DRAM_STATION = stages.HOST_STATIONS + stages.DRAM
"""Index of the station of the DRAM of device 0. A station is a simulated first-in first-out
resource."""


@njit
def start_saving(st, dev):
    """Start writing to flash all data of drive ``dev`` that is only in the cache, and all trim maps
    that are not yet on flash."""
    dev_rec = st.dev[dev]
    dev_rec.saving = 1
    if st.cfg[0].cache_writes != 0:
        st.cache[dev].flushed = NEVER
        data_cache.schedule_deferred(st, dev)
    if st.cfg[0].trim_maps != 0:
        trim_maps.want(st, dev, dev_rec.trims)
    if st.cfg[0].line > 1:
        padding.pad_for_cache(st, dev)
        padding.pad_overdue(st, dev)


def end_saving(arrays: Arrays) -> None:
    """Resume normal destaging of device 0 after all data is saved."""
    arrays.dev["saving"] = 0
    arrays.cache["flushed"] = arrays.cache["epoch"] - 1


def stop_commands(arrays: Arrays) -> None:
    """Stop all queue pairs and all update plans: no further requests or plan rows are issued.
    Commands that have not begun, and data that has not reached the DRAM, have no effect. No
    completion is reported for such commands. Updates on the dies are ended, because saving data
    requires the dies' registers."""
    arrays.pair["stop"] = -1
    arrays.reg["halted"] = 1
    release(arrays.handle())
    stage = np.asarray(arrays.stage).view(np.ndarray)
    stage[stages.FETCHED] = stage[stages.FINISHED]
    stage[stages.DOWN_DONE] = stage[stages.PART_DONE]


@njit
def release(st):
    """Release the dies' registers that updates of stopped plan rows hold."""
    die_scheduler.abandon_updates(st)
    channel.finish_event(st)


def unsaved(arrays: Arrays) -> tuple[int, int]:
    """Return the number of mapping units of device 0 whose newest acknowledged data is only in the
    cache, and the number of trim maps that are not on flash."""
    slots = np.asarray(arrays.cpage).view(np.ndarray)[: int(arrays.cache.used[0])]
    waits = (slots["dirty"] != 0) | ((slots["flying"] != 0) & (slots["stale"] == 0))
    written = bool(arrays.cfg.cache_writes[0]) and not arrays.cfg.cache_through[0]
    return int(waits.sum()) if written else 0, int(arrays.dev.unsaved[0])


def has_operation(arrays: Arrays, cut_ps: int) -> bool:
    """Return True if an array operation (read, program or erase of a die) that had begun by the
    time of the power cut, ``cut_ps``, is still in progress."""
    return any(True for _ in power_cut.operations(arrays, cut_ps))


def quantities(cfg: Config, arrays: Arrays, geometry: Geometry, ps: int) -> dict[str, int]:
    """Return the amount of work that device 0 has done so far, by name of the energy constant:
    bits, or ps for the ECC decoder and the controller. ``ps``: time for which the controller
    consumes power."""
    counters = sum_counters(arrays.count)
    page = geometry.page_bytes * 8
    coded = counters["ecc_decoded_pages"] + counters["ecc_encoded_pages"]
    return {
        "nand_read_fj_per_bit": sum(counters[name] for name in SENSED) * page,
        "nand_program_fj_per_bit": sum(counters[name] for name in PROGRAMMED) * page,
        "nand_erase_fj_per_bit": counters["erased_blocks"]
        * geometry.pages * geometry.slots * page,
        "channel_fj_per_bit": 8 * int(arrays.bus.size_in.sum() + arrays.bus.size_out.sum()),
        "dram_fj_per_bit": 8 * int(arrays.fifo["size"][DRAM_STATION]),
        "ecc_fj_per_bit": coded * page,
        "ecc_decoder_mw": charged_ps(cfg, counters),
        "controller_mw": ps,
    }  # fmt: skip


def energy_fj(cfg: Config, amounts: dict[str, int], before: dict[str, int]) -> int:
    """Return the energy (fJ) of the work done between two points in time. ``before``, ``amounts``:
    work at the first and at the second point, both from :func:`quantities`."""
    return sum(
        getattr(cfg.energy, name) * (amount - before[name]) for name, amount in amounts.items()
    )


def least_energy_fj(cfg: Config, geometry: Geometry, units: int) -> int:
    """Return the minimum energy (fJ) for programs of ``units`` mapping units: flash cells,
    channels, DRAM and ECC encoding, plus the controller's energy during one program."""
    energy, bits = cfg.energy, units * geometry.page_bytes * 8
    per_bit = (
        energy.nand_program_fj_per_bit + energy.channel_fj_per_bit + energy.dram_fj_per_bit
        + energy.ecc_fj_per_bit
    )  # fmt: skip
    return bits * per_bit + energy.controller_mw * cfg.flash.t_program_ps


def check_hold_up(cfg: Config, geometry: Geometry, units: int) -> None:
    """Raise InputError if the energy ``cache.hold_up`` is below the minimum energy for saving a
    cache of ``units`` dirty mapping units."""
    least = least_energy_fj(cfg, geometry, units)
    if cfg.cache.hold_up_fj < least:
        raise InputError(
            f"cache.hold_up = {cfg.cache.hold_up_fj / FJ_PER_J:g} J: must be at least "
            f"{least / FJ_PER_J:.3g} J to program the {units} mapping units of the cache "
            "(cache.power_loss_protection); raise cache.hold_up, or use a smaller cache"
        )


@dataclass
class HeldUp:
    """Result of saving data with the capacitors' energy after a power cut."""

    cut_ps: int
    """Simulated time of the power cut, ps."""
    budget_fj: int
    """Initial energy of the capacitors (Drive.hold_up_j), fJ."""
    end_ps: int = 0
    """Simulated time at which all data was saved or the capacitors were empty, ps."""
    used_fj: int = 0
    """Energy drawn from the capacitors after the power cut, fJ."""
    lost: tuple[int, int] = (0, 0)
    """Number of mapping units and number of trim maps that were not saved to flash."""

    def __post_init__(self) -> None:
        self.end_ps = self.cut_ps

    @property
    def used_j(self) -> float:
        """Energy drawn from the capacitors after the power cut, J."""
        return self.used_fj / FJ_PER_J

    @property
    def why(self) -> str:
        """Sentence about data that was not saved before the capacitors were empty, or an empty
        string if no data was lost."""
        if not any(self.lost):
            return ""
        units, maps = (plural(n, what) for n, what in zip(self.lost, NAMES, strict=True))
        return (
            f"power-loss protection has failed: {units} and {maps} were not written after a power "
            f"cut ({self.used_j:.3g} J of {self.budget_fj / FJ_PER_J:.3g} J used)"
        )


def hold_up(
    found: HeldUp, cfg: Config, arrays: Arrays, geometry: Geometry, run: Callable[[int], int]
) -> None:
    """Stop accepting commands, write completed data to flash, and complete the array operations,
    until the energy of the capacitors is used up. Record the result in ``found``. ``run``: function
    that simulates at most the given number of events and returns the number simulated."""
    before = quantities(cfg, arrays, geometry, found.cut_ps)
    stop_commands(arrays)
    state = arrays.handle()
    start_saving(state, 0)
    found.lost = unsaved(arrays)
    while any(found.lost) or has_operation(arrays, found.cut_ps):
        if found.used_fj >= found.budget_fj or run(EVENTS) == 0:
            return
        release(state)
        found.end_ps = max(found.cut_ps, int(arrays.reg.now[0]))
        done = quantities(cfg, arrays, geometry, found.end_ps)
        found.used_fj = energy_fj(cfg, done, before)
        found.lost = unsaved(arrays)
