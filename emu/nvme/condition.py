"""Sentences that explain the condition of a served drive, and the drive's critical warnings.

Owns the sentences, and the computation of the warning bits from the drive's state. Does not own the
names of conditions and statuses (status.py) or the choice of a command's status (write_errors.py,
engine/run/command_system.py).
Source: NVMe base specification: SMART / Health Information log page, field Critical Warning.
"""

from __future__ import annotations

from ondie.emu.config.config import Config
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl import page_map
from ondie.emu.ftl.recovery import Recovered
from ondie.emu.nvme.status import SPARE_THRESHOLD, CriticalWarning
from ondie.emu.units import fmt_time, plural

MEDIA_ERRORS, NEWLY_LOST = map(COUNTERS.index, ("media_errors", "newly_lost_pages"))
PROTECTED_STORE = 2
"""Value of ``dev.protected`` while the store (folder) of the drive cannot be changed, so that the
drive is read-only. The value 1 means that the drive is read-only because it has too few spare
blocks."""


def why_read_only(arrays: Arrays) -> str:
    """Return a sentence that states why device 0 is read-only."""
    blocks = int(arrays.cfg.device_blocks[0])
    bad = int((arrays.block.state[:blocks] == page_map.BAD).sum())
    failing = int(arrays.pool.retiring[: int(arrays.cfg.units[0])].sum())
    had = int(arrays.dev.spare_at_start[0]) > 0
    reason = "bad blocks have used up the spare blocks" if had else "it never had spare blocks"
    return f"{reason}: {bad} of {blocks} blocks are bad, and {failing} more had a program failure"


def why_full(arrays: Arrays, cfg: Config) -> str:
    """Return a sentence that states why writes to device 0 fail for lack of space."""
    mapped, lpns = int(arrays.dev.mapped[0]), int(arrays.cfg.lpns[0])
    return (
        f"the drive is full: {mapped} of {lpns} mapping units hold data, and no block can be "
        f"collected; trim data, or use a value of ftl.over_provisioning above "
        f"{cfg.ftl.over_provisioning}"
    )


def why_recovered(found: Recovered) -> str:
    """Return a sentence about the recovery of a drive's mapping tables from flash: number of pages
    read, simulated time, and number of mapping units found."""
    text = (
        f"the tables were recovered from flash: read {plural(found.scanned_pages, 'page')} in "
        f"{fmt_time(found.time_ps)} and mapped {plural(found.mapped, 'mapping unit')}"
    )
    if found.overwritten_pages:
        text += f"; {plural(found.overwritten_pages, 'page')} of interrupted writes"
        text += " were overwritten" if found.overwritten_pages > 1 else " was overwritten"
    return text


def why_damaged(pages: list[int]) -> str:
    """Return a sentence that states which physical pages are damaged."""
    shown = ", ".join(map(str, pages[:8])) + (", ..." if len(pages) > 8 else "")
    return (
        f"the store has {plural(len(pages), 'damaged physical page')} ({shown}); "
        "`ondie store check` lists all damaged pages"
    )


def why_lost(arrays: Arrays) -> str:
    """Return a sentence about the pages of device 0 whose data was uncorrectable when the drive
    moved it, or an empty string if no data was lost."""
    count = int(arrays.count[0, NEWLY_LOST])
    if count == 0:
        return ""
    return (
        f"the data of {plural(count, 'page')} could not be corrected when the drive moved it, and "
        "is lost; reads of such a page end with an unrecovered read error until the page is "
        "rewritten"
    )


def critical_warning(arrays: Arrays, failed: bool, backup_failed: bool = False) -> CriticalWarning:
    """Return the critical warnings of device 0.

    SPARE_BELOW_THRESHOLD: less than the fraction SPARE_THRESHOLD of the initial spare blocks is
    left, or the drive is read-only because it has too few spare blocks.
    RELIABILITY_DEGRADED: a read or write ended with a media error, a move lost data, or ``failed``
    is True because the engine has a defect or the store has damaged pages.
    READ_ONLY: the drive does not accept writes.
    VOLATILE_MEMORY_BACKUP_FAILED: the data cache holds acknowledged data for which flash has no
    space, so that a power cut would lose the data; or ``backup_failed`` is True because a power cut
    lost data despite power-loss protection.
    """
    dev, found = arrays.dev[0], CriticalWarning.NONE
    threshold = SPARE_THRESHOLD * max(dev.spare_at_start, 0)
    if dev.protected == 1 or (dev.spare < dev.spare_at_start and dev.spare < threshold):
        found |= CriticalWarning.SPARE_BELOW_THRESHOLD
    if arrays.count[0, MEDIA_ERRORS] or arrays.count[0, NEWLY_LOST] or dev.faults or failed:
        found |= CriticalWarning.RELIABILITY_DEGRADED
    if dev.protected:
        found |= CriticalWarning.READ_ONLY
    unsafe = dev.full and arrays.cache.contents[0] and not arrays.cfg.cache_through[0]
    if backup_failed or unsafe:
        found |= CriticalWarning.VOLATILE_MEMORY_BACKUP_FAILED
    return found
