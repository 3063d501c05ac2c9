"""Pages that cannot be corrected: who is told, what bytes come back, and what stays known of them
when collection moves them.
"""

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.nand import ecc
from ondie.emu.nvme import command as queues
from ondie.emu.validate.speed.speed import WHOLE_PAGES
from tests.smoke.commands import here
from tests.state import small

READ, WRITE = queues.READ, queues.WRITE
MEDIA_ERROR = 0x281
MODEL = {
    "errors__kind": "model", "errors__pslc": 1, "errors__wear": 0, "errors__retention": 0,
    "errors__disturb": 0, "ecc__codeword": "512 B", "ecc__correctable_bits": 20,
    "ecc__decode_limit": "20 us", "ecc__retries": 1, "ecc__retry_gain": 1, "ecc__soft_reads": 0,
}  # fmt: skip
"""One code word a page; the same chance at every reading."""
SOME = MODEL | {"errors__floor": 5e-3}
"""20.5 wrong bits are expected: half of the readings fail, a quarter of the reads."""


def counter(device, name):
    return int(device.arrays.count[0, COUNTERS.index(name)])


def device(**changes):
    made = small.device(payload=True, **(SOME | changes))
    made.buffer = np.zeros((8 * made.lpns, small.PAGE), np.uint8)
    return made


def write(made, rng, lpns):
    """One page each; returns their bytes."""
    data = rng.integers(0, 256, (len(lpns), small.PAGE), np.uint8)
    made.buffer[: len(lpns)] = data
    made.submit(small.commands([(WRITE, int(lpn), 1) for lpn in lpns], made.now, slot=0))
    made.run()
    assert not made.completions()["status"].any()
    return data


def read(made, lpns, pages=1):
    """(status, bytes) of reads one after the other in the order of submission."""
    made.submit(small.commands([(READ, int(lpn), pages) for lpn in lpns], made.now, slot=0))
    made.run()
    done = made.completions()
    status = done["status"][np.argsort(done["tag"])]
    return status, made.buffer[: pages * len(lpns)].reshape(len(lpns), -1).copy()


def test_a_completion_says_that_its_data_are_wrong(rng):
    """Nothing is collected: exactly the reads with a media error come back wrong, by more bits than
    the code corrects, and the pages stay as they were programmed."""
    made = device(ftl__initial="fresh")
    lpns = np.arange(200)
    data = write(made, rng, lpns)
    status, got = read(made, lpns)
    wrong = np.bitwise_count(got ^ data).sum(axis=1, dtype=np.int64)
    assert set(status) == {0, MEDIA_ERROR}
    assert (wrong[status == 0] == 0).all() and (wrong[status != 0] > 20).all()
    assert counter(made, "media_errors") == (status != 0).sum()
    assert counter(made, "uncorrectable_pages") == (status != 0).sum()
    assert all(made.store.intact(int(made.arrays.l2p[0, lpn]) - 1) for lpn in lpns)
    made.check()


def test_a_command_fails_when_any_of_its_pages_does(rng):
    """Eight pages each: three quarters to the eighth, 10 %, come back whole."""
    made = device(ftl__initial="fresh")
    lpns = np.arange(240)
    data = write(made, rng, lpns)
    status, got = read(made, lpns[::8], pages=8)
    wrong = (got.reshape(-1, small.PAGE) != data).any(axis=1).reshape(-1, 8)
    assert ((status != 0) == wrong.any(axis=1)).all()
    assert counter(made, "uncorrectable_pages") == wrong.sum()
    assert counter(made, "media_errors") == (status != 0).sum() < 30
    made.check()


def test_without_errors_no_read_fails_and_nothing_is_kept_for_them(rng):
    made = small.device(payload=True)
    made.buffer = np.zeros((made.lpns, small.PAGE), np.uint8)
    data = write(made, rng, np.arange(100))
    status, got = read(made, np.arange(100))
    assert not status.any() and (got == data).all()
    assert made.arrays.seen.size == made.arrays.lost.size == made.arrays.kept.size == 1
    assert len(made.arrays.reading) == len(made.arrays.quality) == 1
    assert made.arrays.block["reads"].max() == 0


MANAGED = [
    {}, {"ftl__erase": "collected"}, {"ftl__gc_copyback": True}, {"ftl__block_unit": "plane"},
    {"ftl__reclaim_reads": 4}, {"ftl__reclaim_retries": 1, "ftl__erase": "collected"},
    {"ecc__code": "bch", "flash__spare": "69 B"},
]  # fmt: skip


@pytest.mark.parametrize("changes", MANAGED)
def test_what_is_lost_stays_lost(rng, counts, changes):
    """Random overwrites with collection, and reads between them: data of a read that completes
    well are those of the last write, always; once collection has lost a page, it is never read
    well again until it is written anew."""
    made = device(**changes)
    span = made.lpns
    held = np.zeros((span, small.PAGE), np.uint8)
    lost = np.zeros(span, bool)
    order = rng.permutation(span)
    held[order] = write(made, rng, order)
    for _ in range(counts(6, 20)):
        some = rng.permutation(span)[: span // 2]
        held[some] = write(made, rng, some)
        lost[some] = False
        lpns = rng.permutation(span)[: span // 2]
        status, got = read(made, lpns)
        good = status == 0
        assert (got[good] == held[lpns[good]]).all()
        assert not (lost[lpns] & good).any()
        marked = np.array([made.arrays.lost[0, int(e) - 1] for e in made.arrays.l2p[0, :span]])
        assert not (lost & (marked == 0)).any()
        lost = marked != 0
        damaged = [not made.store.intact(int(e) - 1) for e in made.arrays.l2p[0, :span]]
        assert (np.array(damaged) == lost).all()
        made.check()
    assert lost.any() and counter(made, "gc_program_pages") > 100
    assert counter(made, "lost_pages") > 0
    reclaims = bool({"ftl__reclaim_reads", "ftl__reclaim_retries"} & set(changes))
    assert (counter(made, "reclaimed_blocks") > 0) == reclaims
    assert (counter(made, "copyback_pages") > 0) == ("ftl__gc_copyback" in changes)


def test_copy_back_passes_errors_on(rng, counts):
    """What is moved inside a die is not corrected on the way: pages that have been moved fail more
    often than those that have not, by as much as twice the bits do."""
    n = counts(40, 150)
    low = MODEL | {"errors__floor": 3e-3, "ecc__retries": 0, "ftl__initial": "fresh"}
    made = device(**(low | {"ftl__gc_copyback": True}))
    lpns = np.arange(made.lpns)
    write(made, rng, lpns)
    kept = 0
    while kept < 20:
        write(made, rng, rng.permutation(made.lpns)[: made.lpns // 2])
        entries = made.arrays.l2p[0, : made.lpns].astype(np.int64) - 1
        rates = made.arrays.kept[0, entries]
        kept = int((rates > 0).sum())
    once = np.isclose(rates, 3e-3)
    assert once.sum() > 10 and (rates[~once & (rates > 0)] > 5.9e-3).all()
    whole = made.arrays.lost[0, entries] == 0
    failed = np.zeros(made.lpns)
    for _ in range(n):
        failed += read(made, lpns)[0] != 0
    for moved, rate in ((whole & (rates == 0), 3e-3), (whole & once, 6e-3)):
        expected = ecc.page_failure(4096, 20, 1, rate)
        trials = n * moved.sum()
        assert abs(failed[moved].sum() / trials - expected) < 5 * (expected / trials) ** 0.5
    made.check()


def test_bytes_of_a_page_that_collection_lost(rng):
    """They are those that the decoder gave up, as many bits wrong as it counted."""
    made = device(errors__floor=2e-2)
    held = np.zeros((made.lpns, small.PAGE), np.uint8)
    order = rng.permutation(made.lpns)
    held[order] = write(made, rng, order)
    while not made.arrays.lost.any():
        some = rng.permutation(made.lpns)[:20]
        held[some] = write(made, rng, some)
    for lpn in range(made.lpns):
        ppn = int(made.arrays.l2p[0, lpn]) - 1
        wrong = np.bitwise_count(made.store.read(ppn) ^ held[lpn]).sum(dtype=np.int64)
        if made.arrays.lost[0, ppn]:
            assert 20 < wrong < 400  # moved once or a few times: 82 each
        else:
            assert wrong == 0


# --- replay


SET = (*WHOLE_PAGES, "flash.channels=2", "flash.dies_per_channel=2", "flash.blocks_per_plane=32",
       "flash.pages_per_block=32", "flash.page=4 KiB", "ftl.over_provisioning=0.3",
       "errors.kind=model", "ecc.codeword=4 KiB", "ecc.soft_reads=0", "ecc.retries=0",
       "errors.floor=8.4e-3", "errors.initial_cycles=0")  # fmt: skip


def replayed(capsys, path, folder, *more):
    settings = {words.split("=")[0]: words for words in (*SET, *more)}
    words = [word for setting in settings.values() for word in ("--set", setting)]
    return here(capsys, "replay", path, "--from", "msr", "--queue-depth", "4", "--json",
                folder / "a.json", "--log", folder / "a.csv", *words)  # fmt: skip


@pytest.fixture
def reads(tmp_path):
    path = tmp_path / "reads.csv"
    lines = [f"{128166372003061629 + i * 10_000},host,0,Read,{i * 4096},4096,1" for i in range(300)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_replay_tells_which_requests_failed(capsys, reads, tmp_path):
    """The replay goes on as a host would, and ends with code 0: failed requests are its result."""
    done = replayed(capsys, reads, tmp_path)
    data = json.loads((tmp_path / "a.json").read_text())
    with open(tmp_path / "a.csv", newline="") as file:
        status = [int(row["status"]) for row in csv.DictReader(file)]
    failed = status.count(MEDIA_ERROR)
    assert done.code == 0 and 0 < failed < 300 and status.count(0) == 300 - failed
    assert data["errors"]["media_errors"] == data["errors"]["uncorrectable_pages"] == failed
    first = status.index(MEDIA_ERROR)
    assert f"{failed} requests ended with an unrecovered read error (NVMe status 0x281)" in done.err
    assert f"The first one is request {first}: 4096 bytes at {first * 4096}" in done.err
    assert "commands that ended with an unrecovered read error" in done.out


def test_a_replay_without_errors_says_nothing_of_them(capsys, reads, tmp_path):
    done = replayed(capsys, reads, tmp_path, "errors.kind=none")
    assert done.code == 0 and done.err == "" and "bit errors" not in done.out
    assert "errors" not in json.loads((tmp_path / "a.json").read_text())


# --- the same without Numba


SCRIPT = """
import sys
import numpy as np
from tests.faults.test_media_errors import mixed
np.savez(sys.argv[1], **mixed())
"""


def mixed():
    """Completions, counters and bytes of a run with everything that errors bring."""
    rng = np.random.default_rng(3)
    made = device(ecc__soft_reads=2, ecc__soft_gain=1.1,
                  ecc__retry_gain=0.7, errors__retention=1e-4, errors__initial_days=9,
                  ftl__gc_copyback=True)  # fmt: skip
    out = []
    for _ in range(2):
        lpns = rng.permutation(made.lpns)[: made.lpns * 2 // 3]
        made.buffer[: len(lpns)] = rng.integers(0, 256, (len(lpns), small.PAGE))
        made.submit(small.commands([(WRITE, int(lpn), 1) for lpn in lpns], made.now, slot=0))
        starts = rng.integers(0, made.lpns - 8, 20)
        made.submit(small.commands([(READ, int(lpn), 8) for lpn in starts], made.now, slot=0))
        made.run()
        out.append(made.completions())
    return {
        "completions": np.concatenate(out), "count": made.arrays.count, "buffer": made.buffer,
        "lost": made.arrays.lost, "kept": made.arrays.kept, "seen": made.arrays.seen,
        "reads": made.arrays.block["reads"],
    }  # fmt: skip


@pytest.mark.soak
def test_interpreted_and_compiled_agree(tmp_path, root):
    compiled = mixed()
    counted = dict(zip(COUNTERS, compiled["count"][0], strict=True))
    for name in ("retry_read_pages", "soft_pages", "uncorrectable_pages", "media_errors",
                 "copyback_pages", "gc_program_pages", "lost_pages"):  # fmt: skip
        assert counted[name] > 0, name
    env = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(root)}
    file = tmp_path / "plain.npz"
    subprocess.run([sys.executable, "-c", SCRIPT, str(file)], env=env, check=True, timeout=100)
    plain = np.load(file)
    for name, array in compiled.items():
        assert plain[name].tobytes() == np.asarray(array).tobytes(), name
