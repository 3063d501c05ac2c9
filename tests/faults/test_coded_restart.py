"""Does a drive with LDPC go on after a clean stop in another process, with its own decoder?"""

import json
import subprocess
import sys

from ondie.emu.nand.checkpoint import NAME
from tests.faults.coded_process import opened, step_of
from tests.faults.test_real_codes import TRUSTING

CHANGES = TRUSTING | {"ecc__retries": 0, "ftl__initial": "fresh", "errors__floor": 1e-2}
"""The decoder is asked about every page, and fails for some."""


def in_process(root, step, store):
    words = [sys.executable, "-m", "tests.faults.coded_process", step, store, json.dumps(CHANGES)]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return json.loads(done.stdout)


def test_another_process_goes_on_with_its_own_decoder(root, in_memory):
    """The decoder's address belongs to a process: another one reads as if the drive had not been
    closed, and two processes that do the same leave the same checkpoint."""
    stores = [in_memory / name for name in ("other", "own")]
    in_process(root, "write", stores[0])
    with opened(CHANGES, stores[1]) as drive:
        step_of(drive, "write")
    kept = [(store / NAME).read_bytes() for store in stores]
    assert kept[0] == kept[1]
    found = in_process(root, "read", stores[0])
    goes_on = opened(CHANGES)
    step_of(goes_on, "write")
    goes_on.flush()
    assert found == step_of(goes_on, "read")
    assert found["asked"] == found["soft"] > 0
    goes_on.check()
