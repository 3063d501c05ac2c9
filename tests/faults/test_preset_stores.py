"""Do the presets with pSLC blocks and with word lines in two passes start from a store? After a
power cut, a kill and a stop.
"""

import numpy as np
import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.drive import Drive
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.run import build
from ondie.emu.engine.run.power_system import Start

PRESETS = {"970-evo": "pslc_pages", "p4320": "second_pass_pages", "sn750": "pslc_pages"}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_recovers_from_its_store(tmp_path, monkeypatch, preset, counts, rng):
    """The largest with fewer blocks, except at full counts."""
    monkeypatch.setattr(build, "BUDGET", 1024)
    monkeypatch.setattr(build, "ROWS", 1 << 10)
    fewer = preset == "p4320" and counts(True, False)
    cfg = load_preset(
        preset, ["flash.blocks_per_plane=256", "system.capacity=1 GB"] if fewer else []
    )
    drive = Drive(cfg, True, store=tmp_path / "store")
    units = rng.choice(drive.units, 6, False).tolist()
    data = rng.integers(0, 256, (6, drive.unit_bytes), np.uint8)
    for unit, each in zip(units, data, strict=True):
        drive.write(unit * drive.unit_bytes, each)
    drive.flush()
    assert drive.arrays.count[0, COUNTERS.index(PRESETS[preset])] > 0
    drive.power_cut(0)
    drive.power_on()
    assert drive.started is Start.RECOVERY and drive.recovered.mapped == 6
    drive.write(units[0] * drive.unit_bytes, data[1])
    drive.flush()
    drive.store.close()  # as after a kill
    drive = Drive(cfg, True, store=tmp_path / "store")
    assert drive.started is Start.RECOVERY
    drive.close()
    drive = Drive(cfg, True, store=tmp_path / "store")
    assert drive.started is Start.CHECKPOINT
    for unit, each in zip(units, (data[1], *data[1:]), strict=True):
        assert (drive.read(unit * drive.unit_bytes, drive.unit_bytes) == each).all()
    drive.check()
    drive.close()
