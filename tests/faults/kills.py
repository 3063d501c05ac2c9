"""Owns: a process that writes to a drive with a store until it is killed, and what each mapping
unit may hold afterwards. Does not: decide how often.
Source: docs/store.md, the contract with durability "process".

    python -m tests.faults.kills FOLDER MODE DURABILITY KILLS SEED

Round after round, a child is forked, which opens the drive and runs batches until it is killed; the
parent then opens the drive and looks at every unit. Each batch writes or trims units of its own;
every third is followed by a FLUSH. The child tells in shared memory how far it has come.
"""

import mmap
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np

from ondie.emu.drive import Drive
from ondie.emu.engine.run import build
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.engine.run.power_system import Start
from ondie.emu.nvme.command import COMMAND, FLUSH, TRIM, WRITE
from ondie.emu.units import InputError
from tests.state import small
from tests.state.test_power_on import DRIVES

MODES = {
    "no cache": {},
    "write back": {"cache__mode": "write_back", "cache__capacity": "32 KiB"},
    "protected": {
        "cache__mode": "write_back", "cache__capacity": "32 KiB",
        "cache__power_loss_protection": "true", "cache__hold_up": "1 J",
    },
    "pSLC": DRIVES["pSLC"],
    # A kill costs up to a stripe of each open block: with 4 in a block, many kills fill the drive.
    "cached map, word lines": DRIVES["cached map, word lines"] | {
        "flash__pages_per_block": 36, "flash__blocks_per_plane": 24,
    },
    "checkpoints": {"ftl__trim_maps": "true", "ftl__map_checkpoint": "4 KiB"},
}  # fmt: skip
WRITE_BACK = ("write back", "cached map, word lines")
"""Modes in which a write that has completed may be lost until a FLUSH."""
DONE, FLUSHED = 0, 1


def opened(folder, mode, durability):
    cfg = small.config(**{"ftl__gc_low_blocks": 1, "flash__blocks_per_plane": 16} | MODES[mode])
    return Drive(cfg, True, store=folder, durability=durability, strict=True)


def batch(seed, number, units):
    """(op, units) of batch ``number``; the units do not meet."""
    rng = np.random.default_rng((seed, number))
    return TRIM if number % 5 == 4 else WRITE, rng.choice(units, int(rng.integers(1, 24)), False)


def content(number, unit, size):
    return np.full(size // 8, number * 100_000 + unit + 1, np.int64).view(np.uint8)


def write_for_ever(folder, mode, durability, seed, first, told):
    """Run batches from number ``first`` on."""
    drive = opened(folder, mode, durability)
    size, number = drive.unit_bytes, first
    drive.buffer = memory = np.zeros((32, size), np.uint8)
    while True:
        op, units = batch(seed, number, drive.units)
        commands = np.zeros(len(units), COMMAND)
        commands["op"], commands["size"], commands["offset"] = op, size, units * size
        commands["data"] = np.arange(len(units)) * size if op == WRITE else -1
        commands["arrival"] = drive.earliest_arrival
        for at, unit in enumerate(units.tolist()):
            memory[at] = content(number, unit, size)
        drive.submit(commands)
        drive.run()
        assert not drive.completions()["status"].any()
        told[DONE] = number
        if number % 3 == 2:
            flush = np.zeros(1, COMMAND)
            flush["op"], flush["data"], flush["arrival"] = FLUSH, -1, drive.earliest_arrival
            drive.submit(flush)
            drive.run()
            assert not drive.completions()["status"].any()
            told[FLUSHED] = number
        number += 1


def allowed(seed, mode, units, found, first, told):
    """Numbers of the batches whose contents each unit may have (-1: zeros). ``found``: those it had
    before batch ``first``."""
    may = {unit: {found[unit]} for unit in range(units)}
    sure = told[FLUSHED] if mode in WRITE_BACK else told[DONE]
    for number in range(first, int(told[DONE]) + 2):  # the last one was in flight
        op, own = batch(seed, number, units)
        safe = number <= (told[FLUSHED] if op == TRIM and mode != "protected" else sure)
        for unit in own.tolist():
            contents = {-1 if op == TRIM else number}
            may[unit] = contents if safe else may[unit] | contents
    return may


def look(drive, seed, mode, found, first, told):
    """Check every unit of a drive after a kill. Return the numbers of the batches found."""
    may = allowed(seed, mode, drive.units, found, first, told)
    now = []
    for unit in range(drive.units):
        held = drive.stored(unit)
        number = (
            -1 if held is None or not held.any() else int(held[:8].view(np.int64)[0] // 100_000)
        )
        if number >= 0:
            assert (held == content(number, unit, drive.unit_bytes)).all(), f"unit {unit} is torn"
        assert number in may[unit], f"unit {unit}: batch {number}, not one of {sorted(may[unit])}"
        now.append(number)
    drive.check()
    return now


def main(folder, mode, durability, kills, seed):
    # The pool of a large drive takes longer to make than this one's batches.
    build.BUDGET, build.ROWS = 1024, 1 << 10
    drive = opened(folder, mode, durability)
    drive.warm_up()
    drive.write(0, np.zeros(drive.unit_bytes, np.uint8))  # compiles the rest
    found = [-1] * drive.units
    found[0] = -1
    drive.close()
    rng = np.random.default_rng(seed)
    number, starts, batches, restored, used = 0, [], 0, 0, 0
    for turn in range(kills):
        told = np.frombuffer(mmap.mmap(-1, 4096), np.int64)
        told[:2] = number - 1
        child = os.fork()
        if child == 0:
            try:
                write_for_ever(folder, mode, durability, seed, number, told)
            except (AssertionError, InputError, SimulationError):
                traceback.print_exc()
            finally:
                os._exit(3)
        while turn % 4 and told[DONE] < number:  # else in the recovery, now and then
            time.sleep(1e-3)
        time.sleep(float(rng.uniform(0, 0.03)))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        drive = opened(folder, mode, durability)
        starts.append(drive.started)
        if drive.recovered is not None:
            restored += drive.recovered.restored + drive.recovered.restored_trims
        used += drive.recovered is not None and drive.recovered.checkpoint > 0
        assert drive.recovered is None or not drive.recovered.fallback or durability == "host"
        found = look(drive, seed, mode, found, number, told)
        batches += int(told[DONE]) + 1 - number
        number = int(told[DONE]) + 2
        if turn % 2:
            drive.close()
        else:  # as if this process had been killed, too
            drive.store.close()
    recovered = sum(start is Start.RECOVERY for start in starts)
    print(f"kills {kills} recovered {recovered} batches {batches} restored {restored} "
          f"checkpoints {used}")  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
