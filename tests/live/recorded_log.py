"""Owns: a log of the commands that ext4 and fio give to a served drive, and what each flush
promises of the contents. Does not own: the drive that the log is played to.
Source: NVMe base specification (FLUSH, volatile write cache).
"""

from dataclasses import dataclass, field

import numpy as np
import pytest

from ondie.emu.config.config import Config
from ondie.emu.drive import Drive
from ondie.emu.nvme.command import COMMAND, FLUSH, TRIM, WRITE
from ondie.emu.serve import nbd_session
from ondie.emu.serve.server import ServeOptions, Server
from tests.live.processes import Live

SECTOR = 512


@dataclass
class Batch:
    """Commands that were handed over at once, COMMAND[n], with the bytes of the writes."""

    commands: np.ndarray
    data: np.ndarray


@dataclass
class Log:
    batches: list[Batch] = field(default_factory=list)
    begun: int = 0
    """Number of the batches that made the file system."""

    def add(self, commands: np.ndarray, memory: np.ndarray) -> None:
        """Add the commands of a batch that change something."""
        kept = commands[np.isin(commands["op"], (WRITE, TRIM, FLUSH))].copy()
        if not len(kept):
            return
        parts, at = [np.zeros(0, np.uint8)], 0
        for command in kept:
            if command["op"] == WRITE:
                first, size = int(command["data"]), int(command["size"])
                parts.append(memory[first : first + size].copy())
                command["data"] = at
                at += size
            else:
                command["data"] = -1
        self.batches.append(Batch(kept, np.concatenate(parts)))


def record(live: Live, cfg: Config, monkeypatch: pytest.MonkeyPatch, writes: str) -> Log:
    """Make an ext4 on a served drive, run the line ``writes`` in it, and return the log.

    The server runs in this process, the clients in others: nothing here may touch the mount.
    """
    log, run = Log(), nbd_session.run

    def recorded(connection, commands, memory):
        log.add(commands, memory)
        return run(connection, commands, memory)

    monkeypatch.setattr(nbd_session, "run", recorded)
    server = Server(cfg, ServeOptions(nbd=f"unix:{live.folder}/nbd", block_bytes=SECTOR))
    try:
        live.attach("--connections=1")  # so that the batches follow each other
        live.run("mkfs.ext4 -q -F -b 4096 fuse/disk && sync fuse/disk")
        live.mount_disk("discard")
        live.run("sync -f mnt")
        log.begun = len(log.batches)
        live.run(writes)
        live.detach()
    finally:
        server.close()
    return log


class Contents:
    """What the sectors of a drive may hold: the bytes that a flush has promised, or any that were
    written since."""

    def __init__(self, drive: Drive) -> None:
        self.unit = drive.unit_bytes
        self.sure = np.zeros((drive.units, self.unit), np.uint8)
        self.last: dict[int, np.ndarray] = {}
        """The newest contents of units that were written since."""
        self.later: dict[int, list[np.ndarray]] = {}
        """All contents of these units since, in order."""

    def apply(self, batch: Batch) -> None:
        """The commands of a batch are handed over: each of them may take effect."""
        for command in batch.commands:
            offset, size = int(command["offset"]), int(command["size"])
            if command["op"] == FLUSH:
                continue
            end = offset + size
            for unit in range(offset // self.unit, -(-end // self.unit)):
                new = self.last.get(unit, self.sure[unit]).copy()
                start = unit * self.unit
                low, high = max(offset - start, 0), min(end - start, self.unit)
                if command["op"] == WRITE:
                    at = int(command["data"]) + start + low - offset
                    new[low:high] = batch.data[at : at + high - low]
                elif high - low == self.unit:
                    new[:] = 0
                self.last[unit] = new
                self.later.setdefault(unit, []).append(new)

    def promise(self) -> None:
        """A flush has completed, and nothing was handed over since it was."""
        for unit, data in self.last.items():
            self.sure[unit] = data
        self.last.clear()
        self.later.clear()

    def wrong(self, found: np.ndarray) -> list[int]:
        """Every unit of ``found``, uint8[units, bytes], with a sector that it may not hold."""
        words = found.view(np.int64) != self.sure.view(np.int64)  # an eighth of the comparisons
        differ = np.flatnonzero(words.any(axis=1)).tolist()
        return [unit for unit in differ if not self._may_hold(unit, found[unit])]

    def _may_hold(self, unit: int, found: np.ndarray) -> bool:
        allowed = np.stack([self.sure[unit], *self.later.get(unit, [])])
        same = (allowed == found).reshape(len(allowed), -1, SECTOR).all(axis=2)
        return bool(same.any(axis=0).all())


def play(drive: Drive, batch: Batch) -> None:
    """Hand over a batch and complete it."""
    submit(drive, batch)
    drive.run_until(completions=len(batch.commands))
    assert not drive.completions()["status"].any()


def submit(drive: Drive, batch: Batch) -> None:
    commands = batch.commands.astype(COMMAND)
    commands["arrival"], commands["tag"] = drive.earliest_arrival, np.arange(len(commands))
    drive.submit(commands, batch.data if len(batch.data) else np.zeros(1, np.uint8))
