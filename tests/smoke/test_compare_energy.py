"""Is the energy of a run the sum of quantities times constants, each charged once?"""

import dataclasses
import json
import math

import pytest

from ondie import traces
from ondie.emu.analysis.compare import Result, compare
from ondie.emu.analysis.energy import (
    COMPUTE_PART,
    DRIVE_PART,
    HOST_PART,
    Energy,
    components,
    energy,
)
from ondie.emu.analysis.result_json import metrics
from ondie.emu.config.config import Config, load_preset
from ondie.emu.validate import model
from tests.smoke.commands import BY_SMALL, SHORT, SMALL, here, small_for

N = 1_000_000
FORWARD_S, BACKWARD_S = 2, 1
MACHINES = {
    "optimstore-r1": (),
    "newport": (*SHORT, "system.devices=2"),
    "gen4-tlc": small_for("gen4-tlc")[2:],
    "smartssd": SHORT,
    "laguna": SHORT,
    "optimstore-r2": SMALL,  # so small that blocks are erased
}

LDPC = (
    "ecc.code=ldpc", "ecc.codeword=4 KiB", "ecc.correctable_bits=302", "errors.kind=rate",
    "errors.rate=7e-3", "ecc.decode=500 ns",
)  # fmt: skip
"""A real code near its limit: most decodings take longer than ecc.decode."""


def training(n_params: int = N, op: str = "adam") -> traces.Trace:
    """A model that trains for FORWARD_S + BACKWARD_S seconds a step."""
    trace = model(op, n_params)
    step = dataclasses.replace(
        trace.steps[0], forward_s=float(FORWARD_S), backward_s=float(BACKWARD_S), samples=64
    )
    return dataclasses.replace(trace, steps=(step,), samples_per_step=64, bytes_per_sample=1000)


@pytest.fixture(scope="module")
def runs() -> list[tuple[Config, Result]]:
    found = []
    for preset, overrides in MACHINES.items():
        cfg = load_preset(preset, overrides)
        found += [(cfg, r) for r in compare(training(), cfg, swing=False).results if r.ledger]
    coded = load_preset("optimstore-r2", (*SMALL, "pe.protection=on_die_ecc", "pe.cipher=die"))
    ldpc = load_preset("optimstore-r2", (*SMALL, *LDPC))
    for cfg, path in ((coded, "on_die"), (ldpc, "host_offload")):
        found += [(cfg, r) for r in compare(training(), cfg, paths=[path], swing=False).results]
    return found


@pytest.fixture(scope="module")
def one(runs) -> dict[str, tuple[Config, Result]]:
    """The paths on optimstore-r1 by name."""
    return {r.name: (cfg, r) for cfg, r in runs if cfg.system.name == "optimstore-r1"}


def typical(e: Energy) -> dict[str, float]:
    return {name: span[1] for name, span in e.by_component.items()}


def test_components_add_up(runs):
    for cfg, r in runs:
        e = r.energy
        group = {p.name: p.group for p in components(cfg, r.ledger.totals, r.work)}
        assert set(group) == set(e.by_component)
        for name, whole in ((DRIVE_PART, e.drive), (HOST_PART, e.host), (COMPUTE_PART, e.compute)):
            for end in range(3):
                parts = (span[end] for part, span in e.by_component.items() if group[part] == name)
                assert whole[end] == pytest.approx(math.fsum(parts), rel=1e-12)
        for end in range(3):
            everything = math.fsum(span[end] for span in e.by_component.values())
            assert e.all[end] == pytest.approx(everything, rel=1e-12)
            outside = everything - e.compute[end]
            assert e.storage_and_host[end] == pytest.approx(outside, rel=1e-9)


def test_low_is_at_most_typical_is_at_most_high(runs):
    for _, r in runs:
        e = r.energy
        for low, middle, high in (*e.by_component.values(), e.drive, e.host, e.compute, e.all):
            assert 0 <= low <= middle <= high
        assert e.storage_and_host[0] < e.storage_and_host[1] < e.storage_and_host[2]


def test_without_ranges_there_is_no_interval(one):
    cfg, r = one["on_die"]
    fixed = cfg.replace({leaf.key: leaf.value for leaf in cfg.leaves()})
    e = energy(fixed, r.ledger.totals, r.work)
    assert typical(e) == typical(r.energy)
    assert all(low == middle == high for low, middle, high in (*e.by_component.values(), e.all))


def test_an_end_of_the_interval_is_every_constant_at_that_end(one):
    """Of what has a range, whether it is assumed or published."""
    cfg, r = one["host_offload"]
    for end, name in ((0, "low"), (2, "high")):
        ends = {x.key: getattr(x, name) for x in cfg.leaves() if x.low is not None and x.unit}
        e = energy(cfg.replace(ends), r.ledger.totals, r.work)
        assert e.all[1] == r.energy.all[end]


def test_doubling_a_constant_doubles_its_component_and_no_other(runs):
    used = set()
    for cfg, r in runs:
        parts = components(cfg, r.ledger.totals, r.work)
        for key in {p.key for p in parts}:
            used.add(key)
            double = cfg.replace({key: 2 * cfg.leaf(key).value})
            e = typical(energy(double, r.ledger.totals, r.work))
            for p in parts:
                factor = 2 if p.key == key else 1
                assert e[p.name] == factor * typical(r.energy)[p.name], (r.name, key, p.name)
    # Every constant of energy is charged somewhere.
    prices = {x.key for cfg, _ in runs for x in cfg.leaves() if x.key.startswith("energy.")}
    prices |= {"link.energy", "host.dram_energy", "host.update_power", "host.wait_power"}
    assert used == prices | {"host.compute_power", "host.accelerator_wait_power"}


def cpu_jobs(r: Result) -> list[tuple[float, float]]:
    """Jobs of the host's CPU in the timeline, as (start, end) ps."""
    assert r.timeline is not None and not r.dropped
    tracks = {e["tid"]: e["args"]["name"] for e in r.timeline if e["name"] == "thread_name"}
    (cpu,) = (track for track, name in tracks.items() if name == "host CPU")
    return [
        (e["ts"] * 1e6, (e["ts"] + e["dur"]) * 1e6)
        for e in r.timeline
        if e["ph"] == "X" and e["tid"] == cpu
    ]


# --- by hand

KEYS = {
    "NAND read": "energy.nand_read",
    "NAND program": "energy.nand_program",
    "ECC": "energy.ecc",
    "channels": "energy.channel",
    "drive DRAM": "energy.dram",
    "PCIe": "link.energy",
    "host DRAM": "host.dram_energy",
    "PE additions": "energy.pe_add",
    "PE multiplications": "energy.pe_multiply",
    "page registers": "energy.register",
}


def joules(cfg: Config, component: str, quantity: int) -> float:
    return quantity * cfg.leaf(KEYS[component]).value * 1e-15


def test_host_offload_by_hand(one):
    """1,000,000 FP32 values take 4,000,000 B = 488.3, so 489 pages of 8192 B.

    Written: g, then w, m, v; read: w, m, v, g: 4 vectors each way, 1956 pages of 65,536 bits.
    ECC and channels see the pages of both ways; link: 32 B/param; DRAM of the drive twice that.
    Host DRAM per parameter: FP16 gradient in 2 B, cast 2 + 4 B, out to flash 4 B, back 4 B,
    unscaled 4 + 4 B; w m v in 12 B and out 12 B; the update itself, r w m v g, w w m v, 28 B;
    w cast 4 + 2 B and out to the accelerator 2 B: 84 B.
    """
    cfg, r = one["host_offload"]
    e = typical(r.energy)
    bits = 1956 * 8192 * 8
    assert e["NAND read"] == pytest.approx(joules(cfg, "NAND read", bits))
    assert e["NAND program"] == pytest.approx(joules(cfg, "NAND program", bits))
    assert e["ECC"] == pytest.approx(joules(cfg, "ECC", 2 * bits))
    assert e["channels"] == pytest.approx(joules(cfg, "channels", 2 * bits))
    assert e["PCIe"] == pytest.approx(joules(cfg, "PCIe", 32 * N * 8))
    assert e["drive DRAM"] == pytest.approx(joules(cfg, "drive DRAM", 2 * 32 * N * 8))
    assert e["host DRAM"] == pytest.approx(joules(cfg, "host DRAM", 84 * N * 8))
    assert not {"PE additions", "PE multiplications", "page registers", "ISP busy"} & set(e)


def test_on_die_by_hand(one):
    """A stripe holds 2048 parameters: 489 stripes, 1,001,472 values with the padding.

    BPR senses w, m, v of each: 1467 pages, and the weights are read once more for the host: 489.
    BPP programs 1467. Passes: LVS, QVS, ISQRT, VMUL, LVS: 1 + 1 + 2 + 0 + 1 = 5 additions,
    2 + 3 + 4 + 1 + 2 = 12 multiplications, 2 + 2 + 1 + 2 + 2 = 9 values read and 5 written.
    Channels: gradients of 489 pages in, weights of 489 pages out; the link carries the same.
    Drive DRAM: gradients in and out again, weights in twice and out: 4 x 489 pages.
    Host DRAM per parameter: FP16 gradient in 2 B, cast 2 + 4 B, out 4 B; w in 4 B, cast 4 + 2 B,
    out to the accelerator 2 B: 24 B.
    """
    cfg, r = one["on_die"]
    e = typical(r.energy)
    page = 8192 * 8
    values = 489 * 2048
    assert e["NAND read"] == pytest.approx(joules(cfg, "NAND read", (1467 + 489) * page))
    assert e["NAND program"] == pytest.approx(joules(cfg, "NAND program", 1467 * page))
    assert e["PE additions"] == pytest.approx(joules(cfg, "PE additions", 5 * values))
    assert e["PE multiplications"] == pytest.approx(joules(cfg, "PE multiplications", 12 * values))
    assert e["page registers"] == pytest.approx(joules(cfg, "page registers", 14 * 32 * values))
    assert e["channels"] == pytest.approx(joules(cfg, "channels", 2 * 489 * page))
    assert e["drive DRAM"] == pytest.approx(joules(cfg, "drive DRAM", 4 * 489 * page))
    assert e["host DRAM"] == pytest.approx(joules(cfg, "host DRAM", 24 * N * 8))
    assert "ECC" not in e


def test_power_by_phase(one):
    """Power x time. While it trains (2 s + 1 s), host and accelerator draw compute_power. For the
    rest of the step the accelerator waits, and the host draws update_power while its CPU updates
    1,000,000 parameters at 0.8 Gparam/s, which is 1.25 ms, and wait_power otherwise."""
    for name, busy_s in (
        ("host_offload", 1.25e-3),
        ("host_offload_pipelined", 1.25e-3),
        ("in_storage", 0.0),
        ("on_die", 0.0),
    ):
        cfg, r = one[name]
        e = typical(r.energy)
        rest_s = r.ledger.step_s - (FORWARD_S + BACKWARD_S)
        assert 0.002 < rest_s < 1
        assert e.get("host busy", 0.0) == pytest.approx(120 * busy_s)
        assert e["host waiting"] == pytest.approx(88 * (rest_s - busy_s), rel=1e-9)
        assert e["accelerator waiting"] == pytest.approx(80 * rest_s, rel=1e-9)
        assert e["host and accelerator power"] == pytest.approx(3 * 400)
        assert e["controller"] == pytest.approx(3 * rest_s, rel=1e-9)
        assert e["waiting controller"] == pytest.approx(3 * 3)
        if name in ("in_storage", "on_die"):  # the idle processor draws 50 mW in the whole step
            busy = r.ledger.totals.busy_sum_ps.get("ISP", 0) / 1e12
            assert e["ISP idle"] == pytest.approx(0.05 * (rest_s - busy), rel=1e-9)
            assert e["waiting ISP"] == pytest.approx(0.05 * 3)


def test_a_busy_cpu_is_paid_for_the_time_that_the_timeline_shows():
    """The union of the CPU's jobs outside forward and backward, from the timeline."""
    for paths, preset in ((["host_offload"], "optimstore-r1"), (["smart_base"], "smartssd")):
        cfg = load_preset(preset, ["system.devices=3", "host.subgroup_params=300000"])
        cfg = cfg.replace({"host.adam": "10 Mparam/s"})
        (r,) = compare(training(), cfg, paths=paths, swing=False, timeline=100_000).results
        spans = r.ledger.totals.steps[0]
        trained = max(spans["forward"][1], spans["backward"][1])
        jobs = sorted((max(start, trained), stop) for start, stop in cpu_jobs(r) if stop > trained)
        union, end = 0, 0
        for start, stop in jobs:
            union += max(stop - max(start, end), 0)
            end = max(end, stop)
        assert len(jobs) > 3
        watts = cfg.host.update_power_mw / 1e3
        assert typical(r.energy)["host busy"] == pytest.approx(watts * union / 1e12, rel=1e-6)


def test_a_stage_of_known_length_by_hand():
    """Adam of 1000 parameters at 1 kparam/s on the host's CPU: it is busy for 1 s; at 180 W that is
    180 J, and it waits for a few hundred microseconds. SGD moves 12 of Adam's 28 B/param."""
    cfg = load_preset("optimstore-r1", ["host.adam=1000 param/s", "host.update_power=180 W"])
    for op, seconds in (("adam", 1.0), ("sgd", 12 / 28)):
        (r,) = compare(training(1000, op), cfg, paths=["host_offload"], swing=False).results
        assert seconds < r.ledger.update_s < seconds + 0.001
        assert typical(r.energy)["host busy"] == pytest.approx(180 * seconds, rel=1e-9)
        assert 0 < typical(r.energy)["host waiting"] < 88 * 0.001


def test_a_cpu_that_takes_no_time_is_not_paid_while_flash_works():
    """The same stage with a CPU a million times as fast: the host's busy energy vanishes, although
    the update stage lasts as long as flash takes."""
    cfg = load_preset("optimstore-r1", ["host.adam=1e7 Gparam/s", "host.dram_bandwidth=1e9 GB/s"])
    (r,) = compare(training(), cfg, paths=["host_offload"], swing=False).results
    e = typical(r.energy)
    assert e["host busy"] < 1e-6 * e["host waiting"]


def test_a_shared_uplink_is_a_second_port(one):
    cfg, r = one["host_offload"]
    shared = cfg.replace({"link.uplink": "1 TB/s"})
    (again,) = compare(training(), shared, paths=["host_offload"], swing=False).results
    assert again.ledger.totals.bytes_by["link up"] == r.ledger.totals.bytes_by["link up"]
    assert typical(again.energy)["PCIe"] == 2 * typical(r.energy)["PCIe"]


def test_two_drives_wait_twice_as_much():
    """Idle power is per drive, while the bits that move are the same."""
    cfg = load_preset("optimstore-r1")
    one, two = (
        compare(training(), cfg.replace({"system.devices": n}), paths=["in_storage"], swing=False)
        for n in (1, 2)
    )
    a, b = (typical(c.results[0].energy) for c in (one, two))
    assert b["waiting controller"] == 2 * a["waiting controller"]
    assert b["NAND program"] == pytest.approx(a["NAND program"], rel=0.02)


def test_a_busy_processor_is_paid_by_core():
    """Four cores at 250 mW: 1 W while the processor computes, 10 mW while it waits."""
    words = ["isp.cores=4", "isp.frequency=100 MHz", "energy.isp_core=250 mW"]
    cfg = load_preset("newport", [*SMALL, *words, "energy.isp_idle=10 mW"])
    (r,) = compare(training(100_000), cfg, paths=["in_storage"], swing=False).results
    e = typical(r.energy)
    busy_s = r.ledger.totals.busy_sum_ps["ISP"] / 1e12
    outside_s = r.ledger.step_s - (FORWARD_S + BACKWARD_S)
    assert 0.001 < busy_s < outside_s
    assert e["ISP busy"] == pytest.approx(1.0 * busy_s)
    assert e["ISP idle"] == pytest.approx(0.01 * (outside_s - busy_s), rel=1e-6)


# --- what is reported


def test_metrics_are_per_step_and_per_sample(one, capsys, tmp_path):
    words = ["compare", "mlp-fp16", "--no-swing", *BY_SMALL, "--out", tmp_path]
    assert here(capsys, *words, "--steps", "4").code == 0
    for path in json.loads((tmp_path / "result.json").read_text())["paths"]:
        if path["status"] != "ok":
            continue
        m = {name: entry["value"] for name, entry in path["metrics"].items()}
        parts = path["energy_j_per_step"]
        for end, name in enumerate(("low", "typical", "high")):
            whole = math.fsum(span[end] for span in parts.values())
            assert m[f"energy_all_{name}_j"] == pytest.approx(whole, rel=1e-12)
            for group in ("drive", "drive_and_host", "all"):
                per_sample = m[f"energy_{group}_{name}_j_per_sample"]
                assert per_sample * m["samples_per_step"] == pytest.approx(
                    m[f"energy_{group}_{name}_j"]
                )
            assert m[f"energy_drive_{name}_j"] < m[f"energy_drive_and_host_{name}_j"]
            assert m[f"energy_drive_and_host_{name}_j"] < m[f"energy_all_{name}_j"]


def test_twice_the_steps_is_twice_the_energy_and_the_same_per_step():
    cfg = load_preset("optimstore-r1", ["ftl.initial=fresh"])  # no erases, which come in blocks
    trace = training()
    two = tuple(dataclasses.replace(trace.steps[0], index=i) for i in range(2))
    a = compare(trace, cfg, paths=["on_die"], swing=False)
    b = compare(dataclasses.replace(trace, steps=two), cfg, paths=["on_die"], steps=2, swing=False)
    once, twice = (c.results[0].energy for c in (a, b))
    assert typical(twice)["NAND program"] == 2 * typical(once)["NAND program"]
    per_step = [metrics(c, c.results[0])["energy_drive_typical_j"]["value"] for c in (a, b)]
    assert per_step[1] == pytest.approx(per_step[0], rel=0.01)
