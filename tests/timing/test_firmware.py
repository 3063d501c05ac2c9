"""Does the firmware's latency delay a command and not the commands after it?"""

import numpy as np
import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.replay.block_trace import Loop, replay_block
from ondie.traces.block_model import FLUSH, READ, WRITE, BlockTrace

SMALL = ("flash.channels=2", "flash.dies_per_channel=2", "flash.blocks_per_plane=64",
         "flash.pages_per_block=48", "ftl.gc_low_blocks=2")  # fmt: skip
DELAYS = ("frontend.read_delay=30 us", "frontend.write_delay=7 us")
NONE = ("frontend.read_delay=0 us", "frontend.write_delay=0 us")
US = 10**6


def requests(op, count, apart_us=0):
    """4 KiB each, at addresses that alternate between the dies."""
    zeros = np.zeros(count, np.int64)
    offset = np.arange(count, dtype=np.int64) * 48 * 4096 % (16 << 20)
    return BlockTrace(
        arrival_ps=np.arange(count) * apart_us * US, op=np.full(count, op, np.int8),
        offset=offset if op != FLUSH else zeros, size=zeros + 4096 * (op != FLUSH),
        device=zeros.astype(np.int32), devices=("drive",), source="made", format="made",
    )  # fmt: skip


def latencies(trace, settings, loop=None):
    cfg = load_preset("gen4-tlc", (*SMALL, *settings))
    done = replay_block(trace, cfg, loop or Loop(None)).requests
    return done["end"] - done["start"]


@pytest.mark.parametrize(("op", "delay_us"), [(READ, 30), (WRITE, 7), (FLUSH, 7)])
def test_it_is_added_to_the_latency(op, delay_us):
    """Requests a millisecond apart, which never meet."""
    trace = requests(op, 40, 1000)
    with_delay, without = latencies(trace, DELAYS), latencies(trace, NONE)
    np.testing.assert_array_equal(with_delay - without, delay_us * US)


def test_commands_overlap_in_it():
    """A write every 2 us: each takes as long as one alone, although the delay is 7 us."""
    alone, busy = (latencies(requests(WRITE, 60, gap), DELAYS) for gap in (1000, 2))
    assert busy.max() == alone.max() > 7 * US


def test_reads_and_writes_do_not_wait_for_each_other():
    """Reads of 30 us and writes of 7 us at once: a write does not stand behind a read."""
    reads, writes = requests(READ, 30, 200), requests(WRITE, 30, 200)
    both = BlockTrace(
        **{
            name: np.stack([getattr(reads, name), getattr(writes, name)], axis=1).ravel()
            for name in ("arrival_ps", "op", "offset", "size", "device")
        },
        devices=("drive",), source="made", format="made",
    )  # fmt: skip
    found = latencies(both, DELAYS)
    assert found[both.op == WRITE].max() < 20 * US
    assert found[both.op == READ].min() > 30 * US


def test_single_requests_of_the_class_preset():
    """Micron 7450: typical latencies of 80 and 15 us, which gen4-tlc is made to have."""
    read, write = (latencies(requests(op, 64, 1000), ()) for op in (READ, WRITE))
    assert read.mean() / US == pytest.approx(80, abs=0.5)
    assert write.mean() / US == pytest.approx(15, abs=0.5)


@pytest.mark.parametrize("gather", ["1 ms", "10 s"])
def test_a_run_does_not_wait_for_padding(gather):
    """At its end, incomplete word lines are padded at once, as when the drive is shut down."""
    cfg = load_preset("gen4-tlc", (*SMALL, f"ftl.gather_time={gather}"))
    run = replay_block(requests(WRITE, 20, 10), cfg, Loop(None))
    last = int(run.requests["end"].max())
    program = cfg.flash.t_program_ps
    assert program < run.done.simulated_ps - last < 2 * program
    assert run.done.counters["padded_at_rest"] == 1 and run.done.counters["padding_pages"] == 28


def test_programs_from_the_write_cache_are_work_of_the_host():
    """Not of collection, of which there is none. Padding is the drive's."""
    cfg = load_preset("gen4-tlc", SMALL)
    run = replay_block(requests(WRITE, 480, 10), cfg, Loop(None), kind="none")
    assert run.done.counters["padding_pages"] == run.done.counters["collections"] == 0
    assert run.busy["dies"]["mean"] > 0.1 and run.busy["channels"]["mean"] > 0
    assert {name: part["collection"] for name, part in run.busy.items() if part["collection"]} == {}
