"""Do weights, gradients and states go through the pages in the format that was asked for, bit for
bit, and take what the format takes?

FACTS used: ZeRO-Infinity moves 32 B per parameter in FP32 with Adam, 24 with BF16 masters and
gradients, 16 all in BF16. OptimStore's stripe: page / 4 parameters of FP32 (Adam).
"""

import numpy as np
import pytest

from ondie import traces
from ondie.emu.analysis.compare import run_path
from ondie.emu.analysis.path_choice import PATHS
from ondie.emu.analysis.weight_check import bits
from ondie.emu.compute import isp_cores as core
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import payload_log
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.ftl.tables import logical_pages
from ondie.emu.nand.geometry import Geometry
from ondie.emu.paths.base import Options, Unavailable
from ondie.emu.paths.layout.formats import FORMATS, Stored, Vector
from ondie.emu.paths.optimizer_step import Arithmetic
from ondie.emu.paths.payload import Conventional
from ondie.emu.units import InputError
from ondie.emu.validate.synthetic_models import model as large
from ondie.kernels import FORMATS as KERNELS
from ondie.kernels import get
from ondie.kernels.codes import codes, numpy_decode, numpy_encode
from ondie.kernels.formats import BLOCK
from ondie.kernels.stochastic import key
from ondie.kernels.update import SIGNED
from tests.faults.test_flipped_byte import LEAVES, one_step
from tests.state.models import model
from tests.timing.harness import preset

STEPS = 3
DIE = ("fp32", "fp16", "bf16", "bf16_all")
ON_FLASH = ("host_offload", "host_offload_pipelined", "in_storage", "on_die")
EVERY = [(p, f) for p in ON_FLASH for f in FORMATS if p != "on_die" or f in DIE]
WIDENS = {"pe__narrow_values": 1}


def start(name, format, op="adamw", steps=STEPS, **changes):
    trace = model(op, steps)
    path = PATHS[name](preset(LEAVES, **WIDENS | changes), trace, Options(format=format, seed=3))
    system = path.system(True, 0)
    arithmetic = Arithmetic(trace, format=format, seed=3)
    path.prepare(system, arithmetic)
    return path, system, arithmetic


def run(path, system, flip=None):
    for i in range(STEPS):
        if i == 1 and flip is not None:
            flip(path.payload)
        one_step(path, system, i)
    return path.finish()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(("name", "format"), EVERY)
def test_paths_end_on_the_reference(name, format, devices):
    """16,881 parameters in two groups whose border lies within a block of codes; states that are
    not zero. What arrived at the host is what the model computes with."""
    path, system, arithmetic = start(name, format, system__devices=devices)
    final, reference = run(path, system), arithmetic.reference(STEPS)
    assert final.dtype == path.stored.vectors[0].dtype
    assert (bits(final) == bits(reference)).all()
    assert np.isfinite(arithmetic.wide(final)).all()
    sent = path.delivered()
    assert (sent is None) == name.startswith("host_offload")
    assert sent is None or (bits(sent) == bits(arithmetic.shown(reference))).all()


@pytest.mark.parametrize("op", ["sgd", "momentum", "adagrad"])
@pytest.mark.parametrize("format", ["bf16_master", "bf16", "bf16_stochastic", "int8_linear"])
@pytest.mark.parametrize("name", ["host_offload", "in_storage"])
def test_fewer_states(name, format, op):
    if op == "sgd" and FORMATS[format].codes:
        with pytest.raises(Unavailable, match=f"{name}: format {format}: sgd has no states"):
            start(name, format, op)
        return
    path, system, arithmetic = start(name, format, op)
    assert (bits(run(path, system)) == bits(arithmetic.reference(STEPS))).all()


@pytest.mark.parametrize("format", [f for f in KERNELS if not KERNELS[f].codes])
def test_the_reference_is_the_kernel_on_each_tensor(format):
    """As an optimizer calls it: elements are numbered through a group's tensors, and each group has
    a key of its own."""
    trace, seed = model("adamw", STEPS), 3
    arithmetic = Arithmetic(trace, format=format, seed=seed)
    kernel = get("adamw", format=format)
    vectors = arithmetic.initial()
    out = np.empty(trace.n_params, arithmetic.layout.shown)
    for i in range(STEPS):
        step, g = trace.steps[i], arithmetic.gradient(trace.gradient(i)).copy()
        seen = {0: 0, 1: 0}
        for t in trace.tensors:
            at = slice(t.offset, t.offset + t.size)
            kernel(
                vectors["w"][at], g[at], [vectors[name][at] for name in kernel.states],
                kernel.coefficients(step.hyper[t.group], step.count),
                out=out[at] if KERNELS[format].out >= 0 else None, first=seen[t.group],
                key=key(step.count, seed + (t.group << 32)) if kernel.random else None,
            )  # fmt: skip
            seen[t.group] += t.size
    reference = arithmetic.reference(STEPS)
    assert (bits(reference) == bits(vectors["w"])).all()
    if KERNELS[format].out >= 0:
        assert (bits(arithmetic.shown(reference)) == bits(out)).all()


@pytest.mark.parametrize("format", ["int8_dynamic", "int8_linear"])
def test_a_block_of_two_groups_is_decoded_updated_and_encoded(format):
    """Groups end at 4,101 and 9,104, within blocks 16 and 35: all of a block has one scale."""
    trace = model("adamw", 1)
    arithmetic = Arithmetic(trace, format=format)
    got = arithmetic.initial()
    arithmetic.apply(arithmetic.coefficients(0), 0, trace.n_params, got, trace.gradient(0))
    plain, start_ = get("adamw"), arithmetic.initial()
    maps = {name: codes(KERNELS[format].codes, SIGNED[name]) for name in "mv"}
    wide = {s: numpy_decode(start_[s], start_[f"{s}_scale"], maps[s]) for s in "mv"}
    w = start_["w"]
    for t in trace.tensors:
        at = slice(t.offset, t.offset + t.size)
        coef = plain.coefficients(trace.steps[0].hyper[t.group], trace.steps[0].count)
        plain(w[at], trace.gradient(0)[at].copy(), [wide["m"][at], wide["v"][at]], coef)
    assert (bits(got["w"]) == bits(w)).all()
    for s in "mv":
        numpy_encode(wide[s], start_[s], start_[f"{s}_scale"], maps[s])
        assert (got[s] == start_[s]).all()
        assert (bits(got[f"{s}_scale"]) == bits(start_[f"{s}_scale"])).all()


def test_pieces_of_blocks_make_the_whole():
    trace = model("adamw", 1)
    arithmetic = Arithmetic(trace, format="int8_dynamic")
    whole, n = arithmetic.initial(), trace.n_params
    arithmetic.apply(arithmetic.coefficients(0), 0, n, whole, trace.gradient(0))
    parts = arithmetic.initial()
    for a, b in ((0, 3072), (3072, 4096), (4096, 9216), (9216, n)):
        piece = {
            name: x[a // BLOCK : -(-b // BLOCK)] if name.endswith("_scale") else x[a:b]
            for name, x in parts.items()
        }
        arithmetic.apply(arithmetic.coefficients(0), a, b, piece, trace.gradient(0)[a:b])
    for name in whole:
        assert (bits(whole[name]) == bits(parts[name])).all(), name


def test_a_page_of_codes_has_its_scales():
    """1,024 B: three blocks of 260 B; codes first, then three scales. 16 KiB: 63 blocks."""
    v = Vector("m", np.dtype(np.uint8), coded=True)
    assert (v.per_page(1024), v.per_page(16384), v.per_page(4096)) == (768, 63 * 256, 15 * 256)
    assert (v.size(768), v.size(769), v.pages(769, 1024), v.paged(769, 1024)) == (
        780, 769 + 16, 2, 2048,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, 2000).astype(np.uint8)
    scales = rng.random(8).astype(np.float32)
    pages = np.full((3, 1024), 0xFF, np.uint8)
    v.pack(pages, {"m": values, "m_scale": scales})
    assert (pages[1, :768] == values[768:1536]).all()
    assert pages[1, 768:780].tobytes() == scales[3:6].tobytes() and (pages[1, 780:] == 0xFF).all()
    back = v.unpack(pages, 2000)
    assert (back["m"] == values).all() and (back["m_scale"] == scales).all()


def test_a_flipped_byte_of_a_scale_changes_its_block():
    """In the drive's pages: scale 2 of the second page of m, of parameters 768 + 512 and on."""

    def flip(payload):
        r = payload.regions[0]
        lpn = r.first("m") + 1
        payload.stores[0].flip(payload.ppn(0, lpn), 768 + 4 * 2 + 2)

    path, system, arithmetic = start("in_storage", "int8_dynamic")
    final = run(path, system, flip)
    wrong = np.flatnonzero(bits(final) != bits(arithmetic.reference(STEPS)))
    assert 200 < len(wrong) <= 256 and wrong.min() >= 1280 and wrong.max() < 1536


def test_a_flipped_byte_of_a_code_changes_its_weight_and_its_block():
    """A code of m: its own parameter at once; others of its block if it was, or becomes, the
    largest of it, which this one is not."""

    def flip(payload):
        r = payload.regions[0]
        payload.stores[0].flip(payload.ppn(0, r.first("m")), 5, 0x04)

    path, system, arithmetic = start("in_storage", "int8_linear")
    final = run(path, system, flip)
    wrong = np.flatnonzero(bits(final) != bits(arithmetic.reference(STEPS)))
    assert wrong.tolist() == [5]


STAGED = [(p, f) for p, f in EVERY if not p.startswith("host_offload")]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("name", "format"), STAGED)
def test_a_gradient_that_is_not_staged_again_is_a_nan(name, format, again):
    """Between its way down and its use a gradient lies in the drive's DRAM, and is gone with its
    use: where the second one of some parameters never arrives, the first one is not taken for it.
    Their weights are NaNs, and no others."""
    path, system, arithmetic = start(name, format)
    one_step(path, system, 0)
    gone = staged(path.payload)
    assert np.isnan(arithmetic.wide(gone)).all()
    follow, lost = system.on_log, []

    def without(log):
        keep = np.ones(len(log), bool)
        for i, entry in enumerate(log):
            down = name == "on_die" or int(entry.n) == rows.DMA_DOWN
            if int(entry.what) == payload_log.LOG_ROW and down and not lost and not again:
                lost.append((int(entry.lpn), min(int(entry.lpn) + int(entry.old), 16_881)))
                keep[i] = False
        follow(log[keep])

    system.on_log = without
    one_step(path, system, 1)
    final = arithmetic.wide(path.finish())
    expected = arithmetic.wide(arithmetic.reference(2)).copy()
    if not again:
        ((first, last),) = lost
        assert 256 <= last - first < 16_881
        expected[first:last] = np.nan
    assert ((final == expected) | (np.isnan(final) & np.isnan(expected))).all()


def staged(payload):
    """Gradients in the drive's DRAM, of all parameters."""
    if isinstance(payload, Conventional):
        return payload.vector(0, "g")
    return payload.staged


# --- what a format takes

PARAMS = 4 << 20
TAKES = {  # bytes per parameter on flash of w, m, v; of the gradient; of what goes up
    "fp32": (12, 4, 4), "bf16_master": (10, 2, 2), "fp16": (12, 2, 2), "bf16": (12, 2, 2),
    "bf16_all": (6, 2, 2), "bf16_stochastic": (6, 2, 2), "int8_dynamic": (6 + 2 / 64, 4, 4),
    "int8_linear": (6 + 2 / 64, 4, 4),
}  # fmt: skip


def counted(name, format, *settings):
    cfg = load_preset("optimstore-r1", ["pe.narrow_values=1", *settings])
    trace = large("adam", PARAMS)
    return run_path(name, cfg, trace, Options(format=format), steps=1, payload=False)


@pytest.mark.parametrize("format", FORMATS)
def test_bytes_of_host_offload(format):
    """Gradients written; w m v g read, w m v written. A sub-group's scales are a file: of 2^22
    parameters 65,536 B for each state."""
    states, gradient, _ = TAKES[format]
    c = counted("host_offload", format).ledger.totals.counters
    assert c["host_read_bytes"] == (states + gradient) * PARAMS
    assert c["host_write_bytes"] == (states + gradient) * PARAMS


@pytest.mark.parametrize("format", FORMATS)
def test_bytes_in_storage(format):
    """w m v read and written in whole pages; gradients down, weights up. 31 blocks of codes in a
    page of 8 KiB: 7,936 parameters, 528.5 pages of each state, in the last of them half."""
    states, gradient, up = TAKES[format]
    t = counted("in_storage", format).ledger.totals
    moved = states * PARAMS
    if FORMATS[format].codes:
        moved = 4 * PARAMS + 2 * 529 * 8192
    assert t.counters["isp_read_bytes"] == moved == t.counters["isp_write_bytes"]
    assert t.bytes_by["link down"] == gradient * PARAMS
    assert t.bytes_by["link up"] == up * PARAMS
    computed = 2 * (moved if not FORMATS[format].codes else states * PARAMS) + gradient * PARAMS
    computed += 2 * PARAMS * (format in ("fp16", "bf16"))  # the copy for the model
    through = 2 * moved + (gradient + up) * PARAMS + computed
    assert t.bytes_by["DRAM"] == through


@pytest.mark.parametrize("format", DIE)
def test_bytes_on_the_die(format):
    """A page of 8 KiB holds 2,048 FP32 values, or 4,096 of BF16. Gradients down and into the dies;
    weights up as the model computes with them."""
    states, gradient, up = TAKES[format]
    result = counted("on_die", format)
    t = result.ledger.totals
    stripes = PARAMS // (4096 if format == "bf16_all" else 2048)
    assert t.counters["bpp_pages"] == t.counters["bpr_pages"] == 3 * stripes
    assert t.bytes_by["channels in"] == gradient * PARAMS
    assert t.bytes_by["link down"] == gradient * PARAMS and t.bytes_by["link up"] == up * PARAMS
    assert t.super_pages[1] == stripes
    assert result.ledger.update_s == pytest.approx(result.bound.seconds, rel=0.03)


def test_elements_take_one_value_or_two():
    """Five passes over 8 KiB at 800 MT/s, four bytes a clock: 2,048 values take 51.2 us. Of 4,096
    values of BF16 a clock each 102.4 us, or two a clock 51.2 us again."""
    times = {}
    for lanes in (1, 2):
        cfg = load_preset("optimstore-r1", [f"pe.narrow_values={lanes}"])
        path = PATHS["on_die"](cfg, large("adam", PARAMS), Options(format="bf16_all"))
        times[lanes] = path.compute_ps
    plain = PATHS["on_die"](load_preset("optimstore-r1"), large("adam", PARAMS)).compute_ps
    assert (times[1], times[2], plain) == (102_400_000, 51_200_000, 51_200_000)


def test_cores_pay_for_casts():
    """Counted for each format on 128-bit vectors; two casts and one more for BF16 masters."""
    cfg = load_preset("newport")
    table = core.measured()["fma128"]
    times = {f: core.update_ps(cfg, "adam", False, 1 << 20, 28, f) for f in FORMATS}
    assert times["fp32"] < times["fp16"] < times["bf16"] < times["int8_dynamic"]
    own = table["adam"]["bulk"] + 2 * table["from_bf16"]["bulk"] + table["to_bf16"]["bulk"]
    ratio = times["bf16_master"] / times["fp32"]
    assert ratio == pytest.approx(own / table["adam"]["bulk"], rel=1e-6)


def test_capacity_follows():
    """As many parameters as fill the namespace in FP32 (w, m, v, g) are half as many as in BF16;
    in a reservoir as well."""
    cfg = load_preset("optimstore-r1", ["flash.blocks_per_plane=24", "pe.narrow_values=1"])
    g = Geometry.of(cfg)
    pages = logical_pages(cfg, g)
    room = (g.reservoir_blocks - 1) * g.pages * g.dies  # super-pages, of 2,048 parameters in FP32
    for name, most, text in (
        ("host_offload", pages // 4 * 2048, "the conventional namespace has"),
        ("in_storage", pages // 3 * 2048, "the conventional namespace has"),
        ("on_die", room * 2048, "the reservoir has"),
    ):
        for format, params, fits in (
            ("fp32", most * 15 // 16, True), ("fp32", most * 17 // 16, False),
            ("bf16_all", most * 30 // 16, True), ("bf16_all", most * 34 // 16, False),
        ):  # fmt: skip
            if fits:
                PATHS[name](cfg, large("adam", params), Options(format=format))
                continue
            with pytest.raises(Unavailable, match=text):
                PATHS[name](cfg, large("adam", params), Options(format=format))


@pytest.mark.parametrize(
    ("name", "device", "text"),
    [
        ("stannis", "newport", "vectors stay in the nodes' DRAM in FP32"),
        ("chip_level", "optimstore-r1", "only fp32 is supported"),
        ("smart_base", "smartssd", "only fp32 is supported"),
        ("smart_handler", "smartssd", "only fp32 is supported"),
    ],
)
def test_paths_that_know_fp32_alone(name, device, text):
    trace = traces.load("mobilenetv2") if name == "stannis" else large("adam", PARAMS)
    PATHS[name](load_preset(device), trace, Options())
    with pytest.raises(Unavailable, match=f"{name}: format bf16: {text}"):
        PATHS[name](load_preset(device), trace, Options(format="bf16"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"format": "bf16_al"}, "format: unknown format 'bf16_al'; nearest: bf16_all"),
        ({"format": "bf16", "form": "torch"}, 'require form = "canonical"'),
        ({"format": "bf16_all", "weights_up": "fp16"}, "already sends 16-bit weights"),
    ],
)
def test_options_that_do_not_go_together(options, text):
    with pytest.raises(InputError, match=text):
        Options(**options)


def test_a_format_says_what_it_is():
    for name in FORMATS:
        s = Stored(name, "adam")
        assert s.states == ("m", "v")
        assert s.bytes_each == TAKES[name][0] and s.shown.itemsize == TAKES[name][2]
        if name in KERNELS:
            scales = 2 * 2 * 4 / 256 if KERNELS[name].codes else 0
            assert s.traffic == get("adam", format=name).bytes_per_param() + scales
            slots = [x for x in get("adam", format=name).slots if x.name != "out"]
            assert [(x.name, x.dtype, x.share) for x in s.slots] == [
                (x.name, x.dtype, x.share) for x in slots
            ]
