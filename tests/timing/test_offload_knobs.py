"""Does each knob of host offload do to the time what the arithmetic says?

FACTS used: aio: block size, queue depth, threads; serial T = N(16/R + 12/W + 1/c); RAID 0 behind a
shared uplink reads at the smaller of N drives and the uplink.
"""

from dataclasses import replace

import pytest

from ondie.emu.analysis.compare import run_path
from ondie.emu.analysis.path_choice import PATHS
from ondie.emu.config.config import load_preset
from ondie.emu.paths.base import Options, Unavailable
from ondie.emu.paths.offload.options import Offload
from ondie.emu.validate import model

N = 1 << 22


def update(*settings, path="host_offload", n=N, **knobs):
    """Ledger and closed form of one step on R1."""
    cfg = load_preset("optimstore-r1", settings)
    options = Options(offload=Offload(**knobs))
    return run_path(path, cfg, model("adam", n), options, steps=1, payload=False)


def seconds(*settings, **knobs):
    return update(*settings, **knobs).ledger.update_s


def test_one_block_in_flight_takes_its_latency():
    """Queue depth 1 and one thread: 16 blocks of each vector take 16 times as long as one, and
    several in flight do not."""
    one = {"host.io_queue_depth=1": 1, "host.io_queue_depth=8": 1}
    for depth in one:
        large, small = (
            seconds(depth, threads=1, n=n) - n / 800e6 for n in (N, N // 16)
        )  # fmt: skip
        one[depth] = large / small
    assert one["host.io_queue_depth=1"] == pytest.approx(16, rel=0.01)
    assert one["host.io_queue_depth=8"] < 14


def test_threads_have_a_queue_each():
    """Two threads with one block each are one thread with two, as long as nothing else binds."""
    two_threads = seconds("host.io_queue_depth=1", threads=2)
    depth_two = seconds("host.io_queue_depth=2", threads=1)
    assert two_threads == pytest.approx(depth_two, rel=0.02)
    assert two_threads < 0.75 * seconds("host.io_queue_depth=1", threads=1)


def test_a_handle_is_of_the_volume_not_of_the_drive():
    """Two blocks in flight over four drives are two drives at work; four threads feed all."""
    settings = ("system.devices=4", "host.io_queue_depth=2")
    few, many = (seconds(*settings, threads=t) for t in (1, 8))
    each = seconds(*settings)
    assert many == pytest.approx(seconds("system.devices=4", "host.io_queue_depth=4"), rel=0.02)
    assert few > 1.5 * many and few > 1.3 * each


def test_without_overlap_of_events_a_queue_drains_before_it_fills():
    """Depth 1 has nothing to overlap; at depth 2 a batch waits for its slower block."""
    one = [seconds("host.io_queue_depth=1", threads=1, overlap_events=x) for x in (True, False)]
    two = [seconds("host.io_queue_depth=2", threads=1, overlap_events=x) for x in (True, False)]
    assert one[0] == one[1]
    assert two[0] < two[1] < one[0]


def test_what_is_pipelined_overlaps():
    """Sub-groups of 2 MiB values: reads, computations and writes of neighbours at once. With a slow
    CPU reading ahead hides reads, writing behind hides writes, both hide both."""
    settings = ("host.subgroup_params=524288", "host.adam=100 Mparam/s")
    times = {
        (r, w): update(*settings, pipeline_read=r, pipeline_write=w)
        for r in (False, True)
        for w in (False, True)
    }
    cpu, groups = N / 100e6, 8
    read, write = (N * b / 6.3e9 for b in (16, 12))
    by_hand = {
        (False, False): cpu + read + write,
        (True, False): cpu + write + read / groups,
        (False, True): cpu + read + write / groups,
        (True, True): cpu + (read + write) / groups,
    }
    for key, result in times.items():
        assert result.ledger.update_s == pytest.approx(by_hand[key], rel=0.04), key
        assert result.ledger.update_s == pytest.approx(result.bound.seconds, rel=0.03), key
    both = times[True, True].ledger.update_s
    assert seconds(*settings, path="host_offload_pipelined") == both


def test_too_few_buffers_for_the_overlap_stop_deepspeed():
    """Adam's four arrays: twelve buffers are three sub-groups, which reads and writes in the
    background need; two with one of them; and never more than there are sub-groups."""
    settings = ("host.subgroup_params=524288",)
    both = {"pipeline_read": True, "pipeline_write": True}
    assert seconds(*settings, buffers=12, **both) == seconds(*settings, **both)
    with pytest.raises(Unavailable, match="buffers=11: DeepSpeed stops.* at least 12"):
        update(*settings, buffers=11, **both)
    with pytest.raises(Unavailable, match="buffers=7: .* at least 8"):
        update(*settings, buffers=7, pipeline_read=True)
    assert seconds(*settings, buffers=8, pipeline_write=True) > 0
    assert seconds(buffers=4, **both) > 0  # one sub-group


def test_the_title_of_the_row_follows_the_options():
    settings = ("host.subgroup_params=524288",)
    assert update(*settings).title == "host offload, serial"
    read = update(*settings, pipeline_read=True)
    assert read.title == "host offload, pipelined reads"
    assert read.notes == ("This path is not serial: pipeline_read is switched on by the options.",)
    both = update(*settings, pipeline_read=True, pipeline_write=True)
    assert both.title == "host offload, pipelined reads and writes"
    assert both.ledger.update_s < read.ledger.update_s < update(*settings).ledger.update_s


def test_buffers_that_hold_no_sub_group():
    """Adam's four arrays in three buffers: refused. Where nothing is on NVMe there is no need."""
    options = Options(offload=Offload(buffers=3))
    cfg, trace = load_preset("optimstore-r1"), model("adam", 1_000_000)
    with pytest.raises(Unavailable, match="buffers=3: DeepSpeed stops.* at least 4"):
        run_path("host_offload", cfg, trace, options, steps=1, payload=False)
    options = Options(offload=Offload(buffers=3, ratio=0.0))
    run_path("host_offload", cfg, trace, options, steps=1, payload=False)


def test_a_tensor_as_large_as_its_buffer_stops_deepspeed():
    cfg, trace = load_preset("optimstore-r1"), model("adam", 1_000_000)
    for size, stops in ((1_000_000, True), (1_000_001, False), (0, False)):
        offload = Offload(parameters=True, parameter_buffer=size)
        if stops:
            with pytest.raises(Unavailable, match="DeepSpeed stops: .* 1,000,000 elements"):
                PATHS["host_offload"](cfg, trace, Options(offload=offload))
        else:
            PATHS["host_offload"](cfg, trace, Options(offload=offload))
    kept = Offload(parameters=True, parameter_buffer=10, parameters_in_dram=1_000_000)
    PATHS["host_offload"](cfg, trace, Options(offload=kept))


def test_what_stays_in_dram_costs_the_cpu_alone():
    """Of eight sub-groups six on NVMe, three of four."""
    settings = ("host.subgroup_params=524288",)
    whole, most, none = (update(*settings, ratio=r) for r in (1.0, 0.75, 0.0))
    cpu = N / 800e6
    assert none.ledger.update_s == pytest.approx(cpu, rel=1e-6)
    io = whole.ledger.update_s - cpu
    assert most.ledger.update_s - cpu == pytest.approx(0.75 * io, rel=0.01)
    c = most.ledger.totals.counters
    assert (c["host_read_bytes"], c["host_write_bytes"]) == (12 * N, 12 * N)


@pytest.mark.parametrize("devices", [1, 2, 4, 6])
def test_drives_behind_one_uplink(devices):
    """Drives of 6.3 GB/s (channels) behind 16 GB/s: with four and more the uplink binds. All drives
    carry the same, and the bytes are those of one."""
    n = 3 << 22
    r = update(f"system.devices={devices}", "link.uplink=16 GB/s", n=n)
    rate = min(devices * 8 * 8192 / (8192 / 800e6 + 150e-9), 16e9)
    assert r.ledger.update_s == pytest.approx(n * (28 / rate + 1 / 800e6), rel=0.03)
    c = r.ledger.totals.counters
    assert (c["host_read_bytes"], c["host_write_bytes"]) == (16 * n, 16 * n)


def test_parameters_are_read_ahead_of_their_computation():
    """64 portions: forward takes the longer of reading and computing, and the first read alone
    with buffers for several; with one buffer, their sum."""
    compute = 4e-3
    trace = model("adam", N)
    trace = replace(trace, steps=(replace(trace.steps[0], forward_s=compute),))
    read = 2 * N / 6.3e9
    took = {}
    for buffers in (1, 8):
        options = Options(offload=Offload(parameters=True, parameter_buffers=buffers))
        cfg = load_preset("optimstore-r1")
        r = run_path("host_offload", cfg, trace, options, steps=1, payload=False)
        took[buffers] = r.ledger.phases_s["forward"]
    assert took[8] == pytest.approx(max(compute, read), rel=0.1)
    assert took[1] > compute + 0.9 * read
