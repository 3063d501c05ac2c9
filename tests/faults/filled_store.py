"""Owns: commands of one unit each on a drive with a store, and a program that fills the file system
of its store. Does not: make or mount the file system.
Source: own.

`python -m tests.faults.filled_store FOLDER LEAST` makes a drive with a store in FOLDER, writes
until it is full, after more than LEAST units, and prints their number.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from ondie.emu.config.config import configuration
from ondie.emu.drive import CommandError, Drive
from ondie.emu.nand.store_check import check_store, describe_store
from ondie.emu.nvme.command import COMMAND, FLUSH, READ, TRIM, WRITE
from ondie.emu.nvme.status import Condition, CriticalWarning, Status

UNITS = 2560
"""Units that are more than a file system holds."""


def commands(items, drive):
    """Commands of one unit each: (op, unit); data of a unit lie at its place in the buffer."""
    found = np.zeros(len(items), COMMAND)
    found["op"], found["offset"] = np.array(items, np.int64).reshape(-1, 2).T
    found["offset"] *= drive.unit_bytes
    found["size"] = np.where(found["op"] == FLUSH, 0, drive.unit_bytes)
    found["data"] = np.where(found["op"] < 2, found["offset"], -1)
    found["offset"][found["op"] == FLUSH] = 0
    found["arrival"] = drive.earliest_arrival
    return found


def run(drive, items):
    drive.submit(commands(items, drive))
    drive.run()
    return drive.completions()


def ends(drive, each, **kw):
    """Submit one command for each (op, unit), run until idle, return the statuses."""
    drive.submit(commands(each, drive, **kw))
    drive.run()
    return [Status(status) for status in drive.completions()["status"]]


def fill(drive):
    """Write unit after unit until the store is full. Return the number of units written before."""
    for unit in range(0, len(drive.buffer) - 8, 8):
        found = ends(drive, [(WRITE, unit + i) for i in range(8)])
        if any(found):
            assert set(found) <= {Status.SUCCESS, Status.WRITE_FAULT}
            assert drive.condition is Condition.READ_ONLY and "no room" in drive.why
            return unit
    raise AssertionError("it never was full")


def read_only(drive, units, path):
    """What a full store still does."""
    sent, drive.buffer[:] = drive.buffer.copy(), 0
    run(drive, [(READ, unit) for unit in range(units)])
    assert (drive.buffer[:units] == sent[:units]).all()
    protected = Status.NAMESPACE_WRITE_PROTECTED
    assert ends(drive, [(WRITE, 1), (TRIM, 1)]) == [protected] * 2
    assert ends(drive, [(FLUSH, 1)]) == [Status.WRITE_FAULT]
    assert CriticalWarning.READ_ONLY == drive.critical_warning
    with pytest.raises(CommandError, match=r"namespace write protected.*no room") as raised:
        drive.write(0, bytes(drive.unit_bytes))
    assert raised.value.status is protected
    assert (drive.read(0, drive.unit_bytes) == sent[0]).all()
    drive.check()
    lost = "lost: the data written after the store could no longer be changed"
    with pytest.raises(CommandError, match=lost):
        drive.close()
    assert not describe_store(path)["clean"]
    report = check_store(path)
    assert report.intact and report.programmed_pages >= units - 8, report


def main(folder, least):
    path = Path(folder) / "store"
    drive = Drive(configuration("gen4-tlc", ["flash.blocks_per_plane=32"]), True, store=path)
    drive.buffer = np.random.default_rng(1).integers(0, 256, (UNITS, drive.unit_bytes), np.uint8)
    units = fill(drive)
    assert units > least
    read_only(drive, units, path)
    print("end", units)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
