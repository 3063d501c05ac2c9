"""Does a replay use memory for what it touches, and is one that cannot fit refused beforehand?"""

import json
import mmap
import subprocess
import sys

import numpy as np
import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import sparse_table
from ondie.emu.engine.core.sparse_table import PART, map_table, touched_parts
from ondie.emu.engine.run.system import System
from ondie.emu.replay import memory
from ondie.emu.units import InputError
from tests.smoke.commands import compiled, here, refused

GIB = 1 << 30
PRESETS = ("newport", "gen4-tlc", "laguna", "smartssd", "csd-pe", "optimstore-r1", "optimstore-r2",
           "970-pro", "970-evo", "sn750", "pm9a3", "p4320")  # fmt: skip


def random_trace(path, count, rng, span=64 * GIB):
    """4 KiB requests, three of ten reads, uniform over the first ``span`` bytes."""
    places = rng.integers(0, span // 4096, count) * 8
    reads = rng.random(count) < 0.3
    lines = (f"0 0 {at} 8 {int(read)}\n" for at, read in zip(places, reads, strict=True))
    path.write_text("".join(lines))
    return path


@pytest.fixture
def peak(tmp_path):
    """Run a replay in a process of its own and return its statistics and peak memory in bytes."""
    compiled()

    def run(trace, preset, kind):
        script = (
            "import atexit, sys; from ondie.emu.cli.main import main\n"
            "from ondie.emu.replay.memory import peak_rss_bytes\n"
            "atexit.register(lambda: print(peak_rss_bytes()))\n"
            "main(sys.argv[1:])"
        )
        words = ["replay", trace, "--from", "mqsim", "--time-unit", "ns", "--device", preset,
                 "--queue-depth", "32", "--precondition", kind, "--quiet",
                 "--json", "o.json"]  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", script, *map(str, words)],
            cwd=tmp_path, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "o.json").read_text()), int(done.stdout.split()[-1])

    return run


def test_memory_of_random_requests(peak, tmp_path, rng, counts):
    """At most 1 GiB and 24 B for each mapped unit, and no more than the estimate by half of it.

    64 GiB of 32 TB: a table that is read as a whole would take 20 GB.
    """
    count = counts(20_480, 2_000_000)
    trace = random_trace(tmp_path / "w.trace", count, rng)
    for preset in PRESETS[: counts(1, None)]:
        data, used = peak(trace, preset, "none")
        cfg = load_preset(preset)
        mapped = data["flash"]["user_writes"]
        assert used <= GIB + 24 * mapped
        assert used <= 1.5 * memory.needed_bytes(cfg, "none", count, mapped), preset


@pytest.mark.soak
def test_memory_of_a_fill_of_what_is_touched(peak, tmp_path, rng):
    """Of 4 TB, 64 GiB are accessed in 20,480 places: half a GiB, where a whole fill takes eight."""
    trace = random_trace(tmp_path / "w.trace", 20_480, rng)
    assert peak(trace, "gen4-tlc", "fill")[1] <= GIB // 2


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "preset"),
    [("fill", "csd-pe"), ("fill", "optimstore-r2"), ("steady", "csd-pe"),
     ("steady", "optimstore-r2"), ("steady", "gen4-tlc")],
)  # fmt: skip
def test_memory_of_a_preconditioned_drive(peak, tmp_path, rng, preset, kind):
    """The estimate is neither exceeded by a tenth nor twice of what a full drive takes."""
    trace = random_trace(tmp_path / "w.trace", 20_480, rng)
    _, used = peak(trace, preset, kind)
    cfg = load_preset(preset)
    if cfg.flash.page_bytes > 4096:  # as the replay does
        cfg = cfg.replace({"ftl.partial_pages": "sectors"}, ref="test")
    assert used <= GIB + 24 * memory.tables.logical_pages(cfg, memory.Geometry.of(cfg))
    estimate = memory.needed_bytes(cfg, kind, 20_480, 20_480)
    assert used <= 1.1 * estimate <= 2.2 * used


GROWTH = """
import json, sys
from ondie.emu.config.config import load_preset
from ondie.emu.replay.block_trace import Loop, replay_block
from ondie.emu.replay.memory import peak_rss_bytes
from ondie.emu.validate.speed.replay_memory import SPAN_BYTES, random_requests

def used():
    (line,) = [x for x in open("/proc/self/status") if x.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024

seen = []
count, blocks = map(int, sys.argv[1:])
settings = [f"flash.blocks_per_plane={blocks}", "ftl.over_provisioning=0.25"]
cfg = load_preset("gen4-tlc", settings)
run = replay_block(random_requests(count, SPAN_BYTES), cfg, Loop(32), footprint="wrap",
                   progress=lambda done, now: seen.append((done, used())))
erases = run.done.counters["erased_blocks"]
print(json.dumps({"seen": seen, "peak": peak_rss_bytes(), "erases": erases}))
"""


def test_a_full_drive_takes_no_more_memory(tmp_path, counts):
    """20 M requests to a filled drive of 64 GiB: the records of the requests are allocated before
    the first, and nothing grows in the second half of the run."""
    count = counts(200_000, 20_000_000)
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(count), str(counts(8, 26))],
        cwd=tmp_path, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["erases"] > 100
    first = max(used for done, used in found["seen"] if done <= count // 2)
    assert max(used for _, used in found["seen"]) <= first + (4 << 20)
    assert found["peak"] <= first + (64 << 20)


def test_a_replay_that_cannot_fit_is_refused(capsys, tmp_path, rng, monkeypatch):
    """Newport in steady state is 1.8 G pages of 8 B in both maps; filled, the pages accessed."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 20 * GIB)
    trace = random_trace(tmp_path / "w.trace", 100, rng)
    words = ("replay", trace, "--from", "mqsim", "--time-unit", "ns", "--queue-depth", "8",
             "--device", "newport", "--precondition", "steady", "--quiet",
             "--json", tmp_path / "a.json")  # fmt: skip
    line = refused(
        here(capsys, *words), "newport", "100 requests", "20.0 GiB are available",
        "--precondition none (about", "--set flash.blocks_per_plane=",
    )  # fmt: skip
    blocks = int(line.split("blocks_per_plane=")[1].rstrip(")"))
    cfg = load_preset("newport")
    assert 0 < blocks < cfg.flash.blocks_per_plane
    smaller = cfg.replace({"flash.blocks_per_plane": blocks}, ref="test")
    memory.check_memory(smaller, "steady", 100, 300)
    monkeypatch.setattr(memory, "available_bytes", lambda: 10 * GIB)
    memory.check_memory(cfg, "fill", 100, 300, 10**6)
    with pytest.raises(InputError, match="--precondition none"):
        memory.check_memory(cfg, "fill", 100, 300)
    with pytest.raises(InputError, match="replay fewer requests"):
        memory.check_memory(cfg, "none", 10**9, 300)
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    memory.check_memory(cfg, "fill", 100, 300)


def test_available_memory_is_that_of_the_machine():
    found = memory.available_bytes()
    assert found is not None and 1 << 20 < found < 1 << 50


@pytest.mark.parametrize("large", [True, False], ids=["large pages", "small pages"])
@pytest.mark.parametrize("told", [True, False])
def test_touched_parts(monkeypatch, told, large):
    """All entries that are not zero lie in the parts; with the system's help, few others do."""
    if not told:
        monkeypatch.setattr(sparse_table, "open", _refuse, raising=False)
    monkeypatch.setattr(sparse_table, "HUGE_BYTES", 1 << 30 if large else 0)
    length = 40 * PART + 17
    first, second = (map_table((1, length), kind)[0] for kind in (np.uint32, np.int64))
    first[[3, 7 * PART, length - 1]] = 5
    second[[9 * PART - 1]] = 1
    found = list(touched_parts(first, second))
    written = (3, 7 * PART, 9 * PART - 1, length - 1)
    assert all(any(part.start <= at < part.stop for part in found) for at in written)
    assert all(part.stop - part.start <= PART for part in found)
    size = sum(part.stop - part.start for part in found)
    page = (2 * 2**20 if large else mmap.PAGESIZE) // 4  # entries, of which each write takes some
    assert len(found) == 41 if not told else size <= 5 * page < length / 3
    assert sum(int(np.count_nonzero(second[p])) for p in found) == 1
    assert sum(int(np.count_nonzero(first[p])) for p in touched_parts(first)) == 3


def test_a_plan_takes_memory_for_what_it_writes(monkeypatch):
    """10,000 pages lie in one block of each unit, far from each other: memory pages of 4 KiB hold
    their entries; huge ones would be of 2 MiB for each unit."""
    monkeypatch.setattr(sparse_table, "HUGE_BYTES", 1 << 30)  # as outside of tests
    system = System(load_preset("optimstore-r2"), ("update",))
    system.fill(0, 0, 10_000)
    pages = system.arrays.p2l[0]
    units, width = len(system.arrays.pool), pages.itemsize
    held = sum(part.stop - part.start for part in touched_parts(pages)) * width
    assert units >= 32 and pages.nbytes > sparse_table.SPARSE_BYTES
    assert 10_000 * width <= held <= 10_000 * width + 2 * 4096 * units


def _refuse(*args, **options):
    raise PermissionError


def test_peak_memory_is_that_of_this_process():
    """Not that of the process that started it, which getrusage would give."""
    code = "from ondie.emu.replay.memory import peak_rss_bytes; print(peak_rss_bytes())"
    held = np.ones(512 << 20, np.uint8)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 10 << 20 < int(done.stdout) < 400 << 20 < held.nbytes <= memory.peak_rss_bytes()
