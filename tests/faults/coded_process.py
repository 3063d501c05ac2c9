"""Owns: one process of a drive with an LDPC code and a store, which writes or reads pages. Does
not: know what is right.
Source: own.

    python -m tests.faults.coded_process STEP STORE CHANGES
"""

import json
import sys

import numpy as np

from ondie.emu.drive import MediaError
from ondie.emu.engine.core.counters import ARRAY_READS, ECC_ITERATIONS, SOFT_PAGES
from tests.state import small

PAGES = 120


def opened(changes, store=None):
    return small.PageDrive(small.config(**changes), True, store=store)


def step_of(drive, step):
    """Write pages, or read them one after the other; what the host and the counters say."""
    assert drive.arrays.code["decoder"][0] == drive._decoder.address != 0
    data = np.random.default_rng(11).integers(0, 256, (PAGES, small.PAGE), np.uint8)
    if step == "write":
        for lpn in range(PAGES):
            drive.write(lpn, data[lpn])
        return {}
    failed = []
    for lpn in range(PAGES):
        try:
            assert (drive.read(lpn)[0] == data[lpn]).all()
        except MediaError:
            failed.append(lpn)
    names = ARRAY_READS, SOFT_PAGES, ECC_ITERATIONS
    counts = [small.counter(drive, name) for name in names]
    return {
        "failed": failed, "now": drive.now, "asked": drive.decode_counts.hard_failures,
        "soft": counts[1], "counts": counts,
    }  # fmt: skip


def main(step, store, changes):
    with opened(json.loads(changes), store) as drive:
        assert drive.started.value == {"write": "new", "read": "checkpoint"}[step]
        print(json.dumps(step_of(drive, step)))


if __name__ == "__main__":
    main(*sys.argv[1:])
