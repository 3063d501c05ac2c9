"""Nothing runs out in the middle of a command: transactions, the log of moved bytes, the ring. The
clock never goes back."""

import numpy as np
import pytest

from ondie.emu.engine.core import events, payload_log
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.core.counters import COLLECTIONS
from ondie.emu.engine.run import build
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.engine.run.system import System
from ondie.emu.nvme import command as queues
from ondie.emu.paths.base import Rows
from ondie.emu.units import InputError
from tests.state.small import PAGE, commands, config, counter, device

BIG = {
    "flash__channels": 4,
    "flash__blocks_per_plane": 64,
    "flash__pages_per_block": 256,
    "flash__multi_plane": "false",
    "frontend__max_transfer": "256 KiB",
    "ftl__initial": "fresh",
}


@pytest.mark.parametrize("op", [queues.WRITE, queues.READ])
def test_more_pages_in_flight_than_the_pool_holds(op):
    """200 commands of 512 pages at depth 256, page by page: 102,400 transactions if all were under
    way at once, 61,440 there are. Commands wait for their turn; none is lost."""
    d = device(queue_depth=256, **BIG)
    batch = commands([(op, 512 * i, 512) for i in range(200)])
    assert len(d.arrays.txn) < 512 * 200 < d.lpns
    d.submit(batch)
    d.run()
    assert len(d.completions()) == 200
    d.check()
    assert d.arrays.reg.budget[0] == d.arrays.cfg.budget[0] == build.BUDGET


def test_a_command_larger_than_the_pool_is_refused():
    """Asked of the engine directly: a device's commands end at frontend.max_transfer."""
    system = System(config(**BIG), ("a",))
    out = Rows()
    out.one(resource=rows.NVME, kind=queues.READ, bytes_out=build.BUDGET * PAGE)
    message = f"{build.BUDGET} pages: must be at most {build.BUDGET - 1} pages"
    with pytest.raises(InputError, match=message):
        system.run([out.take()])


def test_a_host_waiting_for_the_pool_is_not_forgotten():
    """Two devices share the pool. While the ISP of device 0 holds all of it, the only commands of
    device 1 wait; nobody but the end of the ISP's work can admit them."""
    system = System(config(system__devices=2, **BIG), ("a",))
    out = Rows()
    n = system.arrays.cfg.budget[0] // 513
    out.add(n, resource=rows.ISP_IO, kind=queues.WRITE, bytes_in=512 * PAGE, lpn=512 * np.arange(n))
    ids = out.add(3, resource=rows.NVME, kind=queues.WRITE, device=1, bytes_in=512 * PAGE)
    system.run([out.take()])
    assert (system.arrays.row.state[ids] == rows.DONE).all()
    assert len(system.arrays.txn) == system.arrays.reg.txns_free[0]


def test_collection_of_every_die_fits_beside_full_queues():
    """Tiny pages and many dies: user commands take their whole share while every die collects."""
    d = device(
        queue_depth=4096,
        flash__channels=8,
        flash__dies_per_channel=8,
        flash__pages_per_block=4,
        flash__multi_plane="false",
        ftl__over_provisioning=0.5,
        ftl__gc_low_blocks=4,
    )
    rng = np.random.default_rng(1)
    batch = commands([(queues.WRITE, int(lpn), 16) for lpn in rng.integers(0, d.lpns - 16, 8000)])
    d.submit(batch)
    unpromised = []
    while d.run_until(1 << 61, max_events=20_000):
        unpromised.append(int(d.arrays.reg.budget[0]))
    assert min(unpromised) < 17  # not even one command more
    assert len(d.completions()) == 8000 and counter(d, COLLECTIONS) > 1000
    d.check()


def test_the_log_holds_whatever_starts_at_once():
    """115,000 reads of pages never written, each logged as it starts, then 30,000 more that all
    start with one fence: the log, drained when it is half full, takes them all, in order."""
    system = System(config(**BIG), ("a",), payload=True)
    seen: list[np.ndarray] = []
    system.on_log = lambda log: seen.append(log.copy())
    pages = np.arange(145_000) % 100_000
    out = Rows()
    read = {"resource": rows.ISP_IO, "kind": queues.READ, "bytes_out": PAGE}
    out.add(115_000, lpn=pages[:115_000], **read)
    fence = out.fence(0)
    out.add(30_000, lpn=pages[115_000:], after0=fence, **read)
    system.run([out.take()])
    log = np.concatenate(seen)
    assert (log["what"] == payload_log.LOG_ZERO).all()
    assert log["lpn"].tolist() == pages.tolist()


def test_an_event_before_the_clock_stops_the_run():
    d = device()
    d.submit(commands([(queues.WRITE, 0, 1)]))
    d.run()
    reached, resource = d.now, int(d.arrays.reg.station0[0])
    d.submit(commands([(queues.READ, 0, 1)], arrival=reached))
    events.set_leaf(d.state, resource, reached - 1)
    words = f"of resource {resource}, is at {reached - 1} ps, before the clock at {reached} ps"
    with pytest.raises(SimulationError, match=words):
        d.run()
