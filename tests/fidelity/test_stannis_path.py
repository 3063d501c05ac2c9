"""Does the simulated distributed step take what its closed form says, and the paper's 2.7x?

Every step here is run by the event engine; the expected values are arithmetic on the configuration.
"""

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest

from ondie.emu.analysis.compare import run_path
from ondie.emu.analysis.energy import energy
from ondie.emu.analysis.ledger import Ledger, ledger
from ondie.emu.cluster.collectives.allreduce import exchange
from ondie.emu.cluster.workload import of_trace
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.totals import StepClock
from ondie.emu.engine.run.system import System
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.paths.base import PHASES, Options, Unavailable
from ondie.emu.paths.data_parallel import HOST_NODE, Stannis
from ondie.emu.units import InputError
from ondie.traces import Trace, flat_tensors, load
from tests.smoke.commands import here, refused

SMALL = ["flash.dies_per_channel=2", "flash.blocks_per_plane=64"]
"""A Newport with little flash: built and filled in no time."""
HYPER = {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "maximize": False}


@dataclasses.dataclass
class Run:
    path: Stannis
    system: System
    book: Ledger

    @property
    def spans(self) -> dict[str, tuple[int, int]]:
        return dict(self.book.totals.steps[-1])

    def station(self, device: int, which: int) -> Any:
        return self.system.arrays.fifo[s.station(self.system.state, device, which)]


def trace(n_params: int = 1_000_003, steps: int = 1, **changes: Any) -> Trace:
    """MobileNetV2 of the paper with another number of parameters, and changed steps."""
    known = load("mobilenetv2")
    step = dataclasses.replace(known.steps[0], ready_s=None, hyper=(HYPER,))
    names = {f.name for f in dataclasses.fields(step)}
    of_step = {k: changes.pop(k) for k in list(changes) if k in names}
    repeated = tuple(
        dataclasses.replace(step, index=i, count=i + 1, **of_step) for i in range(steps)
    )
    tensors = flat_tensors([("all", (n_params,), 0, 0)])
    return dataclasses.replace(known, tensors=tensors, steps=repeated, digest=None, **changes)


def run(
    t: Trace,
    devices: int,
    *overrides: str,
    batch: str = "tuned",
    host_batch: int | None = None,
    allreduce: str = "ring",
    small: bool = True,
) -> Run:
    cfg = load_preset(
        "newport", [f"system.devices={devices}", *(SMALL if small else []), *overrides]
    )
    path = Stannis(cfg, t, Options(batch=batch, host_batch=host_batch, allreduce=allreduce))
    system = path.system(False, 0)
    path.prepare(system, None)
    clock = StepClock(PHASES, system.arrays.phase)
    for i in range(len(t.steps)):
        clock.begin(system.now)
        system.run(path.plan(i))
        clock.end(system.now)
    return Run(path, system, ledger(system.totals(clock), path.global_batch))  # checks the books


# --- the paper


def test_speedup_of_24_newports(counts):
    """(315 + 600) / 10.49 s over 32.3 img/s = 2.70: 9.752 s on the host, then 48 ring steps of
    13.88 MB / 25 at 36 MB/s, 0.74 s; the host's relay has work for 2.3 s of its 8 threads."""
    r = run(load("mobilenetv2"), 24, small=counts(True, False))
    assert r.path.batches(0) == (315, *24 * [25])
    assert r.path.global_batch / r.book.step_s / 32.3 == pytest.approx(2.7, rel=0.02)
    assert r.book.phases_s["synchronise"] == pytest.approx(0.74, rel=0.03)
    assert r.book.bound_by("synchronise")[0] == "tunnel down"
    assert r.book.totals.busy_sum_ps["host relay"] * 8 / 1e12 == pytest.approx(2.3, rel=0.02)


def test_the_slowdown_per_drive_fades():
    """The ring moves 2 (n - 1) / n of the gradient: 1, 1.71, 1.85 of it at 1, 6, 12 drives. It is
    so large that the last commands of a hop, which go down alone, hardly count."""
    large = trace(10_000_003)
    cost = {n: run(large, n).book.phases_s["synchronise"] for n in (1, 2, 6, 12)}
    assert cost[1] < cost[2] < cost[6] < cost[12]
    assert cost[6] - cost[1] > 5 * (cost[12] - cost[6])


# --- bytes


@pytest.mark.parametrize("devices", [1, 3, 6])
def test_every_tunnel_carries_the_ring_and_no_more(devices):
    """What goes from drive to drive crosses the host: up through one tunnel, down another."""
    n = devices + 1
    r = run(trace(), devices)
    ring_bytes = 2 * (n - 1) * -(-4 * 1_000_003 // n)
    for dev in range(devices):
        up, down = r.station(dev, s.TUNNEL_UP), r.station(dev, s.TUNNEL_DOWN)
        assert (up["size"], up["jobs"]) == (ring_bytes, 2 * (n - 1))
        assert down["size"] == ring_bytes
    assert r.book.totals.counters["tunnel_bytes"] == 2 * devices * ring_bytes


@pytest.mark.parametrize("batch", ["tuned", "same"])
def test_samples_are_read_by_the_node_that_trains_on_them(batch):
    t = trace()
    r = run(t, 3, batch=batch)
    host, *drives = r.path.batches(0)
    assert sum((host, *drives)) == (315 if batch == "same" else 315 + 3 * 25)
    c = r.book.totals.counters
    assert c["host_read_bytes"] == host * t.bytes_per_sample
    assert c["isp_read_bytes"] == sum(drives) * t.bytes_per_sample
    assert c["unmapped_pages"] == 0 and c["ecc_decoded_pages"] == c["read_pages"] > 0
    assert c["host_write_bytes"] == c["program_pages"] == 0


def test_samples_come_at_the_speed_of_their_way():
    """Half of the host's samples over each link: 315 x 150,528 B / 2 / 0.1 GB/s = 237 ms. A drive's
    25 over its flash path: 25 x 150,528 B / 0.01 GB/s = 376 ms."""
    size = 150_528
    links = run(trace(), 2, "link.up=100 MB/s").spans["samples"][1] / 1e12
    assert links == pytest.approx(-(-315 // 2) * size / 100e6, rel=0.01)
    paths = run(trace(), 2, "isp.flash=10 MB/s").spans["samples"][1] / 1e12
    assert paths == pytest.approx(25 * size / 10e6, rel=0.01)


def test_slow_flash_delays_the_step():
    """Each read of a drive's 25 samples is in some die's queue: a slower array is felt."""
    quick, slow = (run(trace(), 1, f"flash.t_read={t}").book.step_s for t in ("60 us", "60 ms"))
    assert slow - quick > 0.06


# --- time


@pytest.mark.parametrize(
    ("devices", "overrides", "decides"),
    [
        (1, (), "tunnel up"),
        (5, (), "tunnel down"),  # its commands are less full: only whole packets go on
        (5, ("tunnel.notify=50 ms",), "tunnel up"),
        (5, ("tunnel.relay_command=200 us", "tunnel.relay_threads=1"), "host relay"),
        (5, ("isp.frequency=1 MHz",), "ISP"),
        (1, ("isp.frequency=1 MHz",), "ISP"),  # the drive has the sum before the host
        (5, ("host.adam=1 Mparam/s",), "host CPU"),
        (5, ("dram.bandwidth=10 MB/s",), "DRAM"),
    ],
)
def test_the_update_stage_is_its_closed_form(devices, overrides, decides):
    r = run(trace(), devices, *overrides)
    bound = r.path.bound(0)
    assert r.book.update_s == pytest.approx(bound.seconds, rel=1e-6)
    assert bound.name == decides
    assert r.spans["synchronise"][0] == r.spans["backward"][1]
    assert r.spans["update"][1] == r.spans["step"][1]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", ["ring", "tree", "star"])
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("tunnel.outstanding=4", "tunnel.payload=16 KiB"),
        ("tunnel.concatenate=false", "tunnel.notification=burst", "tunnel.mtu=9000 B"),
        ("tunnel.relay_threads=1", "tunnel.relay_command=20 us"),
    ],
)
@pytest.mark.parametrize("devices", [1, 2, 6, 9])
def test_the_engine_and_the_cost_model_agree(kind, overrides, devices):
    """Time, host CPU seconds, commands and bytes of an exchange: simulated, and by the model."""
    r = run(trace(100_003), devices, *overrides, allreduce=kind)
    x, c = r.path.exchange.cost, r.book.totals.counters
    assert r.book.phases_s["synchronise"] == pytest.approx(x.seconds, rel=1e-9)
    threads = r.path.cfg.tunnel.relay_threads
    relay = r.book.totals.busy_sum_ps["host relay"] * threads / 1e12
    assert relay == pytest.approx(x.host_cpu_s, rel=1e-6)
    assert c["tunnel_commands"] == x.commands + x.notifications
    assert c["tunnel_bytes"] == x.bytes_up + x.bytes_down
    assert c["tunnel_wire_bytes"] == x.wire_bytes
    assert r.book.update_s == pytest.approx(r.path.bound(0).seconds, rel=1e-6)


@pytest.mark.parametrize("kind", ["ring", "star"])
def test_an_uplink_is_shared_by_all_tunnels(kind):
    """100 MB/s for five drives: what all of them bring up, with headers, one after the other. Who
    has the sum before the others updates meanwhile."""
    r = run(trace(), 5, "link.uplink=100 MB/s", allreduce=kind)
    x = r.path.exchange.cost
    assert x.limited_by == "uplink" and r.path.bound(0).name == "uplink"
    ways = 1 if kind == "ring" else 2  # both ways at once, or one after the other
    assert x.seconds == pytest.approx(ways * x.wire_bytes / 2 / 100e6, rel=0.01)
    assert r.book.phases_s["synchronise"] == pytest.approx(x.seconds, rel=1e-6)
    assert 0.99 < r.book.update_s / r.path.bound(0).seconds < 1.000001


def test_a_slower_tunnel_costs_its_commands():
    """A ring step's longest hop brings ceil(4 x 1,000,003 / 6) B up, with 54 B for each 1,448 of
    them: 170 commands of 4,092 B, which a few more take down. With 1 us more for each command, or
    each signal, a step takes as much more as it has commands one way."""
    base = run(trace(), 5)
    slow = run(trace(), 5, "tunnel.command=95 us")
    size = -(-4 * 1_000_003 // 6)
    commands = -(-(size + 54 * -(-size // 1448)) // 4092)
    assert commands == 170
    late = run(trace(), 5, "tunnel.notify=11 us")
    hop = TunnelCost.of(base.path.cfg).across(size)
    assert hop.received == hop.notified == commands < hop.written < 1.1 * commands
    for r in (slow, late):
        more = r.book.phases_s["synchronise"] - base.book.phases_s["synchronise"]
        assert commands < more / 10e-6 < 1.15 * commands


def test_the_hosts_relay_is_shared_by_all_drives():
    """One thread: 8 us and 0.8 us of copying for each block up, 4.8 us for each down, of twice the
    drives' blocks. With a thread for every drive nobody waits for it."""
    one = run(trace(), 12, "tunnel.relay_threads=1")
    many = run(trace(), 12, "tunnel.relay_threads=12")
    assert one.book.bound_by("synchronise")[0] == "host relay"
    assert many.book.bound_by("synchronise")[0] == "tunnel down"
    x = one.path.exchange.cost
    work = 8e-6 * x.notifications + 4e-6 * (x.commands - x.notifications) + x.wire_bytes / 5e9
    assert x.host_cpu_s == pytest.approx(work, rel=1e-3)
    assert one.book.phases_s["synchronise"] == pytest.approx(work, rel=0.01)
    assert one.book.phases_s["synchronise"] > 1.2 * many.book.phases_s["synchronise"]


def test_tree_and_star_cross_the_host_once_or_twice():
    """Six drives: a star sends each drive's gradient up and the sum down. In a tree the four drives
    below the host's two children send theirs up and down again on both ways."""
    size = 4 * 100_003
    star, tree = (run(trace(100_003), 6, allreduce=kind) for kind in ("star", "tree"))
    assert star.book.totals.counters["tunnel_bytes"] == 12 * size
    assert tree.book.totals.counters["tunnel_bytes"] == (4 + 4 * 2 * 2) * size
    assert star.book.phases_s["synchronise"] < tree.book.phases_s["synchronise"] / 2
    for r in (star, tree):  # the host adds what it gets: 6 or 2 gradients, three passes of each
        own = sum(r.path.batches(0)[:1]) * 2 * 150_528 + (20 + 16) * 100_003
        added = 6 if r is star else 2
        moved = r.book.totals.counters["tunnel_bytes"] + 3 * added * size
        assert r.path.work(1).host_dram_bytes == own + moved


def test_one_slow_tunnel_holds_up_the_whole_ring():
    """A ring turns as fast as its slowest link: the engine says so, no formula knows of it.

    Held on every hop: it starts when the piece it sends has come, and its sender's last has gone.
    """
    devices, n = 4, 5
    cfg = load_preset("newport", [f"system.devices={devices}", *SMALL])
    path = Stannis(cfg, trace(), Options(batch="tuned"))
    system = path.system(False, 1 << 16)
    path.prepare(system, None)
    quick = TunnelCost.of(cfg).across(path.exchange.piece_bytes)
    slow = TunnelCost.of(load_preset("newport", ["tunnel.command=300 us"]))
    slow_hop = slow.across(path.exchange.piece_bytes)
    plan = np.concatenate(list(path.plan(0)))
    # Drive 2's hops take longer on its way up: a message of their own in the table of messages.
    table = system.arrays.message
    table[:] = 0
    load = system._with_message_costs

    def priced(chunk: np.ndarray) -> np.ndarray:
        chunk = load(chunk)
        table[-1] = table[int(chunk["stream"][mine := of_drive_2(chunk)][0])]
        table[-1].up = slow_hop.up_ps
        chunk["stream"][mine] = len(table) - 1
        return chunk

    def of_drive_2(chunk: np.ndarray) -> np.ndarray:
        return (chunk["resource"] == rows.TUNNEL) & (chunk["device"] == 2) & (chunk["kind"] == 2)

    system._with_message_costs = priced
    system.run([plan])
    lines = system.arrays.line[: int(system.arrays.reg.lines[0])]
    hops = plan[plan["phase"] == PHASES.index("synchronise")]
    hops = hops[hops["resource"] == rows.TUNNEL]
    assert len(hops) == 8 * n
    mine = lines[lines.phase == PHASES.index("synchronise")]
    start = np.array([mine.start[mine.row == row].min() for row in hops["id"]])
    end = np.array([mine.end[mine.row == row].max() for row in hops["id"]])
    for hop in range(n, 8 * n):
        step, node = divmod(hop, n)
        data, own = (step - 1) * n + (node - 1) % n, (step - 1) * n + node
        assert start[hop] == max(end[data], end[own])
    ring_ps = slow_hop.up_ps + quick.tail_ps
    assert end.max() - start.min() == pytest.approx(8 * ring_ps, rel=1e-3)
    assert ring_ps > 2.3 * quick.end_ps


def ancestors(plan: np.ndarray, row: int, resource: int) -> set[int]:
    """Rows of a resource that a row waits for, through joins."""
    found: set[int] = set()
    waiting = [int(plan[name][row]) for name in ("after0", "after1")]
    while waiting:
        at = waiting.pop()
        if at >= 0 and plan["resource"][at] == resource:
            found.add(at)
        elif at >= 0 and plan["resource"][at] == rows.JOIN:
            waiting += [int(plan[name][at]) for name in ("after0", "after1")]
    return found


@pytest.mark.parametrize(("samples", "devices"), [(315, 3), (4, 6)])
def test_each_node_waits_for_its_own_samples(samples, devices):
    """The host for its reads on every drive, a drive for its own; without samples, no row."""
    cfg = load_preset("newport", [f"system.devices={devices}"])
    path = Stannis(cfg, trace(samples=samples), Options(batch="same"))
    plan = np.concatenate(list(path.plan(0)))
    forward = np.flatnonzero(plan["phase"] == PHASES.index("forward"))
    _, *drives = path.batches(0)
    assert len(forward) == 1 + sum(b > 0 for b in drives)
    for row in forward:
        if plan["resource"][row] == rows.ACCELERATOR:
            wanted = plan["resource"] == rows.NVME
            found = ancestors(plan, row, rows.NVME)
        else:
            wanted = (plan["resource"] == rows.ISP_IO) & (plan["device"] == plan["device"][row])
            found = ancestors(plan, row, rows.ISP_IO)
        assert found == set(np.flatnonzero(wanted)) and found


def test_every_page_of_samples_is_read_once():
    """Over three steps the reads of each drive tile the pages that were filled."""
    r = run(trace(steps=3), 3)
    plan = np.concatenate([p for i in range(3) for p in r.path.plan(i)])
    reads = plan[np.isin(plan["resource"], (rows.NVME, rows.ISP_IO))]
    total = 0
    for dev in range(3):
        mine = reads[reads["device"] == dev]
        pages = [
            page
            for row in mine
            for page in range(row["lpn"], row["lpn"] - -row["bytes_out"] // (16 << 10))
        ]
        assert sorted(pages) == list(range(len(pages)))
        total += len(pages)
    assert total == r.system.filled_pages


def test_nodes_compute_at_their_own_speed():
    """Host 315 / 32.3 = 9.752 s; a drive 25 / 3.08 = 8.117 s; a third of each is forward."""
    r = run(trace(), 2)
    a = r.system.arrays
    busy = a.use[PHASES.index("backward")]
    fifo0 = int(a.reg.fifo0[0])
    assert busy[fifo0 + s.ACCELERATOR] / 1e12 == pytest.approx(315 / 32.3 * 2 / 3)
    for dev in range(2):
        at = fifo0 + s.station(r.system.state, dev, s.ISP)
        assert busy[at] / 1e12 == pytest.approx(25 / 3.08 * 2 / 3)
    slow = run(dataclasses.replace(trace(), name="unknown network"), 2)
    assert slow.path.ratio == 0.072  # not in Table I: the generic ratio
    assert load_preset("newport").isp.training_ratio_by_model["mobilenetv2"] == r.path.ratio


def test_the_path_and_the_fleet_have_the_same_engines():
    """Also where a drive's share of the batch is small: 315 over a host and 24 drives."""
    cfg = load_preset("newport", ["system.devices=24", *SMALL])
    t = load("mobilenetv2")
    path = Stannis(cfg, t, Options(batch="same"))
    made = of_trace(t, [cfg])
    host, drive = made.host, made.drives[0]
    forward, backward = path.seconds(0)
    batches = path.batches(0)
    took = [host.seconds(batches[0]), *(drive.seconds(b) for b in batches[1:])]
    assert (forward + backward) / 1e12 == pytest.approx(np.array(took))
    assert max(batches[1:]) < 15 and drive.speed(batches[1]) < 0.97 * 3.08


def test_the_exchange_waits_for_the_slowest_node():
    """Drives that need 4.3 s for one sample are last, and nobody sends before they are done."""
    t = dataclasses.replace(trace(), name="unknown network")
    r = run(t, 2, "isp.training_ratio=0.0072", host_batch=100)
    assert r.path.batches(0) == (100, 1, 1)  # 1.2 / 0.0072 = 167 would be tuned, 100 is its limit
    assert r.spans["synchronise"][0] / 1e12 > 1 / (32.3 * 0.0072) > 100 / 32.3 + 1


# --- batches


@pytest.mark.parametrize(
    ("devices", "samples", "wanted"),
    [
        (1, 315, (292, 23)),  # 315 x (315, 25) / 340 = 291.8, 23.2
        (3, 315, (255, 20, 20, 20)),  # 315 x (315, 3 x 25) / 390 = 254.4, 20.2: one left
        (6, 4, (3, 1, 0, 0, 0, 0, 0)),  # 4 x (315, 6 x 25) / 465 = 2.71, 0.22
    ],
)
def test_the_same_global_batch_is_split_by_eq_1(devices, samples, wanted):
    cfg = load_preset("newport", [f"system.devices={devices}"])
    t = trace(samples=samples, forward_s=samples / 32.3 / 3, backward_s=samples / 32.3 * 2 / 3)
    path = Stannis(cfg, t, Options(batch="same"))
    assert path.batches(0) == wanted
    assert path.global_batch == sum(wanted) == samples
    idle = [note for note in path.notes() if "get no sample" in note]
    assert idle == (
        [
            f"5 of 6 drives get no sample: the share of a drive in a batch of {samples} is 0.22 "
            "samples; --batch tuned gives each drive at least one sample"
        ]
        if devices == 6
        else []
    )


def test_a_drive_without_samples_trains_nothing_but_stays_in_the_ring():
    r = run(trace(samples=4), 6, batch="same")
    busy = r.system.arrays.use[PHASES.index("forward")]
    fifo0 = int(r.system.arrays.reg.fifo0[0])
    trained = [int(busy[fifo0 + s.station(r.system.state, d, s.ISP)]) > 0 for d in range(6)]
    assert trained == [True, False, False, False, False, False]
    assert r.book.update_s == pytest.approx(r.path.bound(0).seconds, rel=1e-6)


def test_paper_batches_grow_with_the_drives():
    cfg = load_preset("newport", ["system.devices=3"])
    assert Stannis(cfg, trace(), Options(batch="tuned")).global_batch == 315 + 3 * 25
    half = Stannis(cfg, trace(), Options(batch="tuned", host_batch=158))
    # 158 x 0.0954 / 1.2 = 12.6; 1.2 x 12 / 3.08 = 4.675 s, (b + 1) / 316 x 9.752 s: 150.5, not the
    # 151 of a constant speed; the nearer time is that of 150
    assert half.batches(0) == (150, 12, 12, 12)


# --- steps


def test_steps_follow_each_other():
    one, three = run(trace(), 2), run(trace(steps=3), 2)
    assert len(three.book.totals.steps) == 3
    assert three.book.step_s == pytest.approx(one.book.step_s, rel=1e-3)
    assert three.book.totals.counters["isp_read_bytes"] == 3 * 2 * 25 * 150_528
    assert three.system.filled_pages == 3 * one.system.filled_pages  # other samples every step


def test_a_skipped_step_exchanges_and_does_not_update():
    r = run(trace(skipped=True, found_inf=True), 2)
    assert "update" not in r.spans
    assert r.book.update_s == pytest.approx(r.path.bound(0).seconds, rel=1e-6)
    assert r.book.totals.counters["isp_bytes"] == 0
    done = run(trace(), 2)
    # Momentum: read w, m, g and write w, m, 20 B per parameter on each drive.
    assert done.book.totals.counters["isp_bytes"] == 2 * 20 * 1_000_003
    assert done.path.bound(0).seconds > r.path.bound(0).seconds


def test_the_bound_that_is_printed_counts_skipped_steps_as_they_are():
    """Two steps, one of them skipped: two exchanges, one update."""
    t = trace(steps=2)
    skipped = dataclasses.replace(t.steps[0], skipped=True, found_inf=True)
    t = dataclasses.replace(t, steps=(skipped, t.steps[1]), digest=None)
    cfg = load_preset("newport", ["system.devices=2", *SMALL])
    result = run_path("stannis", cfg, t, Options(batch="tuned"), steps=2, payload=False)
    assert result.ledger is not None and result.bound is not None
    assert result.ledger.update_s == pytest.approx(result.bound.seconds, rel=1e-6)
    assert result.ledger.samples == 315 + 2 * 25 and result.notes
    assert "update 0 s" not in result.bound.text


def test_rows_in_small_chunks_are_the_same_plan(monkeypatch):
    cfg = load_preset("newport", ["system.devices=5"])

    def plan(size):
        monkeypatch.setattr(rows, "MAX_CHUNK", size)
        return list(Stannis(cfg, trace(), Options(batch="tuned")).plan(0))

    (whole,), parts = plan(1 << 18), plan(16)
    assert len(parts) > 5
    assert (np.concatenate(parts) == whole).all()


def test_host_work_and_energy_are_counted():
    """Per image: (328.5 + 0.919 N) W x step / samples, as the server's fit has it."""
    r = run(trace(), 4)
    work = r.path.work(1)
    piece = r.path.exchange.piece_bytes
    # FP16 gradient from the accelerator 2 B, cast 2 + 4 B; weights cast 4 + 2 B, and back 2 B
    traffic = 2 * 315 * 150_528 + 8 * 8 * piece + 3 * 4 * piece + (20 + 16) * 1_000_003
    assert (work.host_dram_bytes, work.host_updates) == (traffic, True)
    joules = energy(r.path.cfg, r.book.totals, work)
    # Drives idle from their own end to the host's, and while they synchronise: 0.15 W x 4 each.
    busy = 25 / 3.08 / r.book.step_s
    watts = 328.5 + 4 * (0.319 + 0.6 * busy)
    assert joules.all[1] == pytest.approx(watts * r.book.step_s, rel=2e-3)


# --- what it cannot run on


@pytest.mark.parametrize(
    ("overrides", "changes", "words"),
    [
        (("isp.kind=none",), {}, "the drive has no processor"),
        (("tunnel.payload=0",), {}, "no tunnel"),
        (("isp.training_ratio=0",), {"name": "unknown"}, "cannot train"),
        ((), {"bytes_per_sample": 0}, "bytes_per_sample = 0"),
        (
            (),
            {"forward_s": 0.0, "backward_s": 0.0},
            "does not state the times of forward and backward",
        ),
        # 4 B x (w, m, g) x 600 M = 7.2 GB
        ((), {"n_params": 600_000_000}, "take 7.2 GB on every node, more than dram.isp = 6 GB"),
        (("host.dram=6 GB", "dram.isp=8 GB"), {"n_params": 600_000_000}, "host.dram = 6 GB"),
        ((), {"dataset_samples": 10**12}, "the data set takes"),
    ],
)
def test_reasons(overrides, changes, words):
    cfg = load_preset("newport", ["system.devices=2", *overrides])
    with pytest.raises(Unavailable, match=words) as caught:
        Stannis(cfg, trace(**changes), Options())
    assert str(caught.value).startswith("stannis: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize("preset", ["gen4-tlc", "smartssd", "optimstore-r1"])
def test_drives_without_a_processor_that_trains(preset):
    with pytest.raises(Unavailable, match="no processor|cannot train|no tunnel"):
        Stannis(load_preset(preset), trace(), Options())


def test_bad_options():
    cfg = load_preset("newport")
    for bad, message in (
        ({"batch": "papr"}, 'batch = "papr": use "same", "paper", "tuned" or "given"'),
        ({"drive_batch": 3}, 'drive_batch = 3 requires batch = "given", not "same"'),
        ({"batch": "given"}, 'batch = "given" requires drive_batch'),
        ({"batch": "given", "host_batch": 9}, 'batch = "given" requires drive_batch'),
        ({"host_batch": 0}, "host_batch = 0: must be from 1 to"),
        ({"allreduce": "rings"}, 'allreduce = "rings": use "ring", "tree" or "star"'),
        ({"cores_taken": 8}, "cores_taken = 8: must be at least 0 and less than the host's 8"),
        ({"slowdown": "line"}, 'slowdown = "line": '),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            Stannis(cfg, trace(), Options(**bad))


def test_as_a_command(capsys, tmp_path):
    """--allreduce; what the tunnel did is in result.json."""
    found = {}
    for kind in ("ring", "star"):
        words = ["--device", "newport", "--devices", "3", "--paths", "stannis", "--no-swing",
                     "--verbose"]  # fmt: skip
        sets = [word for key in SMALL for word in ("--set", key)]
        out = tmp_path / kind
        done = here(capsys, "compare", "mobilenetv2", *words, *sets, "--allreduce", kind,
                    "--out", out)  # fmt: skip
        assert (done.code, done.err) == (0, "") and "host relay" in done.out
        result = json.loads((out / "result.json").read_text())
        assert result["options"]["allreduce"] == kind
        (path,) = result["paths"]
        found[kind] = {name: m["value"] for name, m in path["metrics"].items()}
    cost = TunnelCost.of(load_preset("newport"))
    for kind, metrics in found.items():
        x = exchange(kind, 4 * load("mobilenetv2").n_params, 3, cost)
        assert metrics["tunnel_commands"] == x.commands + x.notifications
        assert metrics["tunnel_bytes"] == x.bytes_up + x.bytes_down
        assert metrics["host_relay_cpu_s"] == pytest.approx(x.host_cpu_s)
    refused(here(capsys, "compare", "mobilenetv2", "--allreduce", "butterfly"), "--allreduce")


def test_it_says_that_it_is_timing():
    assert Stannis.updates_weights is False
    path = Stannis(load_preset("newport"), trace(), Options())
    assert path.notes()[0].startswith("timing only") and path.finish() is None
    assert path.batches(0)[HOST_NODE] == 292
