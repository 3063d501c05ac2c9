"""Does the erasure of old versions leave no old byte in memory or files, and all others as they
were, in every mode of cache and FTL?"""

import numpy as np
import pytest

from ondie.emu.drive import Drive
from ondie.emu.nvme.command import COMMAND, TRIM
from ondie.emu.units import InputError
from tests.state.test_service import MODES, SMALL
from tests.state.written import config

FILES = ("write back", "word lines")


@pytest.mark.parametrize("mode", MODES)
def test_no_old_byte_is_left(mode, tmp_path, counts):
    files = mode in FILES[: counts(1, 2)]
    drive = Drive(config(**(SMALL | MODES[mode])), payload=True, strict=True,
                  store=tmp_path / "store" if files else None)  # fmt: skip
    rng, unit = np.random.default_rng(3), drive.unit_bytes
    old, new = b"OLD!" * (unit // 4), b"new?" * (unit // 4)
    for at in rng.integers(drive.units, size=2 * drive.units).tolist():
        drive.write(at * unit, old)
    kept = set(rng.integers(drive.units, size=drive.units // 4).tolist())
    for at in sorted(kept):
        drive.write(at * unit, new)
    gone = [at for at in range(drive.units) if at not in kept]
    trims = np.zeros(len(gone), COMMAND)
    trims["op"], trims["size"], trims["data"] = TRIM, unit, -1
    trims["offset"], trims["arrival"] = np.array(gone) * unit, drive.earliest_arrival
    drive.submit(trims)
    with pytest.raises(InputError, match="without commands in flight"):
        drive.erase_stale()
    drive.run()
    drive.flush()
    drive.erase_stale()
    drive.check()
    for at in range(drive.units):
        assert drive.read(at * unit, unit).tobytes() == (new if at in kept else bytes(unit))
    assert drive.store is not None
    for page in range(drive.geometry.physical_pages):
        found = drive.store.bytes_of(page)
        assert found is None or b"OLD!" not in found.tobytes()
    drive.close()
    assert b"OLD!OLD!" not in b"".join(each.read_bytes() for each in tmp_path.rglob("*.pages"))
