"""Description and check of a closed store.

Owns the reading of every record and page, the report, and the check of single pages when a drive
starts. Does not own the format (store_folder.py, segment_files.py, page_store.py). The store is not
changed, and no page is mapped.
Source: this project (docs/store.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ondie.emu.nand.cache_file import CacheContents, look
from ondie.emu.nand.page_store import ERASED, OOB, PROGRAMMED, TORN
from ondie.emu.nand.sealed_records import READS_VALID, read_spares
from ondie.emu.nand.segment_files import LEAST_OPEN, SegmentFiles
from ondie.emu.nand.store_folder import StoreFolder
from ondie.emu.units import InputError
from ondie.kernels.crc import crc32c

Progress = Callable[[str, float], None]
"""Type of a callback that reports progress: name of the task, finished fraction (0 to 1)."""
MOST_LISTED = 1000
"""Maximum number of pages in each list of page numbers of a report. The counts include all pages.
"""


def files_of(folder: StoreFolder) -> SegmentFiles:
    """Return the segment files of a store whose folder is open."""
    block = folder.superblock
    return SegmentFiles(folder, block.page_bytes, block.pages, OOB, LEAST_OPEN)


@dataclass
class StoreCheck:
    """Result of :func:`check_store`: counts of pages in a closed store, and the damage found.

    ``pages_listed`` and ``records_listed``: physical page numbers of the damaged pages and of the
    pages with damaged records, at most MOST_LISTED each.
    """

    store: str
    segments: int = 0
    programmed_pages: int = 0
    torn_pages: int = 0
    """Number of pages whose program or erase was interrupted. They do not count as damaged."""
    damaged_pages: int = 0
    """Number of programmed pages whose record is valid, but whose data does not match the checksum
    in the record."""
    damaged_records: int = 0
    """Number of pages whose out-of-band record has an invalid state or a wrong seal."""
    pages_listed: list[int] = field(default_factory=list)
    records_listed: list[int] = field(default_factory=list)
    cached: CacheContents = field(default_factory=CacheContents)
    """Contents of the cache files (power-loss protection). Interrupted entries do not count as
    damaged.
    """
    problems: list[str] = field(default_factory=list)
    """One sentence for each file that is missing, truncated, damaged or unreadable, and for a wrong
    number of segments."""

    @property
    def intact(self) -> bool:
        """True if no page, record or file is damaged."""
        return not (self.damaged_pages or self.damaged_records or self.problems)

    def data(self) -> dict[str, Any]:
        """Return the report as an object for a JSON document."""
        return {
            "store": self.store,
            "intact": self.intact,
            "segments": self.segments,
            "programmed_pages": self.programmed_pages,
            "torn_pages": self.torn_pages,
            "damaged_pages": {"count": self.damaged_pages, "listed": self.pages_listed},
            "damaged_records": {"count": self.damaged_records, "listed": self.records_listed},
            "cached_pages": self.cached.pages,
            "broken_entries": self.cached.broken,
            "trimmed_units": self.cached.trims,
            "problems": self.problems,
        }

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        found = [
            f"store {self.store}: {'intact' if self.intact else 'damaged'}",
            f"  segments          {self.segments:,}",
            f"  programmed pages  {self.programmed_pages:,}",
            f"  torn pages        {self.torn_pages:,}",
            f"  damaged pages     {_listed(self.damaged_pages, self.pages_listed)}",
            f"  damaged records   {_listed(self.damaged_records, self.records_listed)}",
        ]
        if self.cached != CacheContents():
            found += [
                f"  cached pages      {self.cached.pages:,}, {self.cached.broken:,} broken entries",
                f"  trimmed units     {self.cached.trims:,}",
            ]
        return found + [f"  {problem}" for problem in self.problems]


def _listed(count: int, pages: list[int]) -> str:
    """Return ``count`` and up to 20 page numbers as text."""
    shown = ", ".join(map(str, pages[:20]))
    more = ", ..." if count > 20 else ""
    return f"{count:,}" + (f": physical pages {shown}{more}" if count else "")


def check_store(path: str | os.PathLike[str], progress: Progress | None = None) -> StoreCheck:
    """Check the superblock, the sizes of all files, the seals of all out-of-band records and the
    checksums of all programmed pages of a store that no drive uses.

    ``progress``: callback (name of the task, finished fraction). Raises InputError if the store
    cannot be opened (see StoreFolder.look), or if a file has a segment number that the drive does
    not have.
    """
    folder = StoreFolder.look(path, lock=True)
    try:
        files, report = files_of(folder), StoreCheck(str(Path(path)))
        numbers = files.numbers()
        report.segments = len(numbers)
        report.cached = look(folder)
        if report.cached.problem:
            report.problems.append(report.cached.problem)
        block = folder.superblock
        if block.clean and block.segments != len(numbers):
            report.problems.append(
                f"{folder.path}: has {len(numbers)} segments; its superblock states "
                f"{block.segments}"
            )
        for done, number in enumerate(numbers):
            try:
                _check_segment(files, number, report)
            except InputError as error:
                report.problems.append(str(error))
            if progress is not None:
                progress("check", (done + 1) / len(numbers))
        return report
    finally:
        folder.close()


def _check_segment(files: SegmentFiles, number: int, report: StoreCheck) -> None:
    """Check the records and the pages of a segment, and add the results to ``report``. Raises
    InputError if a file cannot be used."""
    records = files.records(number)
    written = records["written"]
    first = number * files.segment_pages
    report.torn_pages += int((written == TORN).sum())
    programmed = written == PROGRAMMED
    valid = programmed & (read_spares(records) == READS_VALID)
    damaged = np.flatnonzero(~valid & (written != ERASED) & (written != TORN))
    report.damaged_records += len(damaged)
    room = MOST_LISTED - len(report.records_listed)
    report.records_listed += (first + damaged[:room]).tolist()
    sealed = np.flatnonzero(valid).tolist()
    report.programmed_pages += len(sealed)
    for at, page in zip(sealed, files.read_pages(number, sealed), strict=True):
        if crc32c(page) != records["checksum"][at]:
            report.damaged_pages += 1
            if len(report.pages_listed) < MOST_LISTED:
                report.pages_listed.append(first + at)


def damaged_among(files: SegmentFiles, ppns: np.ndarray) -> list[int]:
    """Return the numbers of the damaged pages among ``ppns`` (int64[n]). A page is damaged if its
    record is damaged, if its bytes do not match the checksum, or if its file cannot be read. All
    ``ppns`` must contain data."""
    found: list[int] = []
    numbers, places = np.divmod(ppns, files.segment_pages)
    for number in np.unique(numbers).tolist():
        at = places[numbers == number]
        wrong = np.ones(len(at), bool)
        with suppress(InputError):
            records = files.records(number)[at]
            whole = (records["written"] == PROGRAMMED) & (read_spares(records) == READS_VALID)
            pages = files.read_pages(number, at.tolist())
            sums = np.array([crc32c(page) for page in pages], np.uint32)
            wrong = ~whole | (sums != records["checksum"])
        found += (number * files.segment_pages + at[wrong]).tolist()
    return sorted(found)


def describe_store(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the superblock and the sizes of a store, for `ondie store info`. Sizes are in bytes.

    Another process may be using the store. Raises InputError if the store cannot be opened (see
    StoreFolder.look) or if a file cannot be used.
    """
    folder = StoreFolder.look(path)
    try:
        files, block = files_of(folder), folder.superblock
        numbers = files.numbers()
        programmed = sum(
            int((files.records(number)["written"] == PROGRAMMED).sum()) for number in numbers
        )
        return {
            "store": str(folder.path),
            "format_version": block.version,
            "uuid": block.uuid,
            "preset": block.preset,
            "configuration_sha256": block.configuration_sha256,
            "seed": block.seed,
            "durability": block.durability,
            "clean": block.clean,
            "in_use": folder.in_use,
            "holes_for_erased_pages": block.holes,
            "page_bytes": block.page_bytes,
            "flash_bytes": block.pages * block.page_bytes,
            "segments": len(numbers),
            "segments_of_the_drive": files.segments,
            "programmed_pages": programmed,
            "programmed_bytes": programmed * block.page_bytes,
            "cached_pages": (cached := look(folder)).pages,
            "trimmed_units": cached.trims,
            "disk_bytes": folder.disk_bytes(),
        }
    finally:
        folder.close()
