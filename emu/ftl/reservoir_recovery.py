"""Reservoir recovery: rebuild the map, write pointer and cursor of each die from flash alone.

Owns the reconstruction from out-of-band data. Does not own the reads and their cost
(paths/on_die/recovery_plan.py, analysis/power_loss/cut.py) or the conventional namespace.
Source: OptimStore (HPCA 2023): strictly sequential programs, super-pages in order. Recovery from
out-of-band data is as in FTLs: the newest sequence number wins, and an open block is closed or
padded.

The cursor of a die is the number of its super-pages that contain the result of the current step.
Parities over dies and commit records are super-pages that the cursor does not count. A commit
record takes one page.

A die programs one super-page after the other. A power loss can therefore tear only the super-page
that the die was programming. Torn super-pages of earlier power losses also remain if the die has
not completed the program of a super-page since then. Rules:

- A version is complete if the records of all planes are intact, agree, and are on the correct
  planes. If the planes of a block have changed roles (reservoir.py), all must have rotated by the
  same number of planes. The data of the newest version by sequence number must also match its
  checksums. If the data does not match, the version counts as torn, and recovery checks the next
  newest version. Older torn versions need no check: a torn super-page is programmed again first
  after recovery, so a complete version has replaced it.
- A die programs its commit record when all stripes of a step and their parities are programmed. One
  intact commit record of a step on any die means that the step is done. Versions newer than the
  last completed step belong to the current step. Recovery can ignore these versions (undo the step)
  if flash contains all super-pages of the last completed step.
- The drive restarts an undone step with a sequence number of the next attempt (ATTEMPT). This
  number identifies the versions of earlier attempts, complete or torn, when the step can no longer
  be undone. The drive continues after the last version that is kept. It erases the blocks filled
  since then one by one, so undoing takes no space, regardless of the number of power losses.
- If the durability of a store is "host", any data in unsynced files may be lost when the host loses
  power. Recovery then checks the data of all versions. It drops the results of the current step
  after the first lost super-page in the order of updates, and the step continues from that
  super-page. A sync precedes every erase, so the older versions exist.
- The place (physical super-page) after the last non-blank place may have been partly programmed and
  still read as blank. In the open block, recovery pads this place: it programs arbitrary data, so
  that the next recovery does not treat the place as blank after repeated power losses. Other blocks
  need no padding, because each block is erased again before the die enters it.
- If super-pages change their die (paths/on_die/wear_leveling.py), two dies may contain complete
  versions of the same super-page. The version with the higher sequence number counts, because both
  versions may belong to one step and sequence numbers are assigned per device. If that version is
  torn, the other version counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ondie.emu.nand.page_store import Spare

ATTEMPT = 1 << 32
"""Number of sequence numbers that are reserved for each attempt at a step."""


class Unrecoverable(RuntimeError):
    """Raised if flash does not contain a complete and consistent version of every super-page."""


@dataclass(frozen=True)
class Version:
    """One version of a super-page: the contents that one program wrote to a place (physical
    super-page) of a die's reservoir. ``step``: update step whose result the version contains."""

    super_page: int
    step: int
    sequence: int
    place: int
    turned: int = 0
    """Number of planes by which the plane roles (which plane stores which page of a super-page)
    have rotated in the block of ``place``."""


@dataclass
class DieScan:
    """Result of the scan of the reservoir of one die.

    A place is a physical super-page. The reservoir has ``blocks`` x ``pages`` places, which are
    numbered from 0. ``planes``: number of pages of a place that a super-page fills; None if it
    fills all pages of the place.
    """

    die: int
    blocks: int
    pages: int
    planes: int | None = None
    versions: dict[int, Version] = field(default_factory=dict)
    """Complete versions of super-pages, by place (physical super-page). A version is complete if
    the out-of-band records of all its pages are valid and agree."""
    visible: set[int] = field(default_factory=set)
    """Places (physical super-pages) at which at least one page is not blank."""
    sequence: int = 0
    """Highest sequence number in the out-of-band data of the die."""
    torn: int = 0
    """Number of places (physical super-pages) that are not blank, and whose version of a super-page
    is incomplete or was dropped by :meth:`refuse`."""
    records: int = 1 << 62
    """Smallest super-page number of a commit record; larger than all super-page numbers if no
    commit records are written. Each commit record takes one page."""

    def saw(self, place: int, spares: Sequence[Spare | None | bool]) -> None:
        """Add the out-of-band data ``spares`` (one item per plane) that was read at ``place``. An
        item is a Spare record, None for a blank page, or False if the checksum of the record is
        wrong.
        """
        if all(spare is None for spare in spares):
            return
        self.visible.add(place)
        records = [spare for spare in spares if isinstance(spare, Spare)]
        self.sequence = max([self.sequence, *(record.sequence for record in records)])
        used = self.planes or len(spares)
        for turned in range(len(spares) if used < len(spares) else 1):
            head = spares[turned]
            if not isinstance(head, Spare):
                continue
            fills = 1 if head.lpn >= self.records else used
            planes = [spares[(turned + slot) % len(spares)] for slot in range(fills)]
            if len(records) == fills and planes == [(*head[:3], i) for i in range(fills)]:
                found = Version(head.lpn, head.step, head.sequence, place, turned)
                self.versions[place] = found
                return
        self.torn += 1

    @property
    def doubtful(self) -> Version | None:
        """Version with the highest sequence number, whose data must be checked, or None if the die
        has no version.
        """
        return max(self.versions.values(), key=lambda version: version.sequence, default=None)

    def refuse(self, version: Version) -> None:
        """Drop version ``version``, which must not be used, and count its place (physical
        super-page) as torn."""
        del self.versions[version.place]
        self.torn += 1

    def drop_unordered(self, step: int, expected: Sequence[int]) -> bool:
        """Find the first super-page of ``expected``, the super-pages of the die in the order of
        updates, that has no version of step ``step``. Drop the versions of step ``step`` of that
        super-page and of all later ones. Return True if every super-page has a version of the step.
        """
        newest = self.newest(step)
        done = [sp in newest and newest[sp].step == step for sp in expected]
        behind = set(expected[done.index(False) :]) if False in done else set()
        for version in list(self.versions.values()):
            if version.step == step and version.super_page in behind:
                self.refuse(version)
        return not behind

    def drop_records(self, step: int) -> None:
        """Drop the commit records of step ``step``."""
        for version in list(self.versions.values()):
            if version.step == step and version.super_page >= self.records:
                self.refuse(version)

    def give_up(self, step: int, attempt: int) -> None:
        """Drop the versions of super-pages that attempts at step ``step`` before attempt
        ``attempt`` have written."""
        for version in list(self.versions.values()):
            if version.step == step and version.sequence // ATTEMPT < attempt:
                del self.versions[version.place]

    @property
    def committed(self) -> int:
        """Newest step that a commit record of the die marks as done, or 0 if the die has no commit
        record.
        """
        done = [
            version.step for version in self.versions.values() if version.super_page >= self.records
        ]
        return max(done, default=0)

    def committed_by(self, step: int) -> int:
        """Return the highest sequence number of a commit record of step ``step``, or -1 if there is
        none.
        """
        records = [
            version.sequence
            for version in self.versions.values()
            if version.step == step and version.super_page >= self.records
        ]
        return max(records, default=-1)

    def newest(self, last: int) -> dict[int, Version]:
        """Return the newest complete version of each super-page, by super-page number. Versions of
        steps after ``last`` are ignored.
        """
        found: dict[int, Version] = {}
        for version in self.versions.values():
            if version.step > last:
                continue
            other = found.get(version.super_page)
            if other is None or (version.step, version.sequence) > (other.step, other.sequence):
                found[version.super_page] = version
        return found

    def next_place(self, last: int) -> tuple[int, int | None]:
        """Return (next place to program, place to fill with padding first, or None if no padding is
        needed). A place is a physical super-page. Recovery keeps only the versions of steps up to
        ``last``.
        """
        kept = [version for version in self.versions.values() if version.step <= last]
        if not kept:
            return 0, None
        block = max(kept, key=lambda version: version.sequence).place // self.pages
        behind = 1 + max(p for p in self.visible if p // self.pages == block)
        if behind // self.pages > block:
            return behind % (self.blocks * self.pages), None
        return (behind + 1) % (self.blocks * self.pages), behind


@dataclass(frozen=True)
class DieState:
    """State of the reservoir of one die, as recovery has reconstructed it from flash."""

    places: dict[int, int]
    """Place (physical super-page) of the newest version of each super-page, by super-page
    number."""
    next_place: int
    pad: int | None
    sequence: int
    cursor: int
    """Number of super-pages of the die, in order of update, that already contain the result of the
    current step.
    """
    turned: dict[int, int] = field(default_factory=dict)
    """Rotation of the plane roles (which plane stores which page of a super-page), in planes, by
    block number. Contains each block with a version of a super-page."""
    made: frozenset[int] = frozenset()
    """Super-page numbers of the parities and commit records already programmed for the current
    step.
    """


def check_newest(scan: DieScan, intact: Callable[[Version], bool]) -> bool:
    """Check the data of the newest version of a super-page that scan ``scan`` has found. Return
    True if the data is intact or if no version exists.

    If the data is torn, drop the version and return False. Then call the function again to check
    the version that is now the newest.
    """
    last = scan.doubtful
    if last is None or intact(last):
        return True
    scan.refuse(last)
    return False


def can_undo(scan: DieScan, expected: Sequence[int], step: int) -> bool:
    """Return True if step ``step`` can be undone: flash contains the result of step ``step`` - 1
    for every super-page in ``expected``.
    """
    found = scan.newest(step - 1)
    return all(sp in found and found[sp].step == step - 1 for sp in expected)


def conclude(
    scan: DieScan,
    expected: Sequence[int],
    step: int,
    beside: Sequence[int] = (),
    undo: bool = False,
) -> DieState:
    """Return the state of the die's reservoir that follows from its scan. ``expected``: super-pages
    of the die in order of update. ``step``: current or last step. ``beside``: parities and commit
    record of the die, which may be missing. ``undo``: return the state before ``step``. Raises
    Unrecoverable if a super-page is missing or the steps of the super-pages are inconsistent.
    """
    found = scan.newest(step - undo)
    where = f"die {scan.die}"
    missing = [sp for sp in expected if sp not in found]
    if missing:
        raise Unrecoverable(
            f"{where}: no complete version of super-page {missing[0]}"
            + (f" ({len(missing)} super-pages have none)" if len(missing) > 1 else "")
        )
    done = [found[sp].step == step for sp in expected]
    cursor = sum(done)
    if done != [True] * cursor + [False] * (len(done) - cursor):
        raise Unrecoverable(
            f"{where}: super-pages of step {step}: {cursor}; they are not the first in the order "
            "of updates"
        )
    old = {found[sp].step for sp in expected[cursor:]}
    if old - {step - 1}:
        raise Unrecoverable(
            f"{where}: a super-page has step {min(old)}; must be step {step - 1} or {step}"
        )
    place, pad = scan.next_place(step - undo)
    there = [sp for sp in beside if sp in found]
    places = {sp: found[sp].place for sp in (*expected, *there)}
    turned = {version.place // scan.pages: version.turned for version in scan.versions.values()}
    made = frozenset(sp for sp in there if found[sp].step == step)
    return DieState(places, place, pad, scan.sequence, cursor, turned, made)


def assign_super_pages(scans: Sequence[DieScan], count: int, last: int) -> list[list[int]]:
    """Assign super-pages 0 to ``count`` - 1 to the dies of a device. Return the list of super-pages
    of each die. A super-page belongs to the die with its newest version among the steps up to
    ``last``. Raises Unrecoverable if a super-page has no such version.
    """
    best: dict[int, tuple[int, int, int]] = {}
    for i, scan in enumerate(scans):
        for sp, version in scan.newest(last).items():
            best[sp] = max(best.get(sp, (-1, -1, -1)), (version.step, version.sequence, i))
    missing = [sp for sp in range(count) if sp not in best]
    if missing:
        raise Unrecoverable(
            f"no complete version of super-page {missing[0]}"
            + (f" ({len(missing)} super-pages have none)" if len(missing) > 1 else "")
        )
    held: list[list[int]] = [[] for _ in scans]
    for sp in range(count):
        held[best[sp][2]].append(sp)
    return held
