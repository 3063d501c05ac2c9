"""Smart-Infinity's paths with payload: do the weights end on what the same kernel gives outside of
the emulator, with gradients that really were compressed?"""

import dataclasses

import numpy as np
import pytest

from ondie import traces
from ondie.emu.analysis import weight_check as weights
from ondie.emu.analysis.compare import Run, compare, run_path
from ondie.emu.analysis.path_choice import BY_NAME, PATHS, choose
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core.payload_log import LOG_PROGRAM
from ondie.emu.paths.base import Options, Unavailable
from ondie.emu.paths.layout.raid0 import Bucket, Striping
from ondie.kernels import get

SMART = ("smart_base", "smart_update", "smart_handler", "smart_comp")

SMALL = ("host.io_block=32 KiB", "host.subgroup_params=17000", "dram.isp=1 MB")
"""Stripes of 8,192 parameters, several sub-groups of each recorded trace."""
TRACES = ("gpt-small", "mobilenetv2-digits", "mlp-fp16")


def config(drives: int, *changes: str):
    return load_preset("smartssd", (f"system.devices={drives}", *SMALL, *changes))


def bits(vector: np.ndarray) -> np.ndarray:
    return vector.view(np.uint32)


def largest(g: np.ndarray, k: int) -> np.ndarray:
    """A gradient with all but its k largest magnitudes zero, the lower index first: by sorting."""
    kept = sorted(range(len(g)), key=lambda i: (-abs(float(g[i])), i))[:k]
    out = np.zeros_like(g)
    out[kept] = g[kept]
    return out


def trained(trace: traces.Trace, steps: int, sent) -> np.ndarray:
    """Weights by the NumPy definition of the update, each gradient as ``sent`` leaves it."""
    kernel = get(trace.op, backend="numpy")
    w = trace.weights("initial").copy()
    states = [trace.states()[name].copy() for name in kernel.states]
    for i, step in enumerate(trace.steps[:steps]):
        if step.skipped:
            continue
        g = sent(trace.gradient(i))
        for start, stop, group in trace.group_ranges():
            piece = slice(start, stop)
            coefficients = kernel.coefficients(step.hyper[group], step.count)
            kernel(w[piece], g[piece], [s[piece] for s in states], coefficients)
    return w


def places(striping: Striping) -> list[list[int]]:
    """Parameters of each drive in order: stripes dealt out in turn."""
    out: list[list[int]] = [[] for _ in range(striping.devices)]
    for stripe, first in enumerate(range(0, striping.n_params, striping.stripe)):
        last = min(first + striping.stripe, striping.n_params)
        out[stripe % striping.devices] += range(first, last)
    return out


@pytest.mark.parametrize(
    ("n", "drives", "stripe"), [(100, 3, 8), (96, 3, 8), (5, 4, 8), (64, 1, 8), (1, 1, 1)]
)
def test_stripes_go_round_the_drives(n, drives, stripe):
    striping = Striping(n, drives, stripe)
    expected = places(striping)
    assert [s.size for s in striping.shards()] == [len(part) for part in expected]
    assert striping.order().tolist() == sum(expected, [])
    for shard, part in zip(striping.shards(), expected, strict=True):
        for skipped in (0, 3):  # from a stripe's beginning, and from its middle
            found = []
            for a, b, first in striping.pieces(shard, shard.start + skipped, shard.stop):
                assert b - a <= stripe
                found += range(first, first + b - a)
            assert found == part[skipped:]


def test_a_bucket_comes_back_as_its_largest(rng):
    g = rng.standard_normal(1000).astype(np.float32)
    g[10] = g[20] = 7.0  # of two as large, the first is kept
    for k in (1, 10, 1000):
        bucket = Bucket(0, 0, 1000, k)
        packed = bucket.packed(g)
        assert packed.dtype == np.uint8 and packed.size == bucket.n_bytes == 8 * k
        assert (bits(bucket.dense(packed)) == bits(largest(g, k))).all()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name", ["mlp-fp16", *(pytest.param(name, marks=pytest.mark.soak) for name in TRACES[:2])]
)
@pytest.mark.parametrize("path", SMART)
def test_weights_end_on_the_reference(name, path, counts):
    trace = traces.load(name)
    steps = counts(min(3, len(trace.steps)), len(trace.steps))
    for drives in counts((3,), (1, 2, 3, 7)):
        run = Run(path, config(drives), trace, Options(), payload=True)
        assert len(run.path.subgroups) > 1 or drives == 7
        for i in range(steps):
            run.step(i)
        run.account()
        final = run.path.finish()
        if path != "smart_comp":
            expected = trained(trace, steps, lambda g: g)
        else:
            order = np.array(sum(places(run.path.striping), []))

            def sent(g, order=order, buckets=run.path.buckets):
                out = np.empty_like(g)
                for b in buckets:
                    mine = order[b.start : b.stop]
                    out[mine] = largest(g[mine], b.k)
                return out

            expected = trained(trace, steps, sent)
            assert (bits(expected) != bits(trained(trace, steps, lambda g: g))).any()
        assert (bits(final) == bits(expected)).all()
        if path != "smart_base":
            assert (bits(run.path.delivered()) == bits(expected)).all()


def test_buckets_cover_every_place_once_and_keep_their_share():
    trace = traces.load("gpt-small")
    for share in (1.0, 2.0, 10.0):
        path = PATHS["smart_comp"](config(3), trace, Options(compression=share))
        ranges = sorted((b.start, b.stop) for b in path.buckets)
        assert ranges[0][0] == 0 and ranges[-1][1] == trace.n_params
        assert all(a[1] == b[0] for a, b in zip(ranges, ranges[1:], strict=False))
        for b in path.buckets:  # an index and a value: 8 of the 4 bytes of so many
            assert abs(b.n_bytes - share / 100 * 4 * (b.stop - b.start)) <= 4 or b.k == 1
        spans = [span for subgroup in path.subgroups for span in subgroup.values()]
        assert all(any(a <= b.start and b.stop <= z for a, z in spans) for b in path.buckets)


def test_the_comparison_holds_the_compressed_path_against_its_own_reference(monkeypatch):
    trace = traces.load("gpt-small")
    found = run_path(
        "smart_comp", config(2), trace, Options(), steps=len(trace.steps), payload=True
    )
    w = found.weights
    assert w.equal_bits == w.elements == w.delivered_equal_bits == trace.n_params
    assert w.recorded_distance > weights.TOLERANCE  # lossy: not the recorded weights, and no error
    monkeypatch.setattr(PATHS["smart_comp"], "sent", lambda self, g: g)
    with pytest.raises(weights.Mismatch, match="smart_comp"):
        run_path("smart_comp", config(2), trace, Options(), steps=1, payload=True)


def test_a_byte_of_a_compressed_page_changes_the_weights():
    """Gradients flow through the pages and nowhere else."""
    trace = traces.load("gpt-small")

    def final(spoil: bool) -> np.ndarray:
        run = Run("smart_comp", config(2), trace, Options(), payload=True)
        store = run.path.payload.stores[1]
        g = run.path.regions[1].first("g")
        follow = run.system.on_log

        def spoiled(log):
            for i, entry in enumerate(log):
                follow(log[i : i + 1])
                its = (entry["what"], entry["dev"], entry["lpn"]) == (LOG_PROGRAM, 1, g)
                if spoil and its:  # a value's exponent
                    store.flip(int(entry["ppn"]), 3 + 4 * run.path.buckets[0].k, 0x40)

        run.system.on_log = spoiled
        run.step(0)
        return run.path.finish()

    assert (bits(final(False)) != bits(final(True))).sum() > 0


def test_they_run_only_by_name():
    trace = traces.load("mlp-fp16")
    assert not set(BY_NAME) & set(choose(None, trace))
    assert choose(["smart_comp"], trace) == ["smart_comp"]
    names = {r.name for r in compare(trace, config(1), swing=False).results}
    assert not names & set(BY_NAME)


def test_what_a_drive_lacks_is_said():
    trace = traces.load("mlp-fp16")
    with pytest.raises(Unavailable, match=r"no decompression in the drive \(isp.decompress = 0\)"):
        compare(trace, load_preset("newport"), paths=["smart_comp"])
    with pytest.raises(Unavailable, match="isp.kind = none"):
        compare(trace, load_preset("gen4-tlc"), paths=["smart_update"])
    small = dataclasses.replace(trace, name="mlp")
    with pytest.raises(Unavailable, match="too small for a block"):
        compare(small, load_preset("smartssd", ("dram.isp=1 MB",)), paths=["smart_update"])
