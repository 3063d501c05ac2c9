"""Do faults by request hit what was asked for, and nothing else?"""

import numpy as np
import pytest

from ondie.emu.drive import CommandError, Drive, MediaError
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.nvme.command import COMMAND, TRIM
from ondie.emu.nvme.status import Condition, CriticalWarning, Status
from ondie.emu.units import InputError
from tests.state import small

SHAPE = {
    "ftl__initial": "fresh", "flash__page": "4 KiB", "frontend__max_transfer": "32 KiB",
    "ftl__trim_maps": "true",
}  # fmt: skip
CACHES = {
    "none": {},
    "write back": {"cache__capacity": "64 KiB", "cache__mode": "write_back"},
    "both": {"cache__capacity": "64 KiB", "cache__mode": "read_write"},
    "protected": {
        "cache__capacity": "64 KiB", "cache__mode": "read_write", "cache__hold_up": "1 J",
        "cache__power_loss_protection": "true",
    },
}  # fmt: skip
UNIT = 4096


def drive(cache="both", store=None, **changes):
    return Drive(small.config(**(SHAPE | CACHES[cache] | changes)), True, store=store)


def readable(made, units):
    """Whether each unit can be read."""
    found = []
    for unit in units:
        try:
            made.read(unit * UNIT, UNIT)
        except MediaError as error:
            assert error.status == Status.UNRECOVERED_READ_ERROR
            found.append(False)
        else:
            found.append(True)
    return found


def media_errors(made):
    return int(made.arrays.count[0, COUNTERS.index("media_errors")])


def trim(made, unit):
    command = np.zeros(1, COMMAND)
    command["op"], command["offset"], command["size"] = TRIM, unit * UNIT, UNIT
    command["data"], command["arrival"] = -1, made.earliest_arrival
    made.submit(command, np.zeros(1, np.uint8))
    made.run()
    assert made.completions()["status"].tolist() == [0]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("files", [False, True])
def test_just_those_units(cache, files, tmp_path, rng):
    """The reads of damaged units fail, also twice damaged and cached ones, until they are written
    or trimmed."""
    with drive(cache, tmp_path / "store" if files else None) as made:
        data = rng.integers(0, 256, (8, UNIT), np.uint8)
        made.write(0, data)
        made.read(0, 8 * UNIT)
        assert made.inject_media_errors(2 * UNIT, 2 * UNIT) == 2
        assert made.inject_media_errors(3 * UNIT, UNIT) == 1
        made.check()
        assert readable(made, range(8)) == [True, True, False, False, True, True, True, True]
        assert media_errors(made) == 2 and made.critical_warning & 4
        with pytest.raises(MediaError):
            made.read(0, 8 * UNIT)
        assert media_errors(made) == 3
        made.write(2 * UNIT, data[2])
        made.flush()
        trim(made, 3)
        assert (made.read(2 * UNIT, UNIT) == data[2]).all() and not made.read(3 * UNIT, UNIT).any()
        assert all(readable(made, range(8))) and media_errors(made) == 3
        made.check()


@pytest.mark.parametrize("cache", CACHES)
def test_reads_at_the_same_time(cache, rng):
    """None of them gets the damaged bytes, also none that finds in the cache what another read."""
    made = drive(cache)
    made.write(0, rng.integers(0, 256, (8, UNIT), np.uint8))
    made.inject_media_errors(UNIT, UNIT)
    for same, gap_ps in ((True, 0), (False, 0), (True, 20_000_000)):
        commands = np.zeros(8, COMMAND)
        commands["size"], commands["tag"] = UNIT, np.arange(8)
        commands["data"] = np.arange(8) * UNIT
        commands["offset"] = UNIT if same else np.arange(8) * UNIT
        commands["arrival"] = made.earliest_arrival + gap_ps * np.arange(8)
        before = media_errors(made)
        made.submit(commands, np.zeros(8 * UNIT, np.uint8))
        made.run()
        done = made.completions()
        bad = np.arange(8) if same else np.array([1])
        assert sorted(done["tag"][done["status"] == Status.UNRECOVERED_READ_ERROR]) == bad.tolist()
        assert media_errors(made) - before == len(bad)
    made.check()


def test_collection_moves_the_damage(rng):
    """Other units are written until every block was collected; the damaged ones stay so."""
    made = drive("none", ftl__gc_low_blocks=1)
    made.write(0, rng.integers(0, 256, (4, UNIT), np.uint8))
    assert made.inject_media_errors(0, 2 * UNIT) == 2
    others = made.units - 4
    for _ in range(5):
        for unit in rng.permutation(others).tolist():
            made.write((4 + unit) * UNIT, rng.integers(0, 256, UNIT, np.uint8))
    assert made.arrays.count[0, COUNTERS.index("collections")] > 0
    assert readable(made, range(6)) == [False, False, True, True, True, True]
    made.check()


@pytest.mark.parametrize(
    ("offset", "size", "error"),
    [
        (1, UNIT, "offset = 1: must be a multiple of 4096 .mapping unit."),
        (0, 6000, "size = 6000: must be a multiple of 4096 .mapping unit."),
        (0, 0, "size = 0: must be"),
        (-UNIT, UNIT, "offset = -4096: must be"),
        (0, 1 << 40, "size = 1099511627776: must be at most .* at offset 0; the drive has"),
        (8 * UNIT, 2 * UNIT, "bytes 32768 to 40959: no data; write data first"),
    ],
)
def test_a_range_that_cannot_be_damaged(offset, size, error):
    made = drive()
    made.write(0, np.zeros(4 * UNIT, np.uint8))
    with pytest.raises(InputError, match=error):
        made.inject_media_errors(offset, size)
    made.power_cut(0)
    for ask in (lambda: made.inject_media_errors(0, UNIT), made.wear_out):
        with pytest.raises(InputError, match="after a power cut"):
            ask()


def test_a_drive_without_spare_blocks():
    """The reason of its condition blames no bad blocks that it does not have."""
    made = drive()
    made.arrays.dev["spare"] = made.arrays.dev["spare_at_start"] = 0
    assert made.wear_out() == 0 and made.condition is Condition.READ_ONLY
    assert made.why.startswith("it never had spare blocks: ") and "used up" not in made.why


def test_a_worn_out_drive(tmp_path, rng):
    """It is read-only, what it holds can be read, its books are right, and it stays so over a stop;
    blocks with a failed program are retired when they are collected."""
    data = rng.integers(0, 256, (8, UNIT), np.uint8)
    with drive(
        store=tmp_path / "store", ftl__map_checkpoint="32 KiB", flash__blocks_per_plane=24
    ) as made:
        made.write(0, data)
        spare = int(made.arrays.dev.spare[0])
        assert spare > 0 and made.wear_out() == spare and made.wear_out() == 0
        assert made.condition is Condition.READ_ONLY and f"and {spare} more" in made.why
        assert made.critical_warning == (
            CriticalWarning.READ_ONLY | CriticalWarning.SPARE_BELOW_THRESHOLD
        )
        made.check()
        with pytest.raises(CommandError) as raised:
            made.write(0, data)
        assert raised.value.status == Status.NAMESPACE_WRITE_PROTECTED
        assert (made.read(0, 8 * UNIT).reshape(8, UNIT) == data).all()
        made.flush()
        made.run()
        made.check()
    with drive(
        store=tmp_path / "store", ftl__map_checkpoint="32 KiB", flash__blocks_per_plane=24
    ) as made:
        assert made.condition is Condition.READ_ONLY
        assert (made.read(0, 8 * UNIT).reshape(8, UNIT) == data).all()
        made.check()


def test_worn_out_while_it_writes(rng):
    """Commands that were in flight end one way or the other, and what is in the cache is not
    lost."""
    made = drive("write back")
    data = rng.integers(0, 256, (16, UNIT), np.uint8)
    commands = np.zeros(16, COMMAND)
    commands["op"], commands["size"], commands["tag"] = 1, UNIT, np.arange(16)
    commands["offset"] = commands["data"] = np.arange(16) * UNIT
    made.submit(commands, data.reshape(-1).copy())
    made.run_until(completions=6)
    made.wear_out()
    made.run()
    made.flush()
    done = made.completions()
    assert set(done["status"].tolist()) <= {0, int(Status.NAMESPACE_WRITE_PROTECTED)}
    ended = done["tag"][done["status"] == 0]
    assert len(ended) >= 6
    for tag in ended.tolist():
        assert (made.read(tag * UNIT, UNIT) == data[tag]).all()
    made.check()
