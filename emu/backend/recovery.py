"""Recovery of the reservoir: map, write pointer and cursor of each die, from flash alone.

Owns what is concluded from out-of-band data. Does not own how they are read and what that takes
(paths/resume.py, power.py), nor the conventional namespace.
Source: OptimStore (HPCA 2023): programs strictly in sequence, super-pages in order; recovery from
out-of-band data as FTLs do it (newest sequence number wins; an open block is closed or padded).

A die programs one super-page after the other, so the power can only have torn the last one, and the
last one of every cut before it that left nothing whole behind it. So:

- A version is complete when every plane's record is whole and they agree, and the newest by
  sequence number must also have data that match their checksums; where they do not, it is taken for
  torn, and the next newest is looked at. Before that one, nothing is torn that a whole version has
  not replaced: the torn super-page was the cursor, so it is the first to be programmed again.
- The place behind the last one that is not blank may have been programmed a little and read as
  blank. In the open block it is padded: programmed with anything, so that the next recovery sees
  it. Nothing else would tell it from a blank one, however often the power goes. In any other block
  there is no need, as blocks are erased again before they are entered: they may be half erased.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ondie.emu.backend.store import Spare


class Unrecoverable(RuntimeError):
    """Flash does not hold a complete version of everything."""


@dataclass(frozen=True)
class Version:
    """A super-page as it lies at a place of its die's reservoir."""

    super_page: int
    step: int
    sequence: int
    place: int


@dataclass
class DieScan:
    """What recovery has read of one die. Places are numbered through its ``blocks`` x ``pages``."""

    die: int
    blocks: int
    pages: int
    versions: dict[int, Version] = field(default_factory=dict)
    """By place: whole by their records."""
    visible: set[int] = field(default_factory=set)
    """Places that are not blank."""
    sequence: int = 0
    """The highest number seen."""
    torn: int = 0
    """Places that hold something, and nothing whole."""

    def saw(self, place: int, spares: Sequence[Spare | None | bool]) -> None:
        """The out-of-band data of a place, plane by plane."""
        if all(spare is None for spare in spares):
            return
        self.visible.add(place)
        records = [spare for spare in spares if isinstance(spare, Spare)]
        self.sequence = max([self.sequence, *(x.sequence for x in records)])
        alike = {x[:3] for x in records}
        slots = [x.slot for x in records]
        if len(alike) == 1 and slots == list(range(len(spares))):
            super_page, sequence, step = alike.pop()
            self.versions[place] = Version(super_page, step, sequence, place)
        else:
            self.torn += 1

    @property
    def doubtful(self) -> Version | None:
        """The newest version, whose data have to be looked at."""
        return max(self.versions.values(), key=lambda v: v.sequence, default=None)

    def refuse(self, version: Version) -> None:
        """Its data do not match their checksums."""
        del self.versions[version.place]
        self.torn += 1

    def newest(self) -> dict[int, Version]:
        """By super-page: of its complete versions the newest."""
        found: dict[int, Version] = {}
        for v in self.versions.values():
            other = found.get(v.super_page)
            if other is None or (v.step, v.sequence) > (other.step, other.sequence):
                found[v.super_page] = v
        return found

    def next_place(self) -> tuple[int, int | None]:
        """(where the die programs next, place to be padded before, or None)."""
        last = self.doubtful
        if last is None:
            return 0, None
        block = last.place // self.pages
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


def check(scan: DieScan, intact: Callable[[Version], bool]) -> bool:
    """Look at the data of the newest version; False when they were torn, and another one is the
    newest now."""
    last = scan.doubtful
    if last is None or intact(last):
        return True
    scan.refuse(last)
    return False


def conclude(scan: DieScan, expected: Sequence[int], step: int) -> DieState:
    """What the die holds, that has the super-pages ``expected`` in the order of their update, when
    ``step`` is or was the last one under way. Raises Unrecoverable."""
    found = scan.newest()
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
    place, pad = scan.next_place()
    return DieState({sp: found[sp].place for sp in expected}, place, pad, scan.sequence, cursor)
