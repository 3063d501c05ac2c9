"""Does the engine schedule as a scheduler does that is plain enough to be seen to be right?

Random mixes of reads, programs and erases of pages of three latencies, over channels and dies:
every completion time is equal, by arrivals and by window, and for channels run alone or together.
"""

import numpy as np
import pytest

from ondie.emu.engine.run import build
from ondie.emu.nand import raw_jobs as physical
from tests.timing import flash
from tests.timing import harness as h
from tests.timing.reference import ERASE, PROGRAM, READ, Op, channel

TYPES = {
    "flash.cell": "TLC",
    "flash.page_types": "turns",
    "flash.pages_per_block": "12",
    "flash.t_read_middle": "1 us",
    "flash.t_read_upper": "2500 ns",
    "flash.t_program_middle": "7 us",
    "flash.t_program_upper": "20 us",
    "flash.planes_per_die": "1",
}
MORE = {READ: (0, 1000, 2500), PROGRAM: (0, 7000, 20_000), ERASE: (0, 0, 0)}  # ns
ARRAY = {READ: h.READ, PROGRAM: h.PROGRAM, ERASE: h.ERASE}


def mix(rng, n, channels, dies, apart):
    """Columns of ``n`` operations: most are reads, few are erases, some of few bytes; ``apart`` is
    their mean distance in ns."""
    op = rng.choice([READ, PROGRAM, ERASE], n, p=[0.6, 0.35, 0.05])
    page = rng.integers(0, 12, n)
    size = np.where(op == ERASE, 0, rng.choice([512, 1024, h.PAGE], n))
    at = np.cumsum(rng.integers(0, 2 * apart + 1, n)) * h.NS if apart else np.zeros(n, np.int64)
    die = rng.integers(0, channels * dies, n)
    return {"at": at, "die": die, "op": op, "page": page, "bus": size}


def expected(columns, channels, dies, first, window=0):
    """Ends by the plain scheduler."""
    ops = []
    for i in range(len(columns["op"])):
        kind = int(columns["op"][i])
        array = ARRAY[kind] + MORE[kind][int(columns["page"][i]) % 3] * h.NS
        data = int(columns["bus"][i]) * h.NS  # 1000 MB/s
        way = int(columns["die"][i]) // channels
        ops.append(Op(kind, way, int(columns["at"][i]), h.COMMAND, data, array))
    for c in range(channels):
        mine = [op for op, die in zip(ops, columns["die"], strict=True) if die % channels == c]
        channel(mine, dies, first, window)
    return [op.end for op in ops]


def state(channels, dies, first, n):
    cfg = h.preset(
        flash.LEAVES | TYPES,
        flash__channels=channels,
        flash__dies_per_channel=dies,
        flash__grants="commands" if first else "data",
    )
    return build.build(cfg, devices=1, phases=1, jobs=n)


def ends(arrays, order):
    out = np.zeros(len(order), np.int64)
    out[order] = arrays.job["end"]
    assert (out >= 0).all()
    return out.tolist()


@pytest.mark.parametrize("first", [True, False], ids=["commands", "data"])
@pytest.mark.parametrize("channels, dies", [(1, 1), (1, 5), (3, 2), (2, 16)])
def test_as_they_arrive(channels, dies, first, rng, counts):
    """From one operation at a time to a hundred times more than the channel can take."""
    for apart in counts((300, 9000), (0, 100, 1000, 4000, 9000, 40_000)):
        columns = mix(rng, counts(300, 3000), channels, dies, apart)
        arrays = state(channels, dies, first, len(columns["op"]))
        order = physical.load_arrivals(arrays, **columns, planes=np.ones(len(columns["op"])))
        physical.run(arrays.handle(), 0, 1 << 60)
        assert ends(arrays, order) == expected(columns, channels, dies, first)


@pytest.mark.parametrize("first", [True, False], ids=["commands", "data"])
@pytest.mark.parametrize("watch", [True, False], ids=["watched", "unwatched"])
def test_by_window(first, watch, rng, counts):
    """Each die has a window of operations queued. Where nobody outside waits for programs to end,
    they are looked at when the channel is free: the times are the same."""
    for window in counts((1, 8), (1, 2, 3, 8, 64)):
        columns = mix(rng, counts(400, 4000), 2, 4, 0)
        arrays = state(2, 4, first, len(columns["op"]))
        columns = {name: column for name, column in columns.items() if name != "at"}
        order = physical.load(arrays, **columns, planes=np.ones(len(columns["op"])))
        if not watch:
            physical.clear_watch(arrays)
            assert arrays.cfg["watch"][0] == 0
        physical.run(arrays.handle(), window, 1 << 60)
        columns["at"] = np.zeros(len(order), np.int64)
        assert ends(arrays, order) == expected(columns, 2, 4, first, window)
