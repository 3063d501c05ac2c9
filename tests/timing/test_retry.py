"""Does a page that has to be read again take what each reading takes, through die and channel?

The rates are such that the outcome is certain: all errors come of retention, which a retry leaves
nothing of, or none is left out by any. Numbers are those of the harness.
"""

import numpy as np
import pytest

from ondie.emu.engine.core import rng as draws
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.nand import ecc, rber
from ondie.emu.nvme import command as queues
from tests.timing import harness as h

LIMIT = 3 * h.US  # a decoding that is given up
SOFT = 8 * h.US
SENSE = h.COMMAND + h.READ + h.BUS
BEFORE = h.SUBMIT + h.LATENCY + h.FIRMWARE
BEHIND = 2 * h.DRAM + h.LINK + h.LATENCY
WRONG = {
    "errors.kind": "model", "errors.pslc": "1", "errors.floor": "0", "errors.wear": "0",
    "errors.disturb": "0", "errors.retention": "0.1", "errors.retention_exponent": "0",
    "errors.initial_days": "1", "ecc.codeword": "1 KiB", "ecc.correctable_bits": "50",
    "ecc.decode_limit": "3 us", "ecc.retries": "2", "ecc.retry_gain": "0", "ecc.soft_reads": "0",
    "flash.cache_read": "false",
}  # fmt: skip
"""One bit of ten is wrong, and none once the voltages have been shifted."""
STAYS = {"ecc.retries": "1", "ecc.retry_gain": "1", "ecc.soft_reads": "2"}
"""No voltage helps: hard decision twice, then soft decision."""


def bench(pages=4, **changes):
    leaves = {name.replace(".", "__"): value for name, value in WRONG.items()}
    made = h.Bench(**(leaves | {name.replace(".", "__"): v for name, v in changes.items()}))
    made.system.fill(0, 0, pages)
    return made


def counter(made, name):
    return int(made.arrays.count[0, COUNTERS.index(name)])


def test_one_retry():
    """0.9 + (0.1 + 10 + 4.096 + given up 3) + (0.1 + 10 + 4.096 + decoder 1) + 2.2 = 35.492 us."""
    made = bench()
    t = BEFORE + SENSE + LIMIT + SENSE + h.DECODE + BEHIND
    assert t == 35_492 * h.NS
    row = made.nvme(queues.READ, 0)
    made.assert_ready_at(row, t)
    assert made.arrays.row.status[row] == 0
    assert counter(made, "array_reads") == 2 and counter(made, "read_pages") == 1
    assert counter(made, "retried_pages") == counter(made, "retry_read_pages") == 1
    assert counter(made, "ecc_decoded_pages") == 2
    assert int(made.arrays.block["reads"].sum()) == 2
    assert int(made.arrays.bus.size_out.sum()) == 2 * h.PAGE


def test_a_page_without_errors_takes_what_it_takes_without_the_model():
    made = bench(**{"errors.initial_days": "0", "errors.retention_exponent": "1"})
    made.assert_ready_at(made.nvme(queues.READ, 0), BEFORE + SENSE + h.DECODE + BEHIND)


def test_wrong_bits_that_are_corrected_take_iterations():
    """Of 4 x 50 correctable bits k are wrong: 1 us + (3 us - 1 us) x k / 200, as read_page says."""
    changes = {"errors.retention": "1e-3"}
    made = bench(**changes)
    k = verdict(made, 0)[2]
    assert 10 < k < 100
    t = BEFORE + SENSE + h.DECODE + (LIMIT - h.DECODE) * k // 200 + BEHIND
    made.assert_ready_at(made.nvme(queues.READ, 0), t)
    assert counter(made, "corrected_bits") == k and counter(made, "retried_pages") == 0


@pytest.mark.parametrize(("gain", "status"), [("24", 0), ("2", 0x281)])
def test_soft_decision(gain, status):
    """Two hard decisions are given up, two readings follow that are decoded together. One bit of
    ten is 819 of a code word: hard decision corrects 50, soft decision 24 x 50 or 2 x 50."""
    made = bench(**STAYS, **{"ecc.soft_gain": gain, "ecc.soft_decode": "8 us"})
    t = BEFORE + 2 * (SENSE + LIMIT) + 2 * SENSE + SOFT + BEHIND
    row = made.nvme(queues.READ, 0)
    made.assert_ready_at(row, t)
    assert made.arrays.row.status[row] == status
    assert counter(made, "array_reads") == 4 and counter(made, "ecc_decoded_pages") == 3
    assert counter(made, "soft_pages") == 1 and counter(made, "soft_read_pages") == 2
    assert counter(made, "uncorrectable_pages") == counter(made, "media_errors") == (status > 0)


def test_without_soft_decision():
    """Two decodings that are given up, and that was all."""
    made = bench(**STAYS | {"ecc.soft_reads": "0"})
    row = made.nvme(queues.READ, 0)
    made.assert_ready_at(row, BEFORE + 2 * (SENSE + LIMIT) + BEHIND)
    assert made.arrays.row.status[row] == 0x281
    assert counter(made, "soft_pages") == 0 and counter(made, "uncorrectable_pages") == 1


def test_the_isp_reads_again_too():
    """No command, no host: 2 senses, 3 + 1 us in the decoder, 0.25 + 0.5 to the ISP's memory."""
    made = bench()
    row = made.isp(queues.READ, 0)
    made.assert_ready_at(row, SENSE + LIMIT + SENSE + h.DECODE + h.ISP_LINK + h.DRAM)


def test_readings_wait_for_their_turn():
    """Two reads of one die. While the first is decoded the die reads the second's page; the first
    one's second reading comes behind it, and then the second one's:
    A 1st, B 1st, A 2nd, B 2nd without a pause."""
    made = bench(flash__planes_per_die=1, pages=2)
    a, b = (made.nvme(queues.READ, lpn) for lpn in range(2))
    made.assert_ready_at(a, BEFORE + 3 * SENSE + h.DECODE + BEHIND)
    made.assert_ready_at(b, BEFORE + 4 * SENSE + h.DECODE + BEHIND)


def verdict(made, ppn, read=1):
    """(outcome, retries, wrong bits) that the constants say, of a page's first read."""
    c, code = made.arrays.rate[0], made.arrays.code[0]
    seed = np.uint64(draws.absorb(int(made.arrays.cfg.seed[0]), 0))
    key = draws.page_key(seed, ppn, int(made.arrays.cfg.initial_cycles[0]), read)
    stable = rber.stable_rate(c, 0)
    shifted = rber.shifted_rate(c, rber.leak_rate(c, 0), rber.pressure_rate(c, 0), 1.0, 0.0)
    return ecc.read_page(code, np.uint64(key), stable, shifted, float(made.arrays.scale[0]))


def test_of_two_planes_the_wrong_one_is_read_again_alone():
    """Both are sensed at once; the wrong page is the first in the decoder, and once more alone:
    0.9 + (0.2 + 10 + 8.192) + 3 + (0.1 + 10 + 4.096 + 1) + 2.2."""
    made = bench(**{"errors.retention": "4.7e-3"})
    for seed in range(200):
        made.arrays.cfg.seed = seed
        if [verdict(made, ppn)[1] for ppn in (0, 1)] == [0, 1]:
            break
    else:
        raise AssertionError("no seed has one page of two wrong")
    t = BEFORE + 2 * h.COMMAND + h.READ + 2 * h.BUS + LIMIT + SENSE + h.DECODE + BEHIND
    made.assert_ready_at(made.nvme(queues.READ, 0, pages=2), t)
    assert counter(made, "array_reads") == 2 and counter(made, "read_pages") == 2
    assert counter(made, "retried_pages") == counter(made, "retry_read_pages") == 1
    assert int(made.arrays.bus.size_out.sum()) == 3 * h.PAGE
    assert int(made.arrays.block["reading"].sum()) == 0
