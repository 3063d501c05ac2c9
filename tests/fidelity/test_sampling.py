"""Is an update stage that is extended from pieces the one that simulating every page gives?"""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.analysis.compare import compare, run_path, run_sampled
from ondie.emu.analysis.extrapolate import extend, reduced
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.analysis.path_choice import PATHS
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core.totals import Totals
from ondie.emu.paths.base import Options
from ondie.emu.paths.offload.deepspeed_config import configured
from ondie.emu.paths.offload.options import Offload
from ondie.emu.paths.pieces import PERIODS, Piece, pieces
from ondie.emu.validate import model
from ondie.traces import flat_tensors, load
from tests.smoke.commands import files, here, refused

UPDATING = ("host_offload", "host_offload_pipelined", "in_storage", "on_die")
SHORT = ("flash.pages_per_block=48", "flash.dies_per_channel=2", "host.subgroup_params=20000000")
"""Blocks that fill soon: the pieces of a small model see as many erases as those of a large one."""


def both(params, counts):
    """(trace, configuration, tolerance): a model and drive on which both are simulated."""
    if counts("small", "full") == "full":
        return load("gpt-10b"), load_preset("optimstore-r1", ()), 0.01
    trace = model("adam", params)
    step = dataclasses.replace(trace.steps[0], forward_s=0.2, backward_s=0.4)
    trace = dataclasses.replace(trace, steps=(step,))
    return trace, load_preset("optimstore-r1", SHORT), 0.01


@pytest.fixture(scope="module")
def whole(counts):
    return both(251_234_567, counts)


@pytest.fixture(scope="module")
def longer(counts):
    """Of which half may stay in DRAM."""
    return both(503_234_567, counts)


@pytest.mark.one_in(5, start=3)
@pytest.mark.parametrize("name", UPDATING)
def test_the_pieces_give_the_whole(name, whole):
    trace, cfg, tolerance = whole
    sampled = run_sampled(name, cfg, trace, Options())
    every = run_path(name, cfg, trace, Options(), steps=1, payload=False)
    assert sampled is not None and sampled.sampled is not None
    assert max(sampled.sampled.params) < 0.8 * trace.n_params, "the pieces are shorter"
    ours, theirs = sampled.ledger, every.ledger
    assert ours.update_s == pytest.approx(theirs.update_s, rel=tolerance)
    assert ours.step_s == pytest.approx(theirs.step_s, rel=tolerance)
    for counter in ("host_read_bytes", "isp_write_bytes", "bpp_pages", "program_pages"):
        assert ours.totals.counters[counter] == pytest.approx(
            theirs.totals.counters[counter], rel=1e-4
        )
    assert ours.totals.counters["erased_blocks"] == pytest.approx(
        theirs.totals.counters["erased_blocks"], rel=0.02
    )
    for mine, full in zip(sampled.energy.all, every.energy.all, strict=True):
        assert mine == pytest.approx(full, rel=tolerance)
    assert ours.bound_by()[0] == theirs.bound_by()[0]
    assert ours.bound_by()[1] == pytest.approx(theirs.bound_by()[1], rel=0.02)
    assert sampled.work == every.work and sampled.bound == every.bound
    # What it says of itself is no better than it is, but for what is next to nothing.
    assert abs(ours.update_s / theirs.update_s - 1) <= 2 * sampled.sampled.error + 2e-3


OFFLOADS = (
    {"ratio": 0.5},
    {"ratio": 0.9, "threads": 4, "align": 4096},
    {"parameters": True, "parameters_in_dram": 100_000_000},
    {"in_dram_below": 1 << 20, "ratio": 0.7},
)
"""Options that count whole sub-groups, or parameters of the whole model."""


@pytest.mark.one_in(5)
@pytest.mark.parametrize("knobs", OFFLOADS, ids=lambda knobs: "-".join(knobs))
def test_pieces_of_an_offload_keep_what_the_whole_keeps_in_dram(knobs, whole, longer):
    trace, cfg, _ = longer if knobs.get("ratio", 1) < 0.9 else whole
    options = Options(offload=Offload(**knobs))
    sampled = run_sampled("host_offload", cfg, trace, options)
    every = run_path("host_offload", cfg, trace, options, steps=1, payload=False)
    assert sampled is not None and max(sampled.sampled.params) < 0.98 * trace.n_params
    ours, theirs = sampled.ledger, every.ledger
    assert ours.update_s == pytest.approx(theirs.update_s, rel=0.015)
    assert ours.step_s == pytest.approx(theirs.step_s, rel=0.015)
    for counter in ("host_read_bytes", "host_write_bytes", "program_pages", "read_pages"):
        assert ours.totals.counters[counter] == pytest.approx(
            theirs.totals.counters[counter], rel=1e-3
        )
    assert sampled.work == every.work and sampled.bound == every.bound


def test_deepspeeds_defaults(tmp_path):
    """1e9 parameters in DRAM (max_in_cpu) are of the whole model, tensors below 1 MiB too."""
    zero = {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/n"}}
    zero["offload_param"] = {"device": "nvme", "nvme_path": "/n"}
    (tmp_path / "ds.json").write_text(
        json.dumps({"bf16": {"enabled": True}, "zero_optimization": zero})
    )
    cfg, offload, form = configured(load_preset("optimstore-r1", ()), tmp_path / "ds.json")
    trace, options = load("gpt-6.7b"), Options(offload=offload, format=form)
    path = PATHS["host_offload"](cfg, trace, options)
    found = run_sampled("host_offload", cfg, trace, options)
    assert found is not None
    moved = path.moved()
    counters = found.ledger.totals.counters
    read, written = moved["read"] + moved["parameters"], moved["gradients"] + moved["written"]
    assert counters["host_read_bytes"] == pytest.approx(read, rel=1e-3)
    assert counters["host_write_bytes"] == pytest.approx(written, rel=1e-3)


def test_the_shares_of_a_piece_are_those_of_the_whole(whole):
    trace, cfg, _ = whole
    knobs = {"parameters": True, "parameters_in_dram": 100_000_000, "ratio": 0.7}
    path = PATHS["host_offload"](cfg, trace, Options(offload=Offload(**knobs)))
    small = cfg.replace({"host.subgroup_params": path.granule() * 16})
    n = 40_000_000
    part = PATHS["host_offload"](
        small, reduced(trace, n, name="part", training=1.0), path.part_options()
    )
    for name in ("w", "g", "p"):
        mine, all_of = part.volume.size(name, 0, n) / n, path.volume.size(name, 0, trace.n_params)
        assert mine == pytest.approx(all_of / trace.n_params, rel=1e-3)
    kept = sum(b - a for a, b in part.on_nvme)
    assert part.on_nvme[0][0] == 0 and part.groups[len(part.on_nvme) :][0][0] == kept
    assert sum(b - a for a, b in part.groups) == n


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("host_offload", Offload(ratio=0.0), "no states are on NVMe"),
        ("host_offload_pipelined", Offload(ratio=0.5), "computed in parallel with the last"),
        ("host_offload", Offload(in_dram_below=1 << 34), "no states are on NVMe"),
    ],
)
def test_what_pieces_do_not_tell_is_simulated_whole_and_says_so(name, options, why):
    trace, cfg = model("adam", 40_000_000), load_preset("optimstore-r1", SHORT)
    made = Options(offload=options)
    (row,) = compare(
        trace, cfg, paths=[name], options=made, swing=False, sampled=True
    ).results  # fmt: skip
    every = run_path(name, cfg, trace, made, steps=1, payload=False)
    assert row.sampled is None and row.ledger == every.ledger
    assert row.notes[-1].startswith("simulated as a whole: ") and why in row.notes[-1]


def test_tensors_of_a_few_blocks_are_no_pieces_of_large_ones():
    """A file for each tensor: their ends are more than a few of all blocks."""
    trace, cfg = model("adam", 251_234_567), load_preset("optimstore-r1", SHORT)
    entries = [(f"t{i}", (n,), 0, 0) for i, n in enumerate([300_000] * 837 + [134_567])]
    many = dataclasses.replace(trace, tensors=flat_tensors(entries))
    options = Options(offload=Offload(in_dram_below=1 << 20))
    assert PATHS["host_offload"](cfg, trace, options).pieces() is not None
    path = PATHS["host_offload"](cfg, many, options)
    assert path.pieces() is None and "few I/O blocks" in path.unsampled()


def decaying(n: int, decays: tuple[float, ...], steps: int = 1):
    """A model whose groups alternate, tensor by tensor; the first step has no decay if there are
    several."""
    count = 12
    sizes = [n // count] * (count - 1) + [n - n // count * (count - 1)]
    entries = [(f"t{i}", (size,), i % len(decays), i) for i, size in enumerate(sizes)]
    base = model("adam", n)
    (only,) = base.steps[0].hyper
    made = tuple(
        dataclasses.replace(
            base.steps[0],
            index=i,
            hyper=tuple({**only, "weight_decay": decay * (i == steps - 1)} for decay in decays),
        )
        for i in range(steps)
    )
    return dataclasses.replace(base, tensors=flat_tensors(entries), groups=len(decays), steps=made)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("decays", [(0.0, 0.1), (0.1, 0.0), (0.0, 0.0, 0.1)])
def test_decay_of_any_group_and_step_is_kept(decays, steps):
    """Passes for it are taken on the dies: 46.7 ms, and 45.1 ms without."""
    n = 4_000_000
    trace, cfg = decaying(n, decays, steps), load_preset("optimstore-r1", ())
    same = reduced(trace, n, name="same", training=0.0)
    every, ours = (
        run_path("on_die", cfg, t, Options(), steps=1, payload=False) for t in (trace, same)
    )
    assert ours.ledger.update_s == every.ledger.update_s and ours.work == every.work
    without = run_path("on_die", cfg, model("adam", n), Options(), steps=1, payload=False)
    assert without.ledger.update_s < every.ledger.update_s


@given(n=st.integers(1, 5_000), sizes=st.lists(st.integers(1, 400), min_size=1, max_size=30))
def test_parameter_groups_keep_their_shares(n, sizes):
    trace = decaying(5_000 * 12, (0.0, 0.1))
    entries = [(f"t{i}", (size,), i % 2, 0) for i, size in enumerate(sizes)]
    trace = dataclasses.replace(trace, tensors=flat_tensors(entries))
    small = reduced(trace, n, name="small", training=1.0)
    assert small.n_params == n and small.groups == 2
    for group in range(2):
        theirs = sum(t.size for t in trace.tensors if t.group == group) / trace.n_params
        mine = sum(t.size for t in small.tensors if t.group == group)
        assert abs(mine - theirs * n) <= len(sizes)


def book(seconds: float, pages: int) -> Ledger:
    """Books of a piece."""
    values = {f.name: 0 for f in dataclasses.fields(Totals)}
    values |= {
        "counters": {"read_pages": pages},
        "bytes_by": {},
        "planned": {},
        "busy_sum_ps": {},
        "worked_ps": {},
    }
    values |= {"busy_ps": {("update", "dies"): pages}, "super_pages": (0, 0), "erases": (0, 0)}
    values |= {"worn": ((pages, 2 * pages), (0, 3))}
    span = (0, round(seconds * 1e12))
    values |= {"steps": ({"step": span, "update": span},), "page_bytes": 8192, "devices": 1}
    return Ledger(Totals(**values), 3, {"step": seconds, "update": seconds})


@pytest.mark.parametrize("group", [0, 10_000_000])
def test_what_grows_as_it_should_is_extended_exactly(group):
    def grown(piece: Piece) -> Ledger:
        n, s = piece.params, piece.group
        own = s * 3e-10 + n / s * 2e-4 if s else 0.0
        return book(0.125 + n * 1e-9 + own, 7 + 5 * n)

    found = pieces(1_000_000_007, 4_000_000, 4096, group)
    ledger, sampled = extend(found, grown)
    assert ledger.update_s == pytest.approx(grown(found.whole).update_s, rel=1e-9)
    assert ledger.totals.counters["read_pages"] == pytest.approx(7 + 5 * 1_000_000_007, rel=1e-9)
    assert ledger.samples == 3 and sampled.error < 1e-6
    assert sampled.params == tuple(piece.params for piece in found.all)


def test_what_does_not_is_seen():
    """Time that grows with the square of the parameters cannot be extended, and says so."""
    found = pieces(1_000_000_007, 4_000_000, 4096)
    _, sampled = extend(found, lambda piece: book(piece.params**2 * 1e-12, piece.params))
    assert sampled.error > 0.1


def test_pieces_end_where_the_model_does():
    """In the same round of the dies, and at the same place of a block, as the whole."""
    found = pieces(1_000_000_007, 4_000_001, 4096, 0)
    period = (found.fitted[1].params - found.fitted[0].params) / (PERIODS[2] - PERIODS[0])
    assert period % 4096 == 0 and 4_000_001 <= period < 4_000_001 + 4096
    assert all((1_000_000_007 - piece.params) % period == 0 for piece in found.all)
    weights = found.weights(found.whole)
    assert weights.sum() == pytest.approx(1) and np.isfinite(weights).all()


@pytest.mark.parametrize("n", [1000, 20_000_000])
def test_a_model_as_short_as_the_pieces_is_simulated(n):
    assert pieces(n, 4_000_000, 4096) is None
    cfg = load_preset("optimstore-r1", SHORT)
    trace = model("adam", 40_000)
    assert run_sampled("on_die", cfg, trace, Options()) is None
    both = [
        compare(trace, cfg, paths=["on_die"], swing=False, sampled=sampled).results[0]
        for sampled in (True, False)
    ]
    *notes, last = both[0].notes
    assert last == "simulated as a whole: the pieces would be as large as the model"
    assert dataclasses.replace(both[0], notes=tuple(notes)) == both[1] and both[0].sampled is None


def test_every_path_with_an_update_stage_on_flash_has_pieces(whole):
    trace, cfg, _ = whole
    assert {n for n in PATHS if n != "stannis"} >= set(UPDATING)
    for name in UPDATING:
        found = PATHS[name](cfg, trace, Options()).pieces()
        assert found is not None and found.whole.params == trace.n_params
        assert bool(found.whole.group) == name.startswith("host_offload")
    rain = PATHS["on_die"](cfg.replace({"pe.rain": 2}), trace, Options())
    assert "parity pages" in rain.unsampled()
    assert rain.pieces() is None  # its parities fill blocks at a pace of their own


def test_the_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "gpt2-1.5b", "--sampled", "--no-swing", "--paths", "on_die", "--out", "out"]
    done = here(capsys, *words)
    assert done.code == 0 and "sampled: extrapolated from pieces of" in done.out
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    (path,) = result["paths"]
    assert 0 <= path["sampled"]["error"] < 0.01 and len(path["sampled"]["params"]) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpt-small"], ["--sampled", "22 steps", "gpt-small"]),
        (["gpt-small", "--steps", "1"], ["--sampled", "a payload", "gpt-small"]),
        (["gpt2-1.5b", "--timeline", "t.json"], ["--sampled", "a timeline"]),
    ],
)
def test_what_cannot_be_sampled(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    refused(here(capsys, "compare", *words, "--sampled"), *said)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    "name, subgroup, part, lone",
    [
        ("host_offload_pipelined", 300_000, 5_000, True),
        ("host_offload_pipelined", 300_000, 400_000, False),  # the part has several, too
        ("host_offload_pipelined", 10**9, 5_000, False),  # the model has one as well
        ("host_offload", 300_000, 5_000, False),  # nothing overlaps
    ],
)
def test_a_part_of_one_sub_group_of_a_pipelined_model(name, subgroup, part, lone):
    """Its stages cannot overlap as those of the model do."""
    cfg = load_preset("csd-pe", [f"host.subgroup_params={subgroup}"])
    path = PATHS[name](cfg, model("adam", 3_000_000), Options())
    assert path.lone_part(part) is lone
