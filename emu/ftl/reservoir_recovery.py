"""Recovery of the reservoir: map, write pointer and cursor of each die, from flash alone.

Owns what is concluded from out-of-band data. Does not own how they are read and what that takes
(paths/resume.py, power.py), nor the conventional namespace. Parities over dies and commit records
are super-pages as others are, but a record takes one page, and neither has a cursor.
Source: OptimStore (HPCA 2023): programs strictly in sequence, super-pages in order; recovery from
out-of-band data as FTLs do it (newest sequence number wins; an open block is closed or padded).

A die programs one super-page after the other, so the power can only have torn the last one, and the
last one of every cut before it that left nothing whole behind it. So:

- A version is complete when every plane's record is whole and they agree, each in its place: where
  the planes of a block have changed roles (reservoir.py), all have turned by as many. The newest by
  number must also have data that match their checksums; where they do not, it is taken for
  torn, and the next newest is looked at. Before that one, nothing is torn that a whole version has
  not replaced: the torn super-page was the cursor, so it is the first to be programmed again.
- A die programs its record when all stripes of a step and their parities are there: one whole
  record of a step on any die says that the step is done. What is newer than the last step done is
  of a step under way, and can be left aside where all super-pages are there at that step: undone.
- The drive begins a step that was undone with a number of the next attempt (ATTEMPT), so that what
  those before have left of it is known, whole or torn, when the step can be undone no more. It
  goes on behind the last version that is kept: what it had filled since then is erased again, block
  by block, so that undoing takes no room however often the power goes.
- The place behind the last one that is not blank may have been programmed a little and read as
  blank. In the open block it is padded: programmed with anything, so that the next recovery sees
  it. Nothing else would tell it from a blank one, however often the power goes. In any other block
  there is no need, as blocks are erased again before they are entered: they may be half erased.
- Where super-pages change their die (paths/levelling.py), two dies may hold whole versions of one:
  the newer one counts, and sequence numbers, which a device gives, say which, as both may be of the
  same step. The older one counts where the newer one is torn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ondie.emu.nand.page_store import Spare

ATTEMPT = 1 << 32
"""Sequence numbers of an attempt at a step; the next one's are the next so many."""


class Unrecoverable(RuntimeError):
    """Flash does not hold a complete version of everything."""


@dataclass(frozen=True)
class Version:
    """A super-page as it lies at a place of its die's reservoir."""

    super_page: int
    step: int
    sequence: int
    place: int
    turned: int = 0
    """Planes by which the roles of the die's planes have turned there."""


@dataclass
class DieScan:
    """What recovery has read of one die. Places are numbered through its ``blocks`` x ``pages``; a
    super-page fills ``planes`` of what is read of a place, all where it is None."""

    die: int
    blocks: int
    pages: int
    planes: int | None = None
    versions: dict[int, Version] = field(default_factory=dict)
    """By place: whole by their records."""
    visible: set[int] = field(default_factory=set)
    """Places that are not blank."""
    sequence: int = 0
    """The highest number seen."""
    torn: int = 0
    """Places that hold something, and nothing whole."""
    records: int = 1 << 62
    """Super-pages from this one on take one page."""

    def saw(self, place: int, spares: Sequence[Spare | None | bool]) -> None:
        """The out-of-band data of a place, plane by plane."""
        if all(spare is None for spare in spares):
            return
        self.visible.add(place)
        records = [spare for spare in spares if isinstance(spare, Spare)]
        self.sequence = max([self.sequence, *(x.sequence for x in records)])
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
        """The newest version, whose data have to be looked at."""
        return max(self.versions.values(), key=lambda v: v.sequence, default=None)

    def refuse(self, version: Version) -> None:
        """Its data do not match their checksums."""
        del self.versions[version.place]
        self.torn += 1

    def give_up(self, step: int, attempt: int) -> None:
        """Versions of ``step`` that are of attempts before ``attempt`` do not count."""
        for v in list(self.versions.values()):
            if v.step == step and v.sequence // ATTEMPT < attempt:
                del self.versions[v.place]

    @property
    def committed(self) -> int:
        """The step that the die's newest record says is done; 0 without one."""
        done = [v.step for v in self.versions.values() if v.super_page >= self.records]
        return max(done, default=0)

    def newest(self, last: int) -> dict[int, Version]:
        """By super-page: of its complete versions the newest, of steps up to ``last``."""
        found: dict[int, Version] = {}
        for v in self.versions.values():
            if v.step > last:
                continue
            other = found.get(v.super_page)
            if other is None or (v.step, v.sequence) > (other.step, other.sequence):
                found[v.super_page] = v
        return found

    def next_place(self, last: int) -> tuple[int, int | None]:
        """(where the die programs next, place to be padded before, or None), when versions of steps
        up to ``last`` are kept."""
        kept = [v for v in self.versions.values() if v.step <= last]
        if not kept:
            return 0, None
        block = max(kept, key=lambda v: v.sequence).place // self.pages
        behind = 1 + max(p for p in self.visible if p // self.pages == block)
        if behind // self.pages > block:
            return behind % (self.blocks * self.pages), None
        return (behind + 1) % (self.blocks * self.pages), behind


@dataclass(frozen=True)
class DieState:
    """What a die is found to hold."""

    places: dict[int, int]
    """Place by super-page."""
    next_place: int
    pad: int | None
    sequence: int
    cursor: int
    """Super-pages of the die that hold the step under way already: its first so many."""
    turned: dict[int, int] = field(default_factory=dict)
    """By block that holds something whole: planes by which its roles have turned."""
    made: frozenset[int] = frozenset()
    """Parities and records that hold it already."""


def check(scan: DieScan, intact: Callable[[Version], bool]) -> bool:
    """Look at the data of the newest version; False when they were torn, and another one is the
    newest now."""
    last = scan.doubtful
    if last is None or intact(last):
        return True
    scan.refuse(last)
    return False


def undoable(scan: DieScan, expected: Sequence[int], step: int) -> bool:
    """Is every super-page there as the step before ``step`` has left it?"""
    found = scan.newest(step - 1)
    return all(sp in found and found[sp].step == step - 1 for sp in expected)


def conclude(
    scan: DieScan,
    expected: Sequence[int],
    step: int,
    beside: Sequence[int] = (),
    undo: bool = False,
) -> DieState:
    """What the die holds, that has the super-pages ``expected`` in the order of their update, when
    ``step`` is or was the last one under way; with ``undo``, what it held before that. ``beside``:
    its parities and its record, if they were made. Raises Unrecoverable."""
    found = scan.newest(step - undo)
    where = f"die {scan.die}"
    missing = [sp for sp in expected if sp not in found]
    if missing:
        raise Unrecoverable(
            f"{where}: no complete version of super-page {missing[0]}"
            + (f" and of {len(missing) - 1} others" if len(missing) > 1 else "")
        )
    done = [found[sp].step == step for sp in expected]
    cursor = sum(done)
    if done != [True] * cursor + [False] * (len(done) - cursor):
        raise Unrecoverable(f"{where}: super-pages of step {step} are not its first {cursor}")
    old = {found[sp].step for sp in expected[cursor:]}
    if old - {step - 1}:
        raise Unrecoverable(
            f"{where}: super-pages of step {min(old)}; {step - 1} and {step} are right"
        )
    place, pad = scan.next_place(step - undo)
    there = [sp for sp in beside if sp in found]
    places = {sp: found[sp].place for sp in (*expected, *there)}
    turned = {v.place // scan.pages: v.turned for v in scan.versions.values()}
    made = frozenset(sp for sp in there if found[sp].step == step)
    return DieState(places, place, pad, scan.sequence, cursor, turned, made)


def settle(scans: Sequence[DieScan], count: int, last: int) -> list[list[int]]:
    """Which of super-pages 0 .. ``count`` - 1 each die of a device holds: the die of the newest
    version of steps up to ``last``. Raises Unrecoverable where there is none of one."""
    best: dict[int, tuple[int, int, int]] = {}
    for i, scan in enumerate(scans):
        for sp, v in scan.newest(last).items():
            best[sp] = max(best.get(sp, (-1, -1, -1)), (v.step, v.sequence, i))
    missing = [sp for sp in range(count) if sp not in best]
    if missing:
        raise Unrecoverable(
            f"no complete version of super-page {missing[0]}"
            + (f" and of {len(missing) - 1} others" if len(missing) > 1 else "")
        )
    held: list[list[int]] = [[] for _ in scans]
    for sp in range(count):
        held[best[sp][2]].append(sp)
    return held
