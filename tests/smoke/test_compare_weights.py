"""Does every updating path end on the weights that the kernel gives without the emulator?"""

import dataclasses

import numpy as np
import pytest

from ondie import traces
from ondie.emu.analysis import compare as comparison
from ondie.emu.analysis import weight_check as weights
from ondie.emu.analysis.compare import compare
from ondie.emu.analysis.weight_check import Mismatch, recorded_distance
from ondie.emu.config.config import load_preset
from ondie.emu.paths.base import Options
from ondie.emu.paths.optimizer_step import Arithmetic
from ondie.kernels import get
from tests.smoke.commands import BY_SMALL, SHORT, files, here, refused, small_for
from tests.traces.samples import sample, sample_file

NAMES = ("gpt-small", "mobilenetv2-digits", "mlp-fp16")
UPDATING = ("host_offload", "host_offload_pipelined", "in_storage", "on_die")
DEVICES = {"optimstore-r1": UPDATING, "newport": UPDATING[:3]}
VECTOR = 16
"""Elements past the last whole vector of a tensor are torch's scalar tail."""


def bits(vector: np.ndarray) -> np.ndarray:
    return vector.view(np.uint32)


def defined(trace: traces.Trace, form: str, steps: int) -> np.ndarray:
    """Weights after the first ``steps`` steps by the NumPy definition on whole vectors: no
    emulator, no compiled kernel, no code of the comparison."""
    kernel = get(trace.op, backend="numpy", form=form)
    w = trace.weights("initial").copy()
    states = [trace.states()[name].copy() for name in kernel.states]
    for i, step in enumerate(trace.steps[:steps]):
        if step.skipped:
            continue
        g = trace.gradient(i)
        for start, stop, group in trace.group_ranges():
            piece = slice(start, stop)
            coefficients = kernel.coefficients(step.hyper[group], step.count)
            kernel(w[piece], g[piece], [s[piece] for s in states], coefficients)
    return w


@pytest.fixture
def finals(monkeypatch) -> dict[str, np.ndarray]:
    """Weights on flash at the end of each path's run, as the comparison reads them."""
    found = {}
    original = weights.compare_weights

    def compare_weights(path, arithmetic, steps, spoiled):
        found[path.name] = path.finish()
        return original(path, arithmetic, steps, spoiled)

    monkeypatch.setattr(comparison, "compare_weights", compare_weights)
    return found


@pytest.mark.one_in(5, start=2)
@pytest.mark.parametrize("form", ["canonical", pytest.param("torch", marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", NAMES)
def test_recorded_traces_end_on_the_definition(finals, counts, name, form):
    trace = traces.load(name)
    skipped = [i for i, step in enumerate(trace.steps) if step.skipped]
    assert bool(skipped) == (name == "mlp-fp16")
    steps = counts(25 if skipped else 6, len(trace.steps))
    assert all(i < steps for i in skipped)
    expected = defined(trace, form, steps)
    assert (bits(expected) != bits(trace.weights("initial"))).mean() > 0.9
    cfg, options = load_preset("optimstore-r1", SHORT), Options(form=form)
    c = compare(trace, cfg, options=options, steps=steps, swing=False)
    assert set(finals) == set(UPDATING)
    for path, final in finals.items():
        assert (bits(final) == bits(expected)).all(), path
    for r in c.results:
        if r.name in UPDATING:
            w = r.weights
            assert w.equal_bits == w.elements == trace.n_params
            sent = None if r.name.startswith("host") else trace.n_params
            assert w.delivered_equal_bits == sent
        else:
            assert r.weights is None


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [pytest.param(NAMES[0], marks=pytest.mark.soak), *NAMES[1:]])
def test_the_bits_do_not_depend_on_the_device(finals, counts, name):
    """Newport has other pages, planes and units; two drives split the parameters."""
    trace = traces.load(name)
    steps = counts(5, len(trace.steps))
    expected = Arithmetic(trace).reference(steps)
    for device, overrides in counts(
        [("newport", SHORT)],
        [
            ("newport", ()),
            ("optimstore-r2", ("system.devices=3",)),
            ("optimstore-r1", ("system.devices=2", "pe.dispatch=double_buffered")),
            ("gen4-tlc", ()),
            ("smartssd", ("host.subgroup_params=10000",)),
        ],
    ):
        finals.clear()
        compare(trace, load_preset(device, overrides), steps=steps, swing=False)
        assert set(finals) >= {"host_offload", "host_offload_pipelined"}
        for path, final in finals.items():
            assert (bits(final) == bits(expected)).all(), (device, path)


def test_blocks_that_end_at_super_pages_of_mapping_units(finals):
    """The blocks of smart_base end at super-pages, of which each has 16 mapping units here."""
    trace = traces.load("mlp-fp16")
    expected = Arithmetic(trace).reference(2)
    cfg = load_preset("gen4-tlc", small_for("gen4-tlc"))
    compare(trace, cfg, steps=2, paths=["host_offload", "smart_base"], swing=False)
    assert set(finals) == {"host_offload", "smart_base"}
    assert all((bits(final) == bits(expected)).all() for final in finals.values())


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", NAMES)
def test_the_torch_form_ends_on_the_recorded_weights(name):
    """Bit for bit, but for the scalar tail of a tensor, which torch contracts differently: one
    unit in the last place per step at most."""
    trace = traces.load(name)
    assert trace.form == "torch"
    cfg = load_preset("optimstore-r1", SHORT)
    c = compare(trace, cfg, options=Options(form="torch"), paths=["on_die"], swing=False)
    w = c.results[0].weights
    reference = Arithmetic(trace, "torch").reference(len(trace.steps))
    differ = np.flatnonzero(bits(reference) != bits(trace.weights("final")))
    sizes = {t.name: t.size for t in trace.trainable}
    for element in differ:
        tensor, at = trace.locate(int(element))
        assert at >= sizes[tensor] - sizes[tensor] % VECTOR, (tensor, at)
    assert w.recorded_equal_share == 1 - len(differ) / trace.n_params
    assert w.recorded_distance < 1
    if name != "mlp-fp16":  # whose last tensor has ten elements: all of them tail
        assert len(differ) == 0 and w.recorded_distance == 0


@pytest.mark.one_in(5, start=1)
@pytest.mark.parametrize("name", NAMES)
def test_the_canonical_form_ends_near_the_recorded_weights(name):
    trace = traces.load(name)
    c = compare(trace, load_preset("newport", SHORT), paths=["in_storage"], swing=False)
    w = c.results[0].weights
    assert 0 < w.recorded_distance <= weights.TOLERANCE == 16
    assert 0.1 < w.recorded_equal_share < 1


def test_without_all_steps_there_is_nothing_recorded_to_compare_with():
    trace, paths = traces.load("mlp-fp16"), ["host_offload"]
    c = compare(trace, load_preset("newport", SHORT), steps=3, swing=False, paths=paths)
    w = c.result("host_offload").weights
    assert w.equal_bits == w.elements
    assert (w.recorded_distance, w.recorded_equal_share) == (None, None)


def test_the_table_prints_the_distance(capsys, tmp_path):
    words = ["compare", "mlp-fp16", "--out", tmp_path, "--no-swing", "--verbose", "--form", "torch"]
    out = here(capsys, *words, *BY_SMALL, "--paths", "host_offload,on_die").out
    n = f"{traces.load('mlp-fp16').n_params:,}"
    assert out.count(f"{n} of {n}") == 2
    assert "bit-identical to recorded" in out and " units " in out and "limit 16" in out


# --- the unit of the distance


def two_groups(rates: tuple[float, float]) -> traces.Trace:
    """Three steps at these learning rates; the middle one is skipped."""
    trace = sample(skipped=(1,))
    hyper = tuple({**h, "lr": rate} for h, rate in zip(trace.steps[0].hyper, rates, strict=True))
    return dataclasses.replace(
        trace, steps=tuple(dataclasses.replace(s, hyper=hyper) for s in trace.steps)
    )


def test_distance_by_hand():
    """Sum of learning rates over the two steps that counted: 2 x 0.25 and 2 x 2. An element of
    0.125 in the first group has the unit 2**-24 x 0.5, one of 8 in it the unit 2**-24 x 8, one of
    1 in the second group the unit 2**-24 x 4."""
    trace = two_groups((0.25, 2.0))
    recorded = np.zeros(trace.n_params, np.float32)
    recorded[[0, 1, 12]] = 0.125, 8, 1
    for at, unit in ((0, 0.5), (1, 8.0), (12, 4.0), (2, 0.5)):
        final = recorded.copy()
        final[at] += np.float32(3 * unit * 2.0**-24 * 2**10)
        distance, share = recorded_distance(final, recorded, trace)
        assert distance == 3 * 2**10
        assert share == 1 - 1 / trace.n_params


def test_a_zero_of_the_other_sign_is_no_distance():
    trace = two_groups((0.25, 2.0))
    recorded = np.zeros(trace.n_params, np.float32)
    distance, share = recorded_distance(-recorded, recorded, trace)
    assert (distance, share) == (0.0, 0.0)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_on_one_side_only_is_far(wrong):
    trace = two_groups((0.25, 2.0))
    recorded = np.ones(trace.n_params, np.float32)
    final = recorded.copy()
    final[7] = wrong
    for pair in ((final, recorded), (recorded, final)):
        assert not recorded_distance(*pair, trace)[0] <= weights.TOLERANCE
    assert recorded_distance(final, final, trace) == (0.0, 1.0)


# --- what differs is a defect: one line, exit code 1, nothing written


@pytest.fixture
def broken(monkeypatch):
    """Within the emulator, and only there, updates use other coefficients in the last place."""
    apply, reference = Arithmetic.apply, Arithmetic.reference
    outside = []

    def other(self, coefficients, *arguments):
        if not outside:
            up = np.float32(np.inf)
            coefficients = [c._replace(coef=np.nextafter(c.coef, up)) for c in coefficients]
        apply(self, coefficients, *arguments)

    def right(self, steps):
        outside.append(True)
        try:
            return reference(self, steps)
        finally:
            outside.pop()

    monkeypatch.setattr(Arithmetic, "apply", other)
    monkeypatch.setattr(Arithmetic, "reference", right)


@pytest.mark.one_in(5, start=3)
@pytest.mark.parametrize("path", UPDATING)
def test_a_broken_kernel_is_found(capsys, tmp_path, monkeypatch, broken, path):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "mlp-fp16", "--steps", "2", "--paths", path, *BY_SMALL, "--out", "out"]
    line = refused(here(capsys, *words), f"defect: {path}: ", "differ from the", "at", code=1)
    n = traces.load("mlp-fp16").n_params
    assert f" of {n} weights" in line
    assert files(tmp_path) == []


def test_without_the_fault_the_same_command_runs(capsys, tmp_path):
    words = ["compare", "mlp-fp16", "--steps", "2", "--out", tmp_path, "--no-swing"]
    assert here(capsys, *words, *BY_SMALL).code == 0


def test_weights_that_arrive_wrong_are_found(monkeypatch):
    """On flash they are right; on their way to the host one bit flips."""
    from ondie.emu.paths.on_die.path import OnDie

    original = OnDie.delivered

    def flipped(self):
        sent = original(self).copy()
        bits(sent)[100] ^= 1
        return sent

    monkeypatch.setattr(OnDie, "delivered", flipped)
    cfg = load_preset("optimstore-r1", SHORT)
    with pytest.raises(Mismatch, match=r"on_die: 1 of \d+ weights that were sent to the host"):
        compare(traces.load("mlp-fp16"), cfg, steps=1, paths=["on_die"], swing=False)


def test_weights_far_from_the_recorded_ones_are_found(capsys, tmp_path, monkeypatch):
    """The sample's last weights were drawn at random: no kernel ends there."""
    monkeypatch.chdir(tmp_path)
    sample_file(tmp_path, "run.h5")
    words = ["compare", "run.h5", "--out", "out", "--paths", "host_offload"]
    refused(here(capsys, *words), "host_offload", "units of 2**-24", "the limit is 16", code=1)
    assert files(tmp_path) == ["run.h5"]


def test_a_trace_without_final_weights_is_held_against_the_reference_only():
    trace = sample()
    initial = {"initial": trace.weights("initial")}
    source = dataclasses.replace(trace.source, weight_vectors=initial)
    c = compare(
        dataclasses.replace(trace, source=source), load_preset("newport", SHORT), swing=False
    )
    w = c.result("in_storage").weights
    assert (w.equal_bits, w.recorded_distance) == (trace.n_params, None)


def test_a_trace_without_initial_weights_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace = sample()
    source = dataclasses.replace(trace.source, weight_vectors={})
    traces.write(tmp_path / "run.h5", dataclasses.replace(trace, source=source))
    refused(here(capsys, "compare", "run.h5", "--out", "out"), "initial weights")
    assert files(tmp_path) == ["run.h5"]


def test_half_precision_on_the_way_up_halves_the_bytes():
    trace, cfg = traces.load("mlp-fp16"), load_preset("optimstore-r1", SHORT)
    names = ["in_storage", "on_die"]
    full, half = (
        compare(trace, cfg, steps=2, options=Options(weights_up=width), swing=False, paths=names)
        for width in ("fp32", "fp16")
    )
    for name in names:
        a, b = (c.result(name).ledger.totals.bytes_by["link up"] for c in (full, half))
        assert 2 * b == a
        w = half.result(name).weights
        assert w.equal_bits == w.elements and w.delivered_equal_bits is None
