"""Counters of a drive in the terms of the health logs.

Owns the record, and how it follows from the drive's counters. Does not own the counters
(engine/core/counters.py), the critical warnings (nvme/condition.py) or the log pages that carry the
record (log_pages.py).
Source: NVM Express Base Specification 2.0, sections 5.16.1.3 (SMART / Health Information) and
5.16.1.10 (Endurance Group Information); OCP Datacenter NVMe SSD Specification 2.0, section 4.8.6.

A page of a counter is a page of the mapping table (engine/core/counters.py), so bytes programmed
are pages programmed times its size.
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
"""Composite temperature. The emulator models no heat: a constant, assumed."""
WARNING_KELVIN, CRITICAL_KELVIN = KELVIN + 70, KELVIN + 80
"""WCTEMP and CCTEMP, which must not be 0 since version 1.2. The emulator models no heat: constants,
assumed, that the temperature never reaches."""


class Ran(NamedTuple):
    """Counters of one or more starts of a drive."""

    power_on_ps: int = 0
    busy_ps: int = 0
    """Time with commands in flight."""
    host_read_bytes: int = 0
    host_write_bytes: int = 0
    media_read_bytes: int = 0
    media_write_bytes: int = 0
    media_errors: int = 0
    retried_pages: int = 0
    """Pages that took more than one read."""
    uncorrectable_pages: int = 0
    refreshed_blocks: int = 0

    def plus(self, other: Ran) -> Ran:
        """Return the sums with ``other``."""
        return Ran(*(a + b for a, b in zip(self, other, strict=True)))


def ran_of(counts: np.ndarray, page_bytes: int, now_ps: int, busy_ps: int = 0) -> Ran:
    """Return the counters ``counts``, int64[len(COUNTERS)], in the terms of the health logs.
    ``page_bytes``: bytes of a page of the mapping table. ``now_ps``: time since the start."""
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
    """Health data that a drive keeps over power cycles, beyond the counters of one start."""

    power_cycles: int = 1
    """Starts of the drive, this one included."""
    unsafe_shutdowns: int = 0
    """Power cuts without a shutdown notification (Registers.notified)."""
    power_loss_saves: int = 0
    """Power cuts at which power-loss protection began to save data."""
    ran: Ran = Ran()
    """Counts of the starts before this one."""

    def restarted(self, notified: bool, saved: bool, ran: Ran) -> Past:
        """Return the health data that this start passes on to the next one. ``notified``: the host
        had announced the end of power. ``saved``: power-loss protection began to save data.
        ``ran``: counts of this start."""
        return self.after(1, int(not notified), int(saved), ran)

    def after(self, starts: int, unsafe: int, saves: int, ran: Ran) -> Past:
        """Return the health data with the given starts, unsafe shutdowns, saves and counts
        added."""
        return Past(
            self.power_cycles + starts,
            self.unsafe_shutdowns + unsafe,
            self.power_loss_saves + saves,
            self.ran.plus(ran),
        )


class Health(NamedTuple):
    """Counters of a drive since it was made."""

    critical_warning: int
    """Critical warnings, bits of nvme.status.CriticalWarning."""
    spare: int
    """Available spare, percent."""
    spare_threshold: int
    """Threshold of the available spare, percent."""
    percentage_used: int
    """Mean erases of a block divided by the rated cycles, percent, at most 255."""
    free_blocks: int
    """Free blocks, percent."""
    host_read_bytes: int
    host_write_bytes: int
    media_read_bytes: int
    media_write_bytes: int
    power_on_ps: int
    busy_ps: int
    """Time with commands in flight."""
    power_cycles: int
    unsafe_shutdowns: int
    power_loss_saves: int
    media_errors: int
    bad_blocks: int
    retried_pages: int
    """Pages that took more than one read."""
    uncorrectable_pages: int
    refreshed_blocks: int
    least_erases: int
    most_erases: int
    used_bytes: int
    """Bytes of mapped mapping units."""
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
    """Return the counters of a drive.

    ``ran``: counts of this start; ``past``: health data of the starts before it. ``page_bytes``:
    bytes of a page of the mapping table. ``bad_blocks``: blocks that have become bad. ``erases``:
    int[blocks], good blocks only, with the cycles at the start. ``spare``, ``spare_at_start``:
    spare blocks; ``spare_threshold``: share of them. ``free_blocks``: number of free blocks.
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
