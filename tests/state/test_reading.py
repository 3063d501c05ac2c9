"""Do reads fail as often as the closed forms say, whatever happens in between, and does wear show?

Also what the drive itself reads: pages that are merged, moved or hold the map.
"""

import numpy as np
import pytest

from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl import write_frontier
from ondie.emu.ftl.precondition import apply as precondition
from ondie.emu.nand import ecc, rber
from ondie.emu.nvme import command as queues
from ondie.emu.nvme.request import READ, WRITE
from ondie.emu.units import InputError
from tests.state import small, written

MEDIA_ERROR = 0x281
FLAT = {
    "errors__kind": "model", "errors__pslc": 1, "errors__wear": 0, "errors__retention": 0,
    "errors__disturb": 0, "errors__floor": 4e-3, "ecc__codeword": "512 B",
    "ecc__correctable_bits": 20, "ecc__decode_limit": "20 us", "ecc__retries": 0,
    "ecc__retry_gain": 0.5, "ecc__soft_reads": 0, "ftl__initial": "fresh",
}  # fmt: skip
"""One rate for all pages, one code word a page, one reading."""
AGED = FLAT | {
    "errors__floor": 0, "errors__retention": 0.1, "errors__retention_exponent": 1,
    "errors__initial_days": 1,
}  # fmt: skip
"""What the run finds cannot be corrected, what it writes has no wrong bit."""


def count(arrays, name):
    return int(arrays.count[0, COUNTERS.index(name)])


def filled(seed=0, **changes):
    """A device whose pages have all been written once, and how many there are."""
    made = small.device(**(FLAT | changes))
    made.arrays.cfg.seed = seed
    made.submit(small.commands([(queues.WRITE, lpn, 1) for lpn in range(made.lpns)]))
    made.run()
    made.completions()
    return made


def read(made, lpns):
    """Status of one-page reads that arrive together, in the order of submission."""
    made.submit(small.commands([(queues.READ, int(lpn), 1) for lpn in lpns], made.now))
    made.run()
    done = made.completions()
    return done["status"][np.argsort(done["tag"])]


def near(got, expected, n):
    """Is a share of n trials within 4.5 standard deviations of the chance?"""
    return abs(got - expected) < 4.5 * (expected * (1 - expected) / n) ** 0.5


@pytest.mark.parametrize("floor", [3.5e-3, 4e-3, 6e-3])
def test_reads_fail_as_often_as_the_binomial_tail_says(floor, rng, counts):
    made = filled(errors__floor=floor)
    n = counts(12_000, 400_000) // made.lpns * made.lpns
    failed = sum((read(made, rng.permutation(made.lpns)) != 0).sum() for _ in range(n // made.lpns))
    assert near(failed / n, ecc.page_failure(4096, 20, 1, floor), n)
    assert count(made.arrays, "uncorrectable_pages") == failed
    bits = count(made.arrays, "corrected_bits") / (n - failed)
    assert bits < 4096 * floor  # those of pages that failed are not among them
    made.check()


def test_retries_are_as_many_as_the_rates_say(rng, counts):
    """Half of the errors are shifted charge, of which each retry leaves half: the second reading
    has 3/4 of the first one's rate, the third 5/8. Draws of each level are their own."""
    changes = {"errors__floor": 3e-3, "errors__retention": 3e-3, "errors__retention_exponent": 0}
    made = filled(**changes, errors__initial_days=1, ecc__retries=2)
    n = counts(12_000, 400_000) // made.lpns * made.lpns
    status = [read(made, rng.permutation(made.lpns)) for _ in range(n // made.lpns)]
    first, second, third = (ecc.page_failure(4096, 20, 1, p) for p in (6e-3, 4.5e-3, 3.75e-3))
    assert near(count(made.arrays, "retried_pages") / n, first, n)
    again = count(made.arrays, "retry_read_pages")
    assert near((again - count(made.arrays, "retried_pages")) / n, first * second, n)
    assert near((np.concatenate(status) != 0).mean(), first * second * third, n)
    assert count(made.arrays, "array_reads") == n + again
    made.check()


# --- what a verdict depends on


def test_verdicts_do_not_depend_on_the_order_of_events(rng):
    """The same pages read for the first time, in other orders, with other depths and times: the
    same ones fail. Read for the second time, others do; with another seed as well."""
    order = rng.permutation(250)
    plain = filled(queue_depth=1)
    wanted = read(plain, np.arange(250)) != 0
    assert 20 < wanted.sum() < 125
    for changes in ({}, {"flash__t_read": "3 us"}, {"ecc__decode": "19 us"},
                    {"flash__cache_read": "false", "flash__bus": "200 MT/s"}):  # fmt: skip
        made = filled(**changes)
        place = made.arrays.l2p[0, :250] == plain.arrays.l2p[0, :250]
        assert place.all()
        got = np.zeros(250, bool)
        got[order] = read(made, order) != 0
        assert (got == wanted).all()
    second = read(plain, np.arange(250)) != 0
    other = read(filled(seed=1), np.arange(250)) != 0
    for found in (second, other):
        assert 20 < found.sum() < 125 and (found != wanted).any()


def test_worn_blocks_make_a_drive_slower(rng):
    """TLC as the preset has it, ten days old: reads take longer the more cycles its blocks have
    seen, as long as retries help."""
    took, again = [], []
    for cycles in (0, 1000, 2000, 3000):
        made = small.device(errors__kind="model", flash__cell="TLC", ecc__codeword="512 B",
                            ecc__correctable_bits=40, ecc__retries=8, ecc__retry_gain=0.5,
                            ecc__decode_limit="20 us", errors__initial_days=10,
                            errors__initial_cycles=cycles)  # fmt: skip
        assert not fill(made)
        begin = made.now
        assert not read(made, rng.integers(0, made.lpns, 300)).any()
        took.append(made.now - begin)
        again.append(count(made.arrays, "retry_read_pages"))
        made.check()
    assert took == sorted(took) and again == sorted(again)
    assert took[3] > 1.3 * took[0] and again[3] > 100


def fill(made):
    """Pages that a run finds; returns how many found no place."""
    return write_frontier.fill(made.state, 0, 0, made.lpns, 0)


def test_cycles_are_those_before_the_run_and_those_of_the_run(rng):
    """Coefficients of every block that was read are those of its own erases."""
    made = filled(errors__wear=1e-6, errors__wear_exponent=1, errors__initial_cycles=500,
                  errors__disturb=1e-9, ecc__correctable_bits=60)  # fmt: skip
    for _ in range(4):
        writes = small.random_writes(rng, 300, made.lpns)
        writes["arrival"] = made.now
        made.submit(writes)
        made.run()
        made.submit(small.commands([(queues.READ, lpn, 1) for lpn in range(made.lpns)], made.now))
        made.run()
    block, quality = made.arrays.block, made.arrays.quality
    known = quality["cycles"] > 0
    cycles = quality["cycles"][known] - 1
    assert known.sum() > 20 and len(set(cycles)) > 2 and cycles.min() >= 500
    assert quality["stable"][known] == pytest.approx(4e-3 + 1e-6 * cycles)
    used = known & (made.arrays.valid > 0)
    entries = made.arrays.l2p[0, : made.lpns].astype(np.int64) - 1
    read_now = np.unique(entries // int(made.arrays.cfg.block_pages[0]))
    assert (quality["cycles"][read_now] - 1 == 500 + block["erases"][read_now]).all()
    assert used[read_now].all() and (quality["since"][read_now] > 0).all()


def test_reads_disturb_their_block_until_it_is_erased():
    """A plane's reads of one block, one after the other: the k-th fails when the rate that k - 1
    reads have left is beyond the code. 20 of 4096 bits are 4.9e-3: from read 49 on at 1e-4 each."""
    made = filled(errors__floor=0, errors__disturb=1e-4, errors__disturb_reads=1,
                  errors__disturb_exponent=1, errors__disturb_cycles_exponent=0,
                  flash__planes_per_die=1)  # fmt: skip
    ppn = int(made.arrays.l2p[0, 0]) - 1
    b = ppn // int(made.arrays.cfg.block_pages[0])
    before = int(made.arrays.block["reads"][b])
    status = read(made, np.zeros(100, int))
    assert made.arrays.block["reads"][b] == before + 100 and before == 0
    assert not status[:25].any() and status[80:].all() and 25 < int(np.argmax(status)) < 80
    made.submit(small.commands([(queues.WRITE, lpn, 1) for lpn in range(made.lpns)] * 3, made.now))
    made.run()
    assert made.arrays.block["erases"][b] > 0 and made.arrays.block["reads"][b] < 100
    assert not read(made, [0])[0]


def worn_out_by_reads(**changes):
    """Statuses of 400 reads of one page, each of which makes the next one more likely to fail."""
    disturbed = {"errors__floor": 0, "errors__disturb": 1e-4, "errors__disturb_reads": 1,
                 "errors__disturb_exponent": 1, "errors__disturb_cycles_exponent": 0}  # fmt: skip
    made = filled(**disturbed, flash__planes_per_die=1, **changes)
    return made, [read(made, [0])[0] for _ in range(400)]


def test_read_reclaim_moves_data_before_they_are_disturbed_too_much():
    """At 20 reads the rate is 2e-3, a quarter of an error in a million reads; at 400 it is 4e-2."""
    made, status = worn_out_by_reads()
    assert np.any(status) and count(made.arrays, "reclaimed_blocks") == 0
    made, status = worn_out_by_reads(ftl__reclaim_reads=20)
    assert not np.any(status) and made.arrays.block["reads"].max() < 30
    # Eight pages of a block are read to be moved, so that twelve reads more bring it to twenty.
    assert 400 / 21 <= count(made.arrays, "reclaimed_blocks") <= 400 / 11
    made.check()


def test_data_that_are_hard_to_read_move_and_are_easy_to_read_then():
    """Everything that the run finds takes one retry. The block of each read that did so is emptied,
    and what was written anew needs none."""
    changes = AGED | {"ftl__initial": "steady", "ecc__retries": 1, "ecc__retry_gain": 0}
    made = small.device(**changes, ftl__reclaim_retries=1)
    assert not fill(made)
    moved = [0]
    while len(moved) < 3 or moved[-1] > moved[-2]:
        assert not read(made, np.arange(made.lpns)).any()
        moved.append(count(made.arrays, "reclaimed_blocks"))
    assert moved[-1] > 5
    full = made.arrays.block["state"] == mapping.FULL
    assert (made.arrays.quality["since"][full & (made.arrays.valid > 0)] > 0).all()
    entries = made.arrays.l2p[0, : made.lpns].astype(np.int64) - 1
    b, slot = np.divmod(entries, int(made.arrays.cfg.block_pages[0]))
    q = made.arrays.quality[b]
    old = (q["since"] == 0) & ((q["first"] == 0) | (slot < q["first"] - 1))
    before = count(made.arrays, "retried_pages")
    read(made, np.arange(made.lpns))
    assert count(made.arrays, "retried_pages") - before == old.sum() < 60  # in open blocks
    made.check()


# --- what the drive reads for itself


def test_data_that_a_run_finds_are_old_and_those_it_writes_are_not(rng):
    made = small.device(**(AGED | {"ftl__initial": "steady"}))
    assert not fill(made)
    old, new = np.arange(0, 100), np.arange(100, 200)
    assert (read(made, old) == MEDIA_ERROR).all()
    made.submit(small.commands([(queues.WRITE, int(lpn), 1) for lpn in new], made.now))
    made.run()
    made.completions()
    assert not read(made, new).any() and (read(made, old) == MEDIA_ERROR).all()


@pytest.mark.parametrize("copyback", [False, True])
def test_collection_does_not_make_lost_pages_good(rng, copyback):
    """Pages that could not be read when they were moved are young at their new place, but not what
    was written: they fail there as well, until they are written again. Inside the die they are not
    looked at, and their wrong bits come along."""
    made = small.device(**(AGED | {"ftl__initial": "steady", "ftl__gc_copyback": copyback}))
    assert not fill(made)
    where = made.arrays.l2p[0, : made.lpns].copy()
    hot = np.arange(made.lpns // 2, made.lpns)
    cold = np.arange(made.lpns // 2)
    moved = np.zeros(len(cold), bool)
    while moved.sum() < 20:
        some = rng.permutation(hot)[:20]
        made.submit(small.commands([(queues.WRITE, int(lpn), 1) for lpn in some], made.now))
        made.run()
        moved = made.arrays.l2p[0, cold] != where[cold]
    made.submit(small.commands([(queues.WRITE, int(lpn), 1) for lpn in hot], made.now))
    made.run()
    made.completions()
    moved = made.arrays.l2p[0, cold] != where[cold]
    before = [count(made.arrays, name) for name in ("lost_pages", "uncorrectable_pages")]
    assert (read(made, cold[moved]) == MEDIA_ERROR).all() and not read(made, hot).any()
    after = [count(made.arrays, name) for name in ("lost_pages", "uncorrectable_pages")]
    marked, wrong = np.subtract(after, before)
    assert marked + wrong == moved.sum()
    assert marked > 0 and (wrong > 0) == copyback
    made.submit(small.commands([(queues.WRITE, int(lpn), 1) for lpn in cold], made.now))
    made.run()
    made.completions()
    assert not read(made, np.arange(made.lpns)).any()
    made.check()


def test_a_merge_keeps_what_could_not_be_read_marked():
    """A write of two sectors of a page whose others are lost: those two are good from then on, the
    others are not, until they are written too."""
    cfg = written.config(**(AGED | {
        "ftl__partial_pages": "sectors", "ftl__initial": "steady", "ecc__codeword": "4 KiB",
    }))  # fmt: skip
    arrays = written.drive(cfg)
    precondition.precondition(arrays, cfg, "fill")
    items = [
        (READ, 0, 8),
        (WRITE, 2, 2),
        (READ, 2, 2),
        (READ, 1, 2),
        (READ, 3, 2),
        (READ, 0, 1),
        (WRITE, 0, 2),
        (READ, 0, 4),
        (READ, 0, 8),
        (WRITE, 4, 4),
        (READ, 0, 8),
        (READ, 8, 8),
    ]
    op, first, n = np.array(items).T
    done = written.play(arrays, cfg, [written.requests(first * 512, n * 512, op)], 1)
    bad = [0, 3, 4, 5, 8, 11]
    assert np.flatnonzero(done.requests[0]["status"]).tolist() == bad
    assert set(done.requests[0]["status"][bad]) == {MEDIA_ERROR}
    assert done.counters["merge_read_pages"] == 3 and done.counters["media_errors"] == len(bad)
    assert done.counters["uncorrectable_pages"] == 3  # requests 0 and 11, and the first merge
    assert done.counters["lost_pages"] == 5  # requests 3, 4, 5, 8 and the second merge


def test_pages_of_the_map_are_read_again_too(rng):
    """Half of the readings fail; after thirty none does, of the host or of the map."""
    made = small.device(**(FLAT | {"errors__floor": 5e-3, "ecc__retries": 30,
                                   "ecc__retry_gain": 1, "ftl__map_cache": "64 B",
                                   "ftl__over_provisioning": 0.5}))  # fmt: skip
    made.submit(small.random_writes(rng, 400, made.lpns, 4))
    made.run()
    assert not read(made, rng.integers(0, made.lpns, 300)).any()
    pages = count(made.arrays, "read_pages") + count(made.arrays, "map_read_pages")
    pages += count(made.arrays, "gc_read_pages")
    share = ecc.page_failure(4096, 20, 1, 5e-3)
    assert count(made.arrays, "map_read_pages") > 200
    assert near(count(made.arrays, "retried_pages") / pages, share, pages)
    assert count(made.arrays, "uncorrectable_pages") == 0
    made.check()


def test_page_types_are_those_of_the_cells():
    """TLC by turns: 2, 3 and 2 of seven reference voltages; the worst type has the whole rate."""
    made = small.device(errors__kind="model", ecc__codeword="512 B", flash__cell="TLC")
    worst = rber.scales(made.cfg)[3, :3]
    assert made.arrays.scale == pytest.approx(np.tile(worst, 3)[:8])
    assert worst == pytest.approx([2 / 3, 1, 2 / 3])


@pytest.mark.parametrize("leaf", ["ftl__reclaim_reads", "ftl__reclaim_retries"])
def test_data_do_not_move_because_of_reads_that_nobody_counts(leaf):
    with pytest.raises(InputError, match=r"errors.kind.*ftl.reclaim_reads"):
        small.config(**{leaf: 5})
