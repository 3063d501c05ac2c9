"""Does a run whose books do not balance fail, with one line, exit code 1 and nothing written?"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator

import pytest

from ondie import traces
from ondie.emu.analysis.compare import Run, compare
from ondie.emu.analysis.ledger import ledger
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core.conservation import Imbalance, Place, evaluate, laws_at
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.core.totals import Totals
from ondie.emu.engine.run import system
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.paths.base import Options
from ondie.emu.validate import model
from tests.smoke.commands import BY_SMALL, SMALL, files, here, refused
from tests.state import models as small

CROWDED = tuple(x for x in SMALL if "blocks_per_plane" not in x and "gc_low" not in x)
CROWDED += ("flash.blocks_per_plane=16", "ftl.over_provisioning=0.5", "ftl.gc_low_blocks=4")
"""So little room that collection has to move pages."""
MANAGED: dict[str, dict[str, str]] = {
    "as it is": {},
    "failures": {"ftl.program_failures": "0.001", "flash.blocks_per_plane": "20"},
    "levelled": {"ftl.erase": "collected", "ftl.wear_static_cycles": "2"},
    "copy-back": {"ftl.gc_copyback": "true"},
    "sectors": {"ftl.partial_pages": "sectors"},
    "mapping units": {"ftl.mapping_unit": "4 KiB", "ftl.reservoir_fraction": "0"},
    "word lines": {
        "flash.programming": "two_pass", "flash.cell": "MLC", "flash.t_program_second": "500 us",
        "pe.kind": "none", "ftl.reservoir_fraction": "0",
    },
    "one bit per cell": {
        "ftl.pslc": "static", "ftl.pslc_share": "0.1", "flash.cell": "MLC", "pe.kind": "none",
        "ftl.reservoir_fraction": "0",
    },
    "lone planes": {"pe.kind": "none", "flash.plane_reads": "alone"},
    "errors": {
        "errors.kind": "model", "flash.cell": "TLC", "errors.floor": "7e-3", "ecc.retries": "3",
        "ecc.soft_reads": "2", "ecc.soft_gain": "1.05", "ecc.decode_limit": "20 us",
        "ecc.soft_decode": "40 us", "ecc.retry_gain": "0.5",
        "ftl.reclaim_retries": "4",
    },
    "real code": {
        "errors.kind": "model", "flash.cell": "TLC", "errors.floor": "4e-3", "ecc.retries": "2",
        "errors.retention": "8e-3", "errors.retention_exponent": "0", "errors.initial_days": "1",
        "ecc.retry_gain": "0.1", "ecc.code": "ldpc", "ecc.codeword": "4 KiB",
        "ecc.correctable_bits": "302", "ecc.soft_reads": "0", "ecc.decode": "500 ns",
    },
    "upkeep": {
        "errors.kind": "model", "errors.floor": "1e-4", "ftl.refresh_age": "2 ms",
        "ftl.scrub_interval": "1 ms",
    },
    "suspension": {"flash.suspend": "program_erase", "flash.max_suspends": "4"},
    "data cache": {"cache.mode": "read_write", "cache.capacity": "2 MiB"},
    "large data cache": {
        "cache.mode": "read_write", "cache.capacity": "64 MiB", "cache.dirty_share": "0.9",
    },
    "messages": {
        "frontend.doorbell": "4 B", "frontend.request": "24 B", "frontend.entry": "64 B",
        "frontend.completion": "16 B", "link.packet": "256 B", "link.packet_overhead": "24 B",
    },
}  # fmt: skip
"""The same with another flash management, or link."""
MACHINES = {
    "optimstore-r1": SMALL,
    "newport": (*SMALL, "system.devices=2"),
    "optimstore-r2": (*SMALL, "system.devices=3", "flash.multi_plane=false"),
    "smartssd": SMALL,
}
HELPED: tuple[tuple[str, dict[str, str]], ...] = (
    ("chip_level", {}),
    ("on_die", {"pe.rain": "3", "pe.atomicity": "resume"}),
)
"""Where the controller does something for the dies' stripes."""
# What no balance sees: derived elsewhere, or held against the blocks by the device's own books.
UNSEEN = {
    "counters": {
        "erased_blocks", "array_reads", "array_programs", "array_erases", "isp_read_bytes",
        "isp_write_bytes", "isp_bytes", "trimmed_pages", "collections", "program_failures",
        "bad_blocks", "wear_moves", "map_hits", "map_misses", "retried_pages", "corrected_bits",
        "uncorrectable_pages", "lost_pages", "newly_lost_pages", "media_errors", "bare_wrong_bits",
        "reclaimed_blocks", "cache_fill_pages", "beside_pages", "padded_at_flush", "padded_at_rest",
        "padded_in_time",
        "gathered_most", "pslc_pages", "direct_pages", "folds", "pslc_erased_blocks",
        "overruled_victims", "bare_corrected_bits", "turned_pages", "program_suspensions",
        "erase_suspensions", "refreshed_blocks", "ecc_iterations", "ecc_retry_iterations",
        "ecc_late_iterations",
    },
    "bytes_by": {
        "host CPU", "accelerator", "host submission", "uplink down", "uplink up", "timer",
        "front end", "DRAM", "ISP", "ISP flash path", "ISP flash writes", "ECC", "idle timer",
        "host relay", "firmware of reads", "firmware of writes",
    },
    "planned": set[str](),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs() -> list[Totals]:
    """Totals of every path on machines that together use every counter."""
    found = []
    for preset, overrides in MACHINES.items():
        trace = model("adam", 100_000)
        step = dataclasses.replace(trace.steps[0], forward_s=1e-3, backward_s=1e-3, samples=64)
        trace = dataclasses.replace(
            trace, steps=(step,), samples_per_step=64, bytes_per_sample=9_000
        )
        c = compare(trace, load_preset(preset, overrides), swing=False)
        found += [r.ledger.totals for r in c.results if r.ledger]
    for errors in (
        {"errors.kind": "rate", "errors.rate": "1e-3"},
        {"errors.kind": "rate", "errors.rate": "1e-3", "pe.protection": "controller_ecc"},
        {"errors.kind": "model", "errors.pslc": "1", "errors.floor": "1e-3"},
    ):
        bare = load_preset("optimstore-r1", SMALL).replace(errors)
        (result,) = compare(model("adam", 10_000), bare, paths=["on_die"], swing=False).results
        assert result.ledger is not None
        found.append(result.ledger.totals)
    for path, changes in HELPED:
        cfg = load_preset("optimstore-r1", SMALL).replace(changes)
        (result,) = compare(model("adam", 100_000), cfg, paths=[path], swing=False).results
        assert result.ledger is not None
        found.append(result.ledger.totals)
    return [*found, interrupted(), levelled(), *(crowded(changes) for changes in MANAGED.values())]


def interrupted() -> Totals:
    """Steps on the dies with power cuts: while gradients are loaded, in the recovery from that, and
    while weights go up. What was begun in vain is not in the totals."""
    trace = small.model("adam", 2)
    run = Run("on_die", load_preset("optimstore-r1", SMALL), trace, Options(), payload=True)
    assert not run.step(0, cut_after=104)
    assert run.recover(cut_after=60) is None
    run.recover()
    assert run.resume()
    assert not run.step(1, cut_after=150)
    run.recover()
    assert run.resume()
    lost = [r.cut.lost for r in run.recoveries]
    assert all(sum(x[name] for x in lost) for name in ("load_bytes", "reservoir_up_bytes", "DRAM"))
    return run.account()[0]


def levelled() -> Totals:
    """Planes change roles in every step, and super-pages leave a die that has been worn before."""
    cfg = load_preset("optimstore-r1", SMALL).replace(
        {"ftl.reservoir_rotate": 1, "ftl.reservoir_migrate": 1, "flash.pages_per_block": 1}
    )
    trace = small.model("adam", 2, (("w", (100_000,), 0),), payload=False)
    run = Run("on_die", cfg, trace, Options(), payload=False)
    run.system.arrays.worn[: run.system.geometry.reservoir_blocks] += 8  # of the first die
    run.step(0)
    run.step(1)
    return run.account()[0]


def crowded(changes: dict[str, str]) -> Totals:
    """Many steps on a drive that is nearly full: pages are collected."""
    cfg = load_preset("optimstore-r1", CROWDED).replace(changes)
    whole = "cache.mode" in changes  # pages: what is cached is counted in pages
    trace = model("adam", 1 << 19 if whole else 500_000)
    trace = dataclasses.replace(
        trace, steps=tuple(dataclasses.replace(trace.steps[0], index=i) for i in range(12))
    )
    (r,) = compare(trace, cfg, paths=["host_offload"], steps=12, swing=False).results
    assert r.ledger is not None
    return r.ledger.totals


def mutants(t: Totals) -> Iterator[tuple[str, Totals]]:
    """The totals with one number one larger, and which."""
    for table in ("counters", "bytes_by", "planned"):
        for key, value in getattr(t, table).items():
            changed = {**getattr(t, table), key: value + 1}
            yield f"{table}.{key}", dataclasses.replace(t, **{table: changed})
    for name in ("valid_pages", "mapped_pages", "in_flight", "cached_contents"):
        yield name, dataclasses.replace(t, **{name: getattr(t, name) + 1})
    for i in range(2):
        pair = tuple(n + (i == k) for k, n in enumerate(t.super_pages))
        yield f"super_pages.{i}", dataclasses.replace(t, super_pages=pair)


def test_the_runs_use_every_counter(runs):
    """Else a counter that is always 0 could not be told from one that is never counted."""
    used = {name for t in runs for name, n in t.counters.items() if n}
    # Nothing in a comparison trims, reads what was never written, or writes part of a page; and
    # the whole map is in DRAM.
    unused = {"trimmed_pages", "unmapped_pages", "merge_read_pages", "cache_dropped_pages"}
    unused |= {"remerged_pages", "split_hit_pages", "unasked_again_bytes"}
    unused |= {"padded_at_flush", "fold_dropped_pages"}  # flushes, writes what is being folded
    unused |= {"overruled_victims"}  # greedy's own choice cannot be bettered
    cached = {"map_hits", "map_misses", "map_read_pages", "map_program_pages"}
    assert set(COUNTERS) - used - cached == unused


def sides_of_laws(totals: Totals) -> dict[str, tuple[int, int]]:
    """(left side, right side) of each law at the end of a run."""
    values = totals.quantities()
    return {
        law.name: (evaluate(law.left, values), evaluate(law.right, values))
        for law in laws_at(Place.RUN)
    }


def test_what_was_run_balances(runs):
    for t in runs:
        assert all(left == right for left, right in sides_of_laws(t).values())


def test_both_sides_of_every_balance_can_fail(runs):
    """One number off by one: the balances that see it fail, each balance is seen from each side."""
    for t in runs:
        right = sides_of_laws(t)
        sides = defaultdict(set)
        for name, mutant in mutants(t):
            hit = False
            for what, now in sides_of_laws(mutant).items():
                for i in range(2):
                    if now[i] != right[what][i]:
                        sides[what].add(i)
                        hit = True
            table, _, key = name.partition(".")
            assert hit != (key in UNSEEN.get(table, ())), name
            if hit:
                with pytest.raises(
                    Imbalance, match=r"^[^\n]+, at the end of the run: .* = -?\d+, but .*\d$"
                ):
                    ledger(mutant, 1)
        nothing_in_flight = "transactions in flight"  # whose other side is 0
        assert set(right) == set(sides)
        assert all(found == {0, 1} for what, found in sides.items() if what != nothing_in_flight)


def test_what_energy_is_paid_for_is_what_was_moved(runs):
    """Bytes of the stations that no balance holds, from the counters of what passed them.

    Through DRAM: host data twice (stored, then forwarded), so also reservoir pages for the host and
    pages that collection and folding move, unless inside their die; the rest once. Data that a
    cache takes are stored, data that are found there forwarded, data that it sends to flash
    forwarded. Through ECC: every page that was coded, as far as it was asked for.
    """
    for t in runs:
        c = t.counters
        twice = c["host_read_bytes"] + c["host_write_bytes"] + c["reservoir_up_bytes"]
        moved = c["gc_read_pages"] + c["fold_read_pages"] + c["refresh_read_pages"]
        moved -= c["copyback_pages"]
        twice += moved * t.page_bytes
        once = c["down_bytes"] + c["up_bytes"] + c["load_bytes"] + c["scan_bytes"]
        isp = c["isp_read_bytes"] + c["isp_write_bytes"]
        cached = c["destaged_pages"] - c["cache_write_pages"] - c["cache_hit_pages"]
        helped = ("fetched_pages", "stored_pages", "kept_pages", "lifted_pages", "landed_pages")
        once += sum(c[name] for name in helped) * t.page_bytes
        crossed = 2 * twice + once + isp + c["isp_bytes"] + cached * t.page_bytes
        assert t.bytes_by["DRAM"] == crossed
        coded = c["ecc_decoded_pages"] + c["ecc_encoded_pages"]
        unasked = c["unasked_out_bytes"] + c["unasked_in_bytes"]
        assert t.bytes_by["ECC"] == coded * t.page_bytes - unasked
        apart = t.bytes_by["ISP flash writes"]  # only where writes have a path of their own
        assert apart in (0, c["isp_write_bytes"])
        assert t.bytes_by["ISP flash path"] == isp - apart
        assert t.bytes_by["tunnel up"] + t.bytes_by["tunnel down"] == c["tunnel_bytes"]
        assert t.erases[0] == c["array_erases"] <= c["erased_blocks"]


# --- a counter that is wrong


def off_by_one(monkeypatch, counter: str) -> None:
    original = system.sum_counters

    def sum_counters(*arguments):
        found = original(*arguments)
        return {**found, counter: found[counter] + 1}

    monkeypatch.setattr(system, "sum_counters", sum_counters)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("counter", "words"),
    [
        ("read_pages", "pages read, at the end of the run"),
        ("program_pages", "pages written"),
        ("commands_done", "commands completed, at the end of the run"),
        ("host_read_bytes", "bytes up the link"),
        ("ecc_decoded_pages", "pages decoded"),
    ],
)
def test_a_counter_off_by_one(capsys, tmp_path, monkeypatch, counter, words):
    monkeypatch.chdir(tmp_path)
    off_by_one(monkeypatch, counter)
    arguments = ["compare", "mlp-fp16", "--steps", "1", "--out", "out", "--timeline", "t.json"]
    arguments += BY_SMALL
    refused(here(capsys, *arguments), f"defect: {words}", ", but ", code=1)
    assert files(tmp_path) == []


@pytest.mark.one_in(5)
@pytest.mark.parametrize("cache", ["0 B", "2 KiB"])
@pytest.mark.parametrize("name", MANAGED)
def test_every_path_goes_through_every_flash_management(name, cache):
    """With all of the map in DRAM, and with a few hundred entries of it: the books balance, and
    whoever reads reads the map."""
    cfg = load_preset("optimstore-r1", SMALL).replace(MANAGED[name] | {"ftl.map_cache": cache})
    paths = ["host_offload", "in_storage"]
    for result in compare(model("adam", 1 << 18), cfg, paths=paths, swing=False).results:
        assert result.ledger is not None, result
        found = result.ledger.totals.counters
        assert found["read_pages"] + found["cache_hit_pages"] > 0
        assert found["program_pages"] + found["cache_write_pages"] > 0
        assert (found["map_read_pages"] > 0) == (cache != "0 B")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("counter", [x for x in COUNTERS if x not in UNSEEN["counters"]])
def test_every_counter_off_by_one_stops_every_path(monkeypatch, counter):
    off_by_one(monkeypatch, counter)
    cfg = load_preset("optimstore-r1", SMALL)
    for path in ("host_offload", "in_storage", "on_die"):
        with pytest.raises(Imbalance):
            compare(model("adam", 10_000), cfg, paths=[path], swing=False)


def test_an_imbalance_in_the_swing_is_found_too(capsys, tmp_path, monkeypatch):
    """The comparison itself balances; one of the runs with another constant does not."""
    monkeypatch.chdir(tmp_path)
    original = system.sum_counters
    calls = []

    def sum_counters(*arguments):
        calls.append(1)
        found = original(*arguments)
        return found if len(calls) <= 8 else {**found, "commands": found["commands"] + 1}

    monkeypatch.setattr(system, "sum_counters", sum_counters)
    arguments = ["compare", "mlp-fp16", "--steps", "1", *BY_SMALL, "--out", "out"]
    refused(here(capsys, *arguments), "commands completed, at the end of the run", code=1)
    assert len(calls) > 8 and files(tmp_path) == []


def test_a_stuck_simulation_is_a_defect_in_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def stuck(*arguments):
        raise SimulationError("stuck at 5 ps: row 1 of 2 cannot complete")

    monkeypatch.setattr(system.System, "run", stuck)
    arguments = ["compare", "mlp-fp16", "--steps", "1", *BY_SMALL, "--out", "out"]
    refused(here(capsys, *arguments), "defect: stuck at 5 ps", code=1)
    assert files(tmp_path) == []


def test_recorded_traces_balance_over_all_their_steps(counts):
    """Skipped steps included: the counters of the whole run, not of its last step."""
    for name in counts(["mlp-fp16"], ["mlp-fp16", "gpt-small", "mobilenetv2-digits"]):
        trace = traces.load(name)
        c = compare(trace, load_preset("optimstore-r1", counts(SMALL, ())), swing=False)
        applied = sum(not step.skipped for step in trace.steps)
        for r in c.results:
            if r.ledger:
                assert len(r.ledger.totals.steps) == len(trace.steps)
                assert r.ledger.totals.planned["link_down_bytes"] >= 4 * trace.n_params * applied
