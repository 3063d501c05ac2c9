"""The same plan gives the same times: twice, in other chunks, uncompiled, beside another
device."""

import os
import subprocess
import sys

import numpy as np
import pytest

from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.run import build
from ondie.emu.engine.run.system import System
from ondie.emu.nand.timing import BPP, BPR, ODC, READ, VPP
from ondie.emu.nvme import command as queues
from ondie.emu.paths.base import Rows
from tests.state.small import PAGE, config

SUPER = 2 * PAGE


def mixed(seed=1, n=150, devices=1, of=None, kinds=8):
    """Rows of every kind: host and ISP commands, transfers, computation, TRIM, on-die stripes and
    fences (``kinds=7``: without those two); of one of the devices only where ``of`` says so."""
    rng = np.random.default_rng(seed)
    out = Rows()
    last = np.full(devices, -1)
    for i in range(n):
        dev = int(rng.integers(0, devices))
        lpn, pages = int(rng.integers(0, 150)), int(rng.integers(1, 9))
        kind = int(rng.integers(0, kinds))
        time = int(rng.integers(1, 50)) * 1_000_000
        super_page = i % 24
        after = int(last[dev]) if rng.random() < 0.5 else -1
        if of is not None and dev != of:
            continue
        where = {"device": dev, "after0": after}
        if kind in (0, 1, 2):
            op = queues.READ if kind == 0 else queues.WRITE
            size = {"bytes_out" if kind == 0 else "bytes_in": pages * PAGE}
            last[dev] = out.one(resource=rows.NVME, kind=op, lpn=lpn, **size, **where)
        elif kind == 3:
            op = queues.READ if i % 2 else queues.WRITE
            last[dev] = out.one(
                resource=rows.ISP_IO, kind=op, lpn=lpn, bytes_in=pages * PAGE, **where
            )
        elif kind == 4:
            out.one(resource=rows.DMA_DOWN, bytes_in=pages * 1000, **where)
            out.one(resource=rows.DMA_UP, bytes_out=pages * 1000, **where)
        elif kind == 5:
            out.one(resource=rows.ISP, bytes_in=pages * 999, array_ps=time, **where)
        elif kind == 6:
            out.one(resource=rows.NVME, kind=queues.TRIM, lpn=lpn, bytes_in=pages * PAGE, **where)
        else:
            stripe(out, dev, super_page, time)
    return out.take()


def stripe(out, dev, super_page, time):
    """VPP, BPR, ODC, BPP and a read of one super-page, behind everything before."""
    fence = out.fence(0)
    place = {"device": dev, "resource": rows.DIE, "lpn": super_page}
    vpp = out.one(kind=VPP, bytes_in=PAGE, after0=fence, **place)
    bpr = out.one(kind=BPR, bytes_out=SUPER, after0=fence, **place)
    odc = out.one(kind=ODC, array_ps=time, after0=vpp, after1=bpr, **place)
    bpp = out.one(kind=BPP, bytes_in=SUPER, after0=odc, **place)
    out.one(kind=READ, bytes_out=PAGE, after0=bpp, **place)


def run(plan, chunk=None, devices=1, queue_depth=None, **changes):
    changes = {"ftl__reservoir_fraction": 0.5, "ftl__over_provisioning": 0.4} | changes
    cfg = config(flash__blocks_per_plane=16, system__devices=devices, **changes)
    system = System(
        cfg, ("a",), reservoir_super_pages=24, queue_depth=queue_depth, timeline=100_000
    )
    for dev in range(devices):
        system.fill(dev, 0, 100)
        system.fill_reservoir(dev, 0, 24)
    size = chunk or len(plan)
    system.run(plan[i : i + size] for i in range(0, len(plan), size))
    return system


STATE = ("count", "block", "l2p", "p2l", "rmap", "use", "line", "phase", "pool", "bus")


def same(a, b, names=STATE):
    for name in names:
        left, right = getattr(a.arrays, name), getattr(b.arrays, name)
        assert left.tobytes() == right.tobytes(), name
    for column in ("start", "end", "state"):
        assert (a.arrays.row[column] == b.arrays.row[column]).all(), column
    assert a.now == b.now


USED = (
    "read_pages",
    "program_pages",
    "erased_blocks",
    "bpr_pages",
    "bpp_pages",
    "vpp_pages",
    "odc_ops",
    "reservoir_read_pages",
    "host_read_bytes",
    "host_write_bytes",
    "isp_read_bytes",
    "isp_write_bytes",
    "isp_bytes",
    "trimmed_pages",
)
"""Counters that this run makes more than 0."""


def test_twice():
    a = run(mixed())
    same(a, run(mixed()))
    count = dict(zip(COUNTERS, a.arrays.count[0].tolist(), strict=True))
    assert not {name for name in USED if not count[name]}


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks(chunk):
    """A plan is the same however it is cut."""
    same(run(mixed()), run(mixed(), chunk))


def test_chunks_that_do_not_fit_the_ring_together(monkeypatch):
    """A ring of 64 rows, so that rows are loaded while others run. A chain of rows, each after
    the one before: completions do not depend on the chunks."""
    out = Rows()
    previous = -1
    for i in range(300):
        previous = out.one(
            resource=rows.NVME, kind=queues.WRITE, lpn=i % 150, bytes_in=PAGE, after0=previous
        )
    plan = out.take()
    whole = run(plan)
    ends = whole.arrays.row.end[:300].copy()
    monkeypatch.setattr(build, "ROWS", 64)
    for chunk in (1, 13, 32):
        system = run(plan, chunk)
        assert system.now == whole.now
        for name in ("count", "block", "l2p", "use"):
            assert (getattr(system.arrays, name) == getattr(whole.arrays, name)).all(), name
        assert sorted(system.arrays.row.end) == ends[-64:].tolist()


def test_two_devices_do_not_disturb_each_other():
    """Device 1's rows take as long beside device 0's as without them, whoever they wait for. The
    host's submission thread is shared, so it is made free of charge."""
    changes = {"devices": 2, "host__io_submit": "0 s"}
    alone = run(mixed(devices=2, of=1, kinds=7), **changes)
    both = run(mixed(devices=2, kinds=7), **changes)
    mine = alone.arrays.row[: alone.next_row]
    ours = both.arrays.row[: both.next_row]
    assert (ours["device"] == 0).sum() > 40 < (ours["device"] == 1).sum()
    ours = ours[ours["device"] == 1]
    for column in ("resource", "kind", "start", "end"):
        assert mine[column].tolist() == ours[column].tolist()
    assert (alone.arrays.count[1] == both.arrays.count[1]).all()


def test_two_devices_share_the_submission_thread():
    """The same with 50 us of host time per command: now they do."""
    changes = {"devices": 2, "host__io_submit": "50 us"}
    alone = run(mixed(devices=2, of=1, kinds=7), **changes)
    assert run(mixed(devices=2, kinds=7), **changes).now > alone.now


TRANSFERS = {
    "DMA down": {"resource": rows.DMA_DOWN, "bytes_in": 16 * PAGE},
    "DMA up": {"resource": rows.DMA_UP, "bytes_out": 16 * PAGE},
    "writes": {"resource": rows.NVME, "kind": queues.WRITE, "bytes_in": 16 * PAGE},
    "reads": {"resource": rows.NVME, "kind": queues.READ, "bytes_out": 16 * PAGE},
}


def transfer_ms(devices, uplink, row):
    out = Rows()
    for dev in devices:
        out.add(32, device=dev, lpn=16 * (np.arange(32) % 8), **row)
    changes = {"link__uplink": uplink, "link__down": "10 MB/s", "link__up": "10 MB/s"}
    changes |= {"ftl__initial": "fresh", "host__io_submit": "0 s", "queue_depth": 64}
    return run(out.take(), devices=2, **changes).now / 1e9


@pytest.mark.parametrize("row", TRANSFERS.values(), ids=TRANSFERS)
def test_a_shared_uplink_is_shared(row):
    """256 KiB at 10 MB/s take 26.2 ms, on one device or two. Behind a shared uplink of as much two
    devices take twice as long, give or take the first and last piece."""
    one, two = transfer_ms([1], "0", row), transfer_ms([0, 1], "0", row)
    assert one == two and 26.2 < one < 28
    alone, shared = transfer_ms([1], "10 MB/s", row), transfer_ms([0, 1], "10 MB/s", row)
    assert 1.0 * one <= alone < 1.07 * one
    assert 1.9 * alone < shared < 2.05 * alone


def test_arrivals_on_two_devices():
    """A command that arrives early does not wait for the arrival of a later one on another device,
    although its device was busy when that one was accepted. Waiting is no work of any resource."""
    out = Rows()
    write = {"resource": rows.NVME, "kind": queues.WRITE, "bytes_in": PAGE}
    out.one(device=0, **write)
    early = out.one(device=0, lpn=1, array_ps=1_000_000_000, **write)
    late = out.one(device=1, array_ps=100_000_000_000, **write)
    system = run(out.take(), devices=2, queue_depth=1, ftl__initial="fresh")
    row = system.arrays.row
    assert [int(row.start[i]) for i in (early, late)] == [1_000_000_000, 100_000_000_000]
    assert row.end[early] < 1_300_000_000
    assert system.arrays.use.max() < 1_000_000_000


SCRIPT = """
import sys
import numpy as np
from tests.state.test_repeat import STATE, mixed, run
system = run(mixed())
arrays = {name: np.asarray(getattr(system.arrays, name)) for name in (*STATE, "row")}
np.savez(sys.argv[1], now=system.now, **arrays)
"""


def test_interpreted_and_compiled_agree(tmp_path, root):
    """The same functions without Numba: the same completions, counters, maps and intervals."""
    system = run(mixed())
    env = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(root)}
    file = tmp_path / "plain.npz"
    subprocess.run([sys.executable, "-c", SCRIPT, str(file)], env=env, check=True, timeout=100)
    plain = np.load(file)
    assert int(plain["now"]) == system.now
    for name in (*STATE, "row"):
        assert bits(plain[name]) == bits(getattr(system.arrays, name)), name


def bits(array):
    """The bytes of all fields, without what lies between records."""
    names = array.dtype.names or ()
    return b"".join(np.asarray(array[name]).tobytes() for name in names) or array.tobytes()
