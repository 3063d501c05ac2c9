"""The end of a drive: what close() stores, what it says is lost, and what `why` says afterwards."""

import re
import shutil

import numpy as np
import pytest

import ondie
from ondie.emu.drive import CommandError, Drive
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.engine.run.power_system import Start
from ondie.emu.nvme.command import COMMAND, WRITE
from ondie.emu.nvme.status import Condition, Status
from tests.state import small

CACHED = {"cache__mode": "write_back", "cache__capacity": "64 KiB"}


pytestmark = pytest.mark.usefixtures("few_transactions")


def a_drive(path, **options) -> Drive:
    return Drive(small.config(**CACHED), payload=True, store=path, **options)


def write(drive: Drive, count: int) -> np.ndarray:
    """Submit ``count`` writes of one unit each, and run nothing."""
    data = np.random.default_rng(count).integers(1, 256, (count, drive.unit_bytes), np.uint8)
    commands = np.zeros(count, COMMAND)
    commands["op"], commands["size"] = WRITE, drive.unit_bytes
    commands["offset"] = commands["data"] = np.arange(count) * drive.unit_bytes
    commands["arrival"] = drive.earliest_arrival
    drive.submit(commands, data)
    return data


def broken(drive: Drive, monkeypatch, path) -> None:
    """Make a defect of the engine while the cache holds data."""

    def fail(count):
        raise SimulationError("no such state")

    drive.run()
    with monkeypatch.context() as patch:
        patch.setattr(drive, "take_log", fail)
        write(drive, 40)
        drive.run()
    assert drive.defect is not None and drive.arrays.cache.contents[0]


def test_commands_in_flight_are_completed(tmp_path):
    with a_drive(tmp_path / "store") as drive:
        data = write(drive, 200)
    assert drive.outstanding == 0 and not drive.completions()["status"].any()
    with a_drive(tmp_path / "store") as again:
        assert again.started is Start.CHECKPOINT and not again.why
        assert (again.read(0, 16 * again.unit_bytes).reshape(16, -1) == data[:16]).all()
        assert (again.stored(199) == data[199]).all()


def test_after_a_defect_close_says_what_is_lost(tmp_path, monkeypatch):
    drive = a_drive(tmp_path / "store")
    write(drive, 200)
    broken(drive, monkeypatch, tmp_path)
    cached = int(drive.arrays.cache.contents[0])
    words = rf"close: status 0x6, internal error; lost: {cached} mapping units? in the data cache; "
    with pytest.raises(
        ondie.CommandError, match=words + "SimulationError: no such state"
    ) as caught:
        drive.close()
    assert caught.value.status == ondie.Status.INTERNAL_ERROR
    drive.close()  # it is closed all the same
    with a_drive(tmp_path / "store") as again:
        assert again.started is Start.RECOVERY and again.condition is Condition.ONLINE


def test_after_an_error_the_loss_is_a_note_of_it(tmp_path, monkeypatch):
    with pytest.raises(KeyError, match="mine") as caught, a_drive(tmp_path / "store") as drive:
        write(drive, 200)
        broken(drive, monkeypatch, tmp_path)
        raise KeyError("mine")
    assert len(caught.value.__notes__) == 1 and "in the data cache" in caught.value.__notes__[0]


def test_what_a_power_cut_has_taken_is_not_said_again(tmp_path):
    with a_drive(tmp_path / "store") as drive:
        write(drive, 200)
        drive.power_cut(100)
        assert drive.why == "the power was cut"
    with Drive(small.config(**CACHED), payload=True) as memory:  # nothing is meant to last
        write(memory, 10)


def test_why_says_that_the_start_was_a_recovery(tmp_path):
    drive = a_drive(tmp_path / "store")
    write(drive, 200)
    drive.run()
    drive.flush()
    assert not drive.why
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    drive.close()
    again = a_drive(tmp_path / "copy")
    assert again.started is Start.RECOVERY and again.condition is Condition.ONLINE
    words = r"the tables were recovered from flash: read [\d,]+ pages in .* mapped 200 "
    assert again.recovered is not None and again.recovered.mapped == 200
    assert re.match(words, again.why), again.why
    again.power_cut(0)
    assert again.why == "the power was cut"
    again.power_on()
    assert re.match(words, again.why), again.why
    with pytest.raises(CommandError) as caught:
        again.arrays.dev["protected"] = 1
        again.write(0, bytes(again.unit_bytes))
    assert "shut down" not in str(caught.value)
    assert caught.value.status == Status.NAMESPACE_WRITE_PROTECTED
