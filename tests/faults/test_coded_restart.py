"""Does a drive with LDPC go on with its own decoder: after a clean stop in another process, after a
power cut, and after an error of the decoder?
"""

import gc
import json
import subprocess
import sys
from weakref import ref

import numpy as np
import pytest

from ondie.emu.nand.checkpoint import NAME
from ondie.emu.nand.codec import Decoder
from tests.faults.coded_process import opened, step_of
from tests.faults.test_real_codes import TRUSTING
from tests.state import small

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


def test_each_start_has_its_own_decoder():
    drive = opened(CHANGES)
    step_of(drive, "write")
    drive.flush()
    last = drive._decoder
    drive.power_cut(0)
    drive.power_on()
    assert drive._decoder is not last
    with pytest.raises(RuntimeError, match="shutdown"):
        last._threads.submit(int)
    assert step_of(drive, "read")["asked"] > 0


def test_an_error_of_the_decoder_is_raised():
    """Its verdict would stand for that of a word: the drive does not go on with it."""
    drive = opened(CHANGES)
    step_of(drive, "write")
    drive.flush()

    def fail(words):
        raise MemoryError("no room for words")

    drive._decoder._decode_words = fail
    assert drive._decoder.corrects(7, 1e-2, 0) == 1
    drive.power_cut(0)
    with pytest.raises(MemoryError, match="no room for words"):
        drive.power_on()
    drive.power_on()
    assert drive._decoder.error is None and step_of(drive, "read")["asked"] > 0
    drive._decoder.error = MemoryError("no room for more")
    with pytest.raises(MemoryError, match="no room for more"):  # no page is decoded here
        drive.write(0, np.zeros(small.PAGE, np.uint8))


def test_a_decoder_is_freed_with_its_last_reference():
    """It has threads, for which the collector may come late."""
    gc.collect()
    gc.disable()
    try:
        decoder = Decoder(small.config(**CHANGES))
        assert decoder.address != 0
        held = ref(decoder)
        del decoder
        assert held() is None
    finally:
        gc.enable()
