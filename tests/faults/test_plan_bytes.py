"""Bytes of plans, which the applier of a drive's commands moves: in the data cache, on several
devices, with bit errors, and what it refuses.
"""

import numpy as np
import pytest

from ondie.emu.engine.core import payload_log
from ondie.emu.engine.core.conservation import Imbalance
from ondie.emu.engine.core.counters import CACHE_HIT_PAGES, UNCORRECTABLE_PAGES
from ondie.emu.engine.core.events import ROW
from ondie.emu.engine.core.state import records
from ondie.emu.units import InputError
from tests.faults.test_flipped_byte import bits, one_step, start
from tests.state.models import model

CACHE = {"cache__capacity": "8 MiB", "cache__dirty_share": "0.9", "cache__destage_idle": "false"}
"""A cache that holds all pages that a step writes."""
ERRORS = {
    "errors__kind": "model", "errors__pslc": 1, "errors__wear": 0, "errors__retention": 0,
    "errors__disturb": 0, "errors__floor": 5e-3, "ecc__codeword": "512 B",
    "ecc__correctable_bits": 20, "ecc__decode_limit": "20 us", "ecc__retries": 0,
    "ecc__soft_reads": 0,
}  # fmt: skip
"""About 20 wrong bits are expected in each code word, of which 20 can be corrected."""


@pytest.mark.parametrize("mode", ["write_back", "read_write", "write_through"])
def test_weights_in_the_data_cache(mode):
    """The newest page of a unit counts, in the cache or on flash, on each of two devices. The pages
    on flash are older if writes complete in the cache."""
    path, system, arithmetic = start("host_offload", cache__mode=mode, system__devices=2, **CACHE)
    for i in range(2):
        one_step(path, system, i)
        assert (bits(path.finish()) == bits(arithmetic.reference(i + 1))).all()
    assert system.arrays.count[:, CACHE_HIT_PAGES].all()
    moved = path.payload.moved
    for dev, (first, pages) in enumerate(path.volume.used("w")):
        lpns = range(first, first + pages)
        stored = [moved.stores[dev].read(path.payload.ppn(dev, lpn)) for lpn in lpns]
        same = (np.stack(stored) == moved.newest(dev, lpns)).all()
        assert same == (mode == "write_through")


@pytest.mark.parametrize("name", ["host_offload", "in_storage"])
def test_wrong_bits_of_a_read_reach_the_weights(name):
    """Pages that the code does not correct are read with their wrong bits."""
    path, system, arithmetic = start(name, trace=model("adamw", 1), **ERRORS)
    one_step(path, system, 0)
    assert system.arrays.count[0, UNCORRECTABLE_PAGES] > 0
    assert (bits(path.finish()) != bits(arithmetic.reference(1))).any()


def record(**fields):
    log = records(payload_log.LOG, 1)
    for name in ("queue", "row", "lpn", "ppn", "old", "sectors", "held"):
        log[name] = -1
    log.kind, log.n = ROW, 1
    for name, value in fields.items():
        log[name] = value
    return log


def test_what_is_not_moved():
    """Pages outside the plan's memory, pages without bytes, and rows of no plan that has bytes."""
    path, _, _ = start("in_storage")
    moved, pages = path.payload.moved, len(path.payload.memory[0])
    ppn = path.payload.ppn(0, 0)
    for lpn in (-1, pages, 1 << 40):
        with pytest.raises(Imbalance, match="log has an entry that cannot be applied"):
            moved.apply_log(record(what=payload_log.LOG_READ, lpn=lpn, ppn=ppn))
    with pytest.raises(Imbalance, match="log has an entry that cannot be applied"):
        moved.apply_log(record(what=payload_log.LOG_ZERO, lpn=pages - 1, n=2))
    blank = path.payload.ppn(0, 3)
    moved.stores[0].erase(blank, 1)
    with pytest.raises(InputError, match=f"page {blank} was read before it was programmed"):
        moved.apply_log(record(what=payload_log.LOG_READ, lpn=0, ppn=blank))
    moved.apply_log(record(what=payload_log.LOG_READ, lpn=0, ppn=ppn))
    assert (path.payload.memory[0][0] == moved.stores[0].read(ppn)).all()
    moved.follow(None)
    with pytest.raises(Imbalance, match="log has an entry that cannot be applied"):
        moved.apply_log(record(what=payload_log.LOG_READ, lpn=0, ppn=ppn))
    with pytest.raises(Imbalance, match="log has an entry that cannot be applied"):
        moved.apply_log(record(what=payload_log.LOG_ROW, lpn=0))
