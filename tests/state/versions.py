"""Owns: what each mapping unit of a drive may hold, by the contract of a power cut, and a drive
that is held to it. Does not: choose commands or the time of the cut.
Source: NVMe base specification (volatile write cache, FLUSH, FUA); docs/store.md.

A unit has one version that must not be lost, and later ones of which any may be found after a cut:
those written since the last FLUSH, those of commands that were in flight.
"""

import numpy as np

from ondie.emu.drive import Drive
from ondie.emu.nvme.command import COMMAND, FLUSH, READ, TRIM, WRITE

CHECKED = 4
"""The books are looked at after one of so many runs of commands, and after every recovery."""


def contents(drive: Drive) -> np.ndarray:
    """What flash holds of all mapping units, uint8[units, unit_bytes]; zeros if not mapped."""
    found = np.zeros((drive.units, drive.unit_bytes), np.uint8)
    units = np.flatnonzero(drive.arrays.l2p[0, : drive.units])
    if drive.store.files is not None:
        for unit in units.tolist():
            found[unit] = drive.stored(unit)
        return found
    per = drive.store._per_segment
    ppns = drive.arrays.l2p[0, units].astype(np.int64) - 1
    for number in np.unique(ppns // per).tolist():
        pages, records, _ = drive.store._segment(number * per)
        here = ppns // per == number
        at = ppns[here] % per
        assert records["written"][at].all(), "an erased page is mapped"
        found[units[here]] = pages[at]
    return found


class Versions:
    """A drive, and the versions of its units."""

    def __init__(self, drive: Drive, cached: bool, checks: bool = True, protected: bool = False):
        self.drive, self.cached = drive, cached
        """Whether a completed write may be lost until a FLUSH."""
        self.protected = protected
        """Whether no completed command may be lost, trims included (VWC = 0)."""
        self.checks = checks
        size = drive.unit_bytes
        self.held = np.zeros((drive.units, size), np.uint8)
        """What a read must find; always one of the versions."""
        self.sure: dict[int, bytes] = {}
        """The version that must not be lost, where it is not zeros."""
        self.later: dict[int, list[bytes]] = {}
        self.stamp = 0
        self.cuts = self.runs = 0
        drive.buffer = self.memory = np.zeros((128, size), np.uint8)
        self.tag = 0

    def _sure(self, unit: int) -> bytes:
        return self.sure.get(unit, bytes(self.drive.unit_bytes))

    def batch(self, items, queues: int = 1) -> list[tuple]:
        """Submit commands (op, byte offset, bytes, fua) on units that do not meet. Return those
        submitted as (op, units, memory slot, new contents by unit, fua, offset, size)."""
        size, block = self.drive.unit_bytes, self.drive.block_bytes
        free, slot, chosen = set(range(self.drive.units)), 0, []
        rows = []
        for op, offset, count, fua in items:
            offset -= offset % block
            count = max(count - count % block, block) if op != FLUSH else 0
            room = (len(self.memory) - slot - 1) * size
            count = min(count, self.drive.capacity - offset, room)
            if op == FLUSH:
                offset, count = 0, 0
            units = range(offset // size, -(-(offset + count) // size)) if count else range(0)
            if (op != FLUSH and count <= 0) or not free.issuperset(units):
                continue
            free -= set(units)
            new = {}
            if op == WRITE:
                self.stamp += 1
                data = np.arange(count, dtype=np.int64) // block + offset // block
                data = (data * 40503 + self.stamp * 9973).astype(np.uint8)
                data[:8] = np.frombuffer(np.int64(self.stamp).tobytes(), np.uint8)
                self.memory.reshape(-1)[slot * size : slot * size + count] = data
                for unit in units:
                    whole = self.held[unit].copy()
                    first = max(unit * size, offset)
                    last = min((unit + 1) * size, offset + count)
                    whole[first - unit * size : last - unit * size] = data[
                        first - offset : last - offset
                    ]
                    new[unit] = whole.tobytes()
            elif op == TRIM:
                inner = range(-(-offset // size), (offset + count) // size)
                new = dict.fromkeys(inner, bytes(size))
            elif op == READ:
                self.memory.reshape(-1)[slot * size : slot * size + count] = 0xEE
            chosen.append((op, units, slot, new, fua, offset, count))
            moves = op in (READ, WRITE)
            rows.append((op, offset, count, fua, slot * size if moves else -1))
            slot += -(-count // size) if moves else 0
        commands = np.zeros(len(rows), COMMAND)
        for name, column in zip(
            ("op", "offset", "size", "fua", "data"), zip(*rows, strict=True), strict=False
        ):
            commands[name] = column
        commands["tag"] = self.tag + np.arange(len(rows))
        commands["queue"] = (np.arange(len(rows)) + 1) % queues
        commands["arrival"] = self.drive.earliest_arrival
        self.drive.submit(commands)
        return chosen

    def settle(self, chosen, done) -> None:
        """Note the completions ``done`` of the commands ``chosen``."""
        completed = {int(row["tag"]): int(row["status"]) for row in done}
        flushed = False
        for at, (op, _, slot, new, fua, offset, count) in enumerate(chosen):
            if self.tag + at not in completed:
                for unit, contents in new.items():
                    self.later.setdefault(unit, []).append(contents)
                continue
            assert completed[self.tag + at] == 0
            if op == READ:
                found = self.memory.reshape(-1)[slot * self.drive.unit_bytes :][:count]
                want = self.held.reshape(-1)[offset : offset + count]
                assert (found == want).all(), f"bytes {offset} to {offset + count}"
            for unit, contents in new.items():
                self.held[unit] = np.frombuffer(contents, np.uint8)
                self.later.setdefault(unit, []).append(contents)
                if self.protected or (op == WRITE and (not self.cached or fua)):
                    self.sure[unit] = contents
                    self.later.pop(unit)
            flushed |= op == FLUSH
        self.tag += len(chosen)
        if flushed:  # a FLUSH that is submitted alone
            for unit, versions in self.later.items():
                self.sure[unit] = versions[-1]
            self.later.clear()

    def run(self, items, queues: int = 1) -> None:
        """Run commands to their end."""
        chosen = self.batch(items, queues)
        self.drive.run()
        self.settle(chosen, self.drive.completions())
        self.runs += 1
        if self.checks and self.runs % CHECKED == 0:
            self.drive.check()

    def cut(self, items, events: int, queues: int = 1) -> None:
        """Cut the power ``events`` events after the submission of commands, and recover."""
        chosen = self.batch(items, queues)
        self.drive.power_cut(events)
        self.settle(chosen, self.drive.completions())
        self.drive.power_on()
        self.cuts += 1
        self.look()

    def look(self) -> None:
        """Read every unit after a recovery: one version, and no other from then on."""
        now = contents(self.drive)
        for unit in np.flatnonzero((now != self.held).any(axis=1)).tolist():  # not the last version
            whole = now[unit].tobytes()
            allowed = [self._sure(unit), *self.later.get(unit, [])]
            if whole not in allowed:
                raise AssertionError(
                    f"unit {unit}: {np.frombuffer(whole[:8], np.int64)[0]} is none of "
                    f"{[int(np.frombuffer(each[:8], np.int64)[0]) for each in allowed]}"
                )
        self.sure = {unit: now[unit].tobytes() for unit in np.flatnonzero(now.any(axis=1)).tolist()}
        self.held = now
        self.later.clear()
        if self.checks:
            self.drive.check()
