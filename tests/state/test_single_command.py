"""One command at a time, as a client that is alone runs it (PayloadSystem.run_single), against the
same drive with submit, run_until and completions: the same ends, statuses, bytes and books."""

from typing import Any

import numpy as np
import pytest

from ondie.emu.clock import NEVER
from ondie.emu.drive import Drive
from ondie.emu.nvme.client_turns import IN_FLIGHT, REFUSED, Single
from ondie.emu.nvme.command import COMMAND, FLUSH, READ, TRIM, WRITE
from ondie.emu.nvme.status import Condition, Status
from tests.state.test_drive_service import batch
from tests.state.test_service import MODES, SMALL
from tests.state.written import config


def a_drive(mode: str, **options: Any) -> Drive:
    return Drive(config(**{**SMALL, **MODES[mode]}), True, queues=2, **options)


class Alone:
    """A drive whose commands run one by one."""

    def __init__(self, drive: Drive) -> None:
        self.drive, self.memory = drive, np.zeros(drive.unit_bytes, np.uint8)
        self.commands = np.zeros(1, COMMAND)
        self.single = Single(self.commands, self.memory)

    def run(self, command: np.ndarray, until: int = NEVER - 1) -> tuple[int, int]:
        """(status, end) of ``command``, COMMAND[1]; its tag is not changed."""
        self.commands[:] = command
        assert self.drive.takes_single
        status = self.drive.run_single(self.single, self.drive.earliest_arrival, until, 77)
        assert self.commands["tag"][0] == command["tag"][0]
        return status, self.single.end_ps


def one(op: int, drive: Drive, unit: int = 0) -> np.ndarray:
    out = np.zeros(1, COMMAND)
    out["op"] = op
    if op != FLUSH:
        out["size"], out["offset"] = drive.unit_bytes, unit * drive.unit_bytes
    return out


@pytest.mark.parametrize("mode", ["no cache", "write back"])
def test_it_does_what_a_batch_of_one_does(mode, counts):
    rng, drives = np.random.default_rng(4), (a_drive(mode), a_drive(mode))
    alone, plain = Alone(drives[0]), drives[1]
    memory = np.zeros(plain.unit_bytes, np.uint8)
    for number in range(counts(300, 3000)):
        command = batch(rng, plain, 1)
        command["data"] = np.where(command["op"] <= WRITE, 0, -1)
        memory[:] = alone.memory[:] = number % 251
        status, end = alone.run(command)
        command["arrival"] = plain.earliest_arrival
        plain.submit(command, memory)
        plain.run_until(completions=1)
        done = plain.completions()
        assert (status, end) == (done["status"][0], done["end"][0])
        assert (alone.memory == memory).all()
        assert drives[0].now == plain.now and drives[0].outstanding == 0
    for name in ("count", "l2p", "block"):
        assert (getattr(drives[0].arrays, name) == getattr(plain.arrays, name)).all(), name
    for drive in drives:
        drive.check()
        drive.close()


def test_a_command_that_takes_longer_is_taken_later():
    drive = a_drive("no cache")
    alone = Alone(drive)
    status, _ = alone.run(one(WRITE, drive), drive.now)
    assert status == IN_FLIGHT and drive.outstanding == 1 and not drive.takes_single
    drive.run_until(completions=1)
    assert not drive.takes_single  # it has not been taken
    done = drive.completions()
    assert done["tag"].tolist() == [77] and not done["status"].any()
    assert alone.run(one(READ, drive))[0] == 0
    drive.check()


def test_what_a_completion_promises_is_kept_when_it_is_taken(tmp_path, monkeypatch):
    """With durability "host", a FLUSH syncs the files first."""
    drive = a_drive("write back", store=tmp_path / "s", durability="host")
    alone, synced = Alone(drive), []
    sync = drive.moved.sync_completed
    monkeypatch.setattr(drive.moved, "sync_completed", lambda each: (synced.append(1), sync(each)))
    for number, op in enumerate((WRITE, FLUSH)):
        assert alone.run(one(op, drive))[0] == IN_FLIGHT
        assert drive.outstanding == 0 and not drive.takes_single and len(synced) == number
        assert drive.completions()["status"].tolist() == [0]
        assert len(synced) == number + 1
    assert drive.takes_single
    drive.close()


def test_a_command_that_breaks_a_rule_has_no_effect():
    drive = a_drive("no cache")
    alone, wrong = Alone(drive), one(READ, drive)
    wrong["size"] = 1
    assert alone.run(wrong)[0] == REFUSED and drive.outstanding == 0
    assert alone.run(one(READ, drive))[0] == 0
    drive.check()


def test_the_status_is_that_of_the_command():
    drive = a_drive("no cache")
    alone = Alone(drive)
    assert alone.run(one(WRITE, drive, 2))[0] == 0
    drive.inject_media_errors(2 * drive.unit_bytes, drive.unit_bytes)
    assert alone.run(one(READ, drive, 2))[0] == Status.UNRECOVERED_READ_ERROR
    assert alone.run(one(TRIM, drive, 2))[0] == alone.run(one(READ, drive, 2))[0] == 0


def test_an_error_of_the_engine_ends_the_command(monkeypatch):
    """It completes with INTERNAL_ERROR as in a batch, and the drive is offline."""
    drive = a_drive("no cache")
    alone = Alone(drive)

    def fails(count: int) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(drive, "take_log", fails)
    assert alone.run(one(WRITE, drive))[0] == IN_FLIGHT
    done = drive.completions()
    assert done["tag"].tolist() == [77] and done["status"].tolist() == [Status.INTERNAL_ERROR]
    assert drive.condition is Condition.OFFLINE and not drive.takes_single


@pytest.mark.parametrize("state", ["off", "strict", "no payload", "closed"])
def test_who_takes_no_single_command(state):
    if state == "no payload":
        drive = Drive(config(**SMALL))
    else:
        drive = a_drive("no cache", strict=state == "strict")
    if state == "off":
        drive.power_cut(0)
    elif state == "closed":
        drive.close()
    assert not drive.takes_single
