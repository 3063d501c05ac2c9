"""Health data of a drive as the health log pages define it.

Owns the records of health data, and their calculation from the drive's counters. Does not own the
drive's counters (engine/core/counters.py), the critical warnings (nvme/condition.py) or the log
pages that report the health data (log_pages.py).
Source: NVM Express Base Specification 2.0, sections 5.16.1.3 (SMART / Health Information) and
5.16.1.10 (Endurance Group Information); OCP Datacenter NVMe SSD Specification 2.0, section 4.8.6.

The drive's counters of pages count pages of the mapping table, which are mapping units
(engine/core/counters.py). The number of bytes programmed is the number of programmed pages times
the size of a mapping unit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ondie.emu.engine.core.counters import (
    COUNTERS,
    HOST_READ_BYTES,
    HOST_WRITE_BYTES,
    MEDIA_ERRORS,
    PROGRAMMED,
    REFRESHED_BLOCKS,
    RETRIED_PAGES,
    SENSED,
    UNCORRECTABLE_PAGES,
)

KELVIN = 273
COMPOSITE_KELVIN = KELVIN + 40
"""Composite temperature, K. The value is assumed and constant, because the emulator does not model
temperature."""
WARNING_KELVIN, CRITICAL_KELVIN = KELVIN + 70, KELVIN + 80
"""WCTEMP and CCTEMP, K. Assumed constants above the composite temperature. NVMe 1.2 and later
versions do not allow the value 0."""


class Ran(NamedTuple):
    """Counters of a drive, summed over one or more of its starts. A start is the period from
    power-on to power-off."""

    power_on_ps: int = 0
    busy_ps: int = 0
    """Simulated time during which commands were in flight, ps."""
    host_read_bytes: int = 0
    host_write_bytes: int = 0
    media_read_bytes: int = 0
    media_write_bytes: int = 0
    media_errors: int = 0
    retried_pages: int = 0
    """Number of pages that needed more than one read attempt."""
    uncorrectable_pages: int = 0
    refreshed_blocks: int = 0

    def plus(self, other: Ran) -> Ran:
        """Return the sum of these counters and ``other``."""
        return Ran(*(a + b for a, b in zip(self, other, strict=True)))


def ran_of(counts: np.ndarray, page_bytes: int, now_ps: int, busy_ps: int = 0) -> Ran:
    """Convert the drive's counters ``counts``, int64[len(COUNTERS)], to the counters of the health
    log pages. ``page_bytes``: size of a mapping unit. ``now_ps``: simulated time in
    which the events were counted. ``busy_ps``: part of this time in which commands were in
    flight."""
    found = dict(zip(COUNTERS, counts.tolist(), strict=True))
    return Ran(
        power_on_ps=int(now_ps),
        busy_ps=busy_ps,
        host_read_bytes=int(counts[HOST_READ_BYTES]),
        host_write_bytes=int(counts[HOST_WRITE_BYTES]),
        media_read_bytes=page_bytes * sum(found[name] for name in SENSED),
        media_write_bytes=page_bytes * sum(found[name] for name in PROGRAMMED),
        media_errors=int(counts[MEDIA_ERRORS]),
        retried_pages=int(counts[RETRIED_PAGES]),
        uncorrectable_pages=int(counts[UNCORRECTABLE_PAGES]),
        refreshed_blocks=int(counts[REFRESHED_BLOCKS]),
    )


class Past(NamedTuple):
    """Health data that a drive preserves across power cycles, without the counters of the current
    start."""

    power_cycles: int = 1
    """Number of starts of the drive, including the current one."""
    unsafe_shutdowns: int = 0
    """Number of power cuts without a preceding shutdown notification (Registers.notified)."""
    power_loss_saves: int = 0
    """Number of power cuts at which power-loss protection began to save data."""
    ran: Ran = Ran()
    """Sums of the drive's counters over all starts before the current one."""

    def restarted(self, notified: bool, saved: bool, ran: Ran) -> Past:
        """Return the health data for the next start of the drive.

        ``notified``: True if the host has sent a shutdown notification. ``saved``: True if
        power-loss protection has begun to save data. ``ran``: counters of the current start.
        """
        return self.after(1, int(not notified), int(saved), ran)

    def after(self, starts: int, unsafe: int, saves: int, ran: Ran) -> Past:
        """Return the sum of this health data and the given numbers of starts, unsafe shutdowns,
        power-loss saves, and counters."""
        return Past(
            self.power_cycles + starts,
            self.unsafe_shutdowns + unsafe,
            self.power_loss_saves + saves,
            self.ran.plus(ran),
        )


class Health(NamedTuple):
    """Health data of a drive over its lifetime."""

    critical_warning: int
    """Critical warnings, bits of nvme.status.CriticalWarning."""
    spare: int
    """Available spare capacity, percent of the initial spare capacity."""
    spare_threshold: int
    """Value of ``spare`` below which the drive reports a critical warning, percent."""
    percentage_used: int
    """Mean number of erases per flash block divided by the rated number of P/E cycles, percent; at
    most 255."""
    free_blocks: int
    """Percentage of the good flash blocks that are free."""
    host_read_bytes: int
    host_write_bytes: int
    media_read_bytes: int
    media_write_bytes: int
    power_on_ps: int
    busy_ps: int
    """Simulated time during which commands were in flight, ps."""
    power_cycles: int
    unsafe_shutdowns: int
    power_loss_saves: int
    media_errors: int
    bad_blocks: int
    retried_pages: int
    """Number of pages that needed more than one read attempt."""
    uncorrectable_pages: int
    refreshed_blocks: int
    least_erases: int
    most_erases: int
    used_bytes: int
    """Total size of the mapped mapping units, bytes."""
    kelvin: int = COMPOSITE_KELVIN


def health_of(
    ran: Ran,
    *,
    page_bytes: int,
    bad_blocks: int,
    erases: np.ndarray,
    endurance_cycles: float,
    spare: int,
    spare_at_start: int,
    spare_threshold: float,
    critical_warning: int,
    free_blocks: int,
    used_pages: int,
    past: Past,
) -> Health:
    """Return the health data of a drive over its lifetime.

    ``ran``: counters of the current start. ``past``: health data of earlier starts. ``page_bytes``:
    size of a mapping unit. ``bad_blocks``: number of blocks that have become bad. ``erases``:
    int[blocks], number of erases of each good block, including the initial P/E cycles that the
    configuration assumes. ``endurance_cycles``: rated number of P/E cycles, or 0 if none is rated.
    ``spare``: current number of spare blocks. ``spare_at_start``: initial number of spare blocks.
    ``spare_threshold``: fraction of ``spare_at_start``. ``critical_warning``: bits of
    nvme.status.CriticalWarning. ``free_blocks``: number of free blocks. ``used_pages``: number of
    mapped mapping units.
    """
    whole = past.ran.plus(ran)
    worn = float(erases.mean()) if erases.size else 0.0
    used = round(100 * worn / endurance_cycles) if endurance_cycles else 0
    left = 100 * max(spare, 0) // spare_at_start if spare_at_start > 0 else 100
    return Health(
        critical_warning=int(critical_warning),
        spare=min(left, 100),
        spare_threshold=round(100 * spare_threshold),
        percentage_used=min(used, 255),
        free_blocks=100 * free_blocks // max(erases.size, 1),
        power_cycles=past.power_cycles,
        unsafe_shutdowns=past.unsafe_shutdowns,
        power_loss_saves=past.power_loss_saves,
        bad_blocks=bad_blocks,
        **whole._asdict(),
        least_erases=int(erases.min()) if erases.size else 0,
        most_erases=int(erases.max()) if erases.size else 0,
        used_bytes=page_bytes * used_pages,
    )
