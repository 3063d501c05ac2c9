"""Does `ondie bench kernels` measure what it says, and write it whole? Nothing here is timed."""

import json

import numpy as np
import pytest

from ondie.emu.cli.commands.bench_run import KernelBenchOptions, kernels_command
from ondie.emu.units import InputError
from ondie.kernels import FORMATS, OPS, KernelError, backends, get, native
from ondie.kernels.bench import contenders as bench_cases
from ondie.kernels.bench import run as bench
from ondie.kernels.bench.contenders import PEAK, Case


@pytest.fixture(scope="module")
def small():
    return bench.run_kernels(sizes=(1000, 20_000), ops=OPS, repeat=2)


def test_every_contender_has_its_rows(small):
    names = {row.name for row in small.rows}
    for op in OPS:
        for n in (1000, 20_000):
            for contender in (bench_cases.LIMIT, *backends()):
                assert f"{op} n={n} {contender}" in names
    assert all(row.value > 0 and row.ratio > 0 for row in small.rows)
    assert {row.unit for row in small.rows} == {"ns/param", "GB/s", "Gop/s"}
    done = {row.name: row for row in small.rows if row.unit == "Gop/s"}
    for op in OPS:  # of the memory limit, no operations are counted
        assert {f"{op} n=1000 {name}" for name in (*backends(), PEAK)} <= set(done)
        assert f"{op} n=1000 {bench_cases.LIMIT}" not in done
    limits = [r for r in small.rows if r.name.endswith(r.anchor)]
    assert all(r.ratio == 1 for r in limits)


def test_torch_is_measured_where_it_is():
    pytest.importorskip("torch", reason="torch is not installed")
    rows = bench.run_kernels(sizes=(5000,), ops=OPS, repeat=2).rows
    for op in OPS:
        contenders = {r.name.split(" ", 2)[2] for r in rows if r.name.startswith(f"{op} ")}
        assert {bench_cases.TORCH, "torch.optim fused", "torch.optim foreach"} <= contenders
        assert any(r.name == f"{op} n=5000 c" and r.anchor == bench_cases.TORCH for r in rows)


@pytest.mark.parametrize("shape", ["flat", "tensors"])
def test_torchs_operator_does_the_work_ours_does(shape, rng):
    """The anchor updates the same memory: one call equals the torch form at the same step, on one
    array and on many. (Of 64 elements each: no scalar tail.)"""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    n = 64 if shape == "flat" else 64 * bench_cases.TENSORS
    for op in OPS:
        kernel = get(op, form="torch")
        arrays = [np.abs(rng.standard_normal(n)).astype("f4") for _ in range(4)]
        arrays = arrays[: 2 + len(kernel.states)]
        ours = [a.copy() for a in arrays]
        coef = kernel.coefficients(bench_cases.HYPER[op], 10)
        kernel(ours[0], ours[1], ours[2:], coef)
        case = Case(op, n, shape=shape)
        bench_cases._theirs(torch, case, arrays)[bench_cases.TORCH]()
        assert all(a.tobytes() == b.tobytes() for a, b in zip(ours, arrays, strict=True)), op


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_three_passes_do_the_work_of_one(name, rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = Case("adam", 640, name)
    arrays = bench_cases.filled(case.kernel(), 640)
    ours = [a.copy() for a in arrays]
    case.kernel().run(ours, case.kernel().coefficients(bench_cases.HYPER["adam"], 10))
    bench_cases._theirs(torch, case, arrays)["torch, three passes"]()
    np.testing.assert_allclose(arrays[0], ours[0], rtol=1e-6)
    np.testing.assert_allclose(arrays[2], ours[2], rtol=1e-6)
    kind = torch.float16 if name == "fp16" else torch.bfloat16
    wide = torch.from_numpy(arrays[4]).view(kind).float().numpy()
    np.testing.assert_allclose(wide, arrays[0], rtol=2.0**-8)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", bench_cases.SHAPES)
@pytest.mark.parametrize("name", FORMATS)
def test_every_contender_of_every_case_updates(name, shape, monkeypatch):
    """All but the memory limit of other formats, which works on memory of its own, change the
    weights that they are given."""
    n = 4096 if shape == "page" else 8192
    made = []
    real = bench_cases.filled
    monkeypatch.setattr(bench_cases, "filled", lambda k, n: made.append(real(k, n)) or made[-1])
    for op in ("adam", "momentum"):
        case = Case(op, n, name, shape)
        contenders = case.contenders()
        assert case.names() == tuple(contenders)
        ours = {*backends(), bench_cases.TORCH, bench_cases.LINEAR, bench_cases.THREE}
        assert {bench_cases.LIMIT, *backends()} <= set(contenders)
        if shape == "pages":
            assert bench_cases.LINEAR in contenders
        for who, call in contenders.items():
            before = [a.copy() for a in made[-1]]
            call()
            if who in ours:
                pairs = zip(made[-1], before, strict=True)
                changed = [not np.array_equal(a, b, equal_nan=False) for a, b in pairs]
                assert changed[1:3] == [False, True], who  # the gradient, and the first state
        label = case.name.split("/")
        assert label[0] == op and (name in label) == (name != "fp32")


def test_tensors_of_unequal_size_have_the_scales_they_need():
    for n in (512_001, 1_024_001):
        contenders = Case("adam", n, "int8_dynamic", "tensors").contenders()
        contenders["c"]()


def test_what_cannot_be_measured_is_refused():
    for arguments, words in [
        (("adam", 100, "fp32", "tensors"), "at least 2000"),
        (("adam", 5000, "fp32", "pages"), "must be a multiple of 4096"),
        (("adam", 5000, "fp32", "page"), "must be 4096 for shape page"),
    ]:
        with pytest.raises(KernelError, match=words):
            Case(*arguments)
    for arguments in [("adamax", 10), ("adam", 10, "fp8"), ("adam", 10, "fp32", "round")]:
        with pytest.raises(KernelError, match="unknown"):
            Case(*arguments)


def test_ratios_are_per_round():
    """Times that drift together: the ratio stays 2 though the medians' ratio would not say so."""
    samples = {bench_cases.LIMIT: [1.0, 10.0, 3.0], "c": [2.0, 20.0, 6.0]}
    row = next(r for r in bench._rows("adam", 1, 28, samples) if r.name == "adam n=1 c")
    assert row.ratio == 2 and row.value == 6e9
    rate = [r for r in bench._rows("adam", 1, 28, samples) if r.unit == "GB/s"]
    assert [r.value for r in rate] == [float(f"{28 / 3e9:.4g}"), float(f"{28 / 6e9:.4g}")]
    assert [r.ratio for r in rate] == [1.0, 0.5]


def test_operations_per_second_are_those_of_the_update():
    """Adam has 14 per parameter: 1000 parameters in 1 us are 14 Gop/s, in 2 us 7; the compute
    limit did 28,000 in the first time, 56,000 in the second."""
    samples = {bench_cases.LIMIT: [1e-6] * 3, "c": [1e-6, 2e-6, 2e-6], PEAK: [1e-6, 1e-6, 2e-6]}
    rows = bench._arithmetic(Case("adam", 1000, "bf16"), samples, 28_000)
    assert [(r.name, r.value, r.unit, r.anchor, r.ratio) for r in rows] == [
        ("adam/bf16 n=1000 c", 7.0, "Gop/s", PEAK, 0.5),
        (f"adam/bf16 n=1000 {PEAK}", 28.0, "Gop/s", PEAK, 1.0),
        ("adam/bf16 n=1000 c", 2.0, "ns/param", bench.IN_RUN, 2.0),
    ]
    slow = bench._arithmetic(Case("adam", 1000, "bf16"), samples | {PEAK: [8e-6] * 3}, 28_000)
    assert slow[-1].ratio == 0.5  # 14,000 operations take 4 us


def test_the_machine_says_what_compiled_the_kernels(monkeypatch):
    class Library:
        """An extension that says so, and one that does not."""

        def ondie_compiler(self):
            return native.ffi.new("char[]", b"gcc 12.2.0, -O3")

    if native.lib is None:
        pytest.skip("without the C extension")
    monkeypatch.setattr(native, "lib", Library())
    assert bench.compiler() == "gcc 12.2.0, -O3"
    monkeypatch.setattr(native, "lib", object())
    assert bench.compiler() == "unknown"
    monkeypatch.setattr(native, "lib", None)
    assert bench.compiler() == "none"
    assert "compiler" in bench.machine(1)


def test_the_limit_moves_the_updates_bytes(monkeypatch):
    """28, 20 and 12 bytes: every array read, all but the gradient written: x = (x + g) / 2; of
    other formats as many bytes as there are, out written."""
    made = []
    real = bench_cases.aligned_empty

    def kept(n, dtype=np.float32):
        made.append(real(n, dtype))
        return made[-1]

    for op in OPS:
        kernel = get(op, backend="numpy")
        arrays = [np.full(100, i, np.float32) for i in range(2 + len(kernel.states))]
        assert kernel.bytes_per_param() == 4 * (2 * len(arrays) - 1)
        bench_cases._limit(kernel, arrays, 1)()
        for i, a in enumerate(arrays):
            assert (a == (i if i == 1 else (i + 1) / 2)).all()
    for name in ("bf16", "bf16_all", "int8_dynamic"):
        kernel = get("adam", backend="numpy", format=name)
        arrays = bench_cases.filled(kernel, 4096)
        monkeypatch.setattr(bench_cases, "aligned_empty", kept)
        made.clear()
        call = bench_cases._limit(kernel, arrays, 1)
        before = [a.tobytes() for a in made]
        call()
        pairs = zip(kernel.slots, made, before, strict=True)
        changed = {slot.name for slot, a, b in pairs if a.tobytes() != b}
        monkeypatch.undo()
        assert changed == {s.name for s in kernel.slots if s.share == 1 and s.name != "g"}


def test_json_and_table(tmp_path, capsys, monkeypatch):
    run = bench.run_kernels
    monkeypatch.setattr(
        bench,
        "run_kernels",
        lambda sizes, threads, ops, progress, **more: run(sizes, threads, ops, 2, **more),
    )
    target = tmp_path / "rows.json"
    kernels_command(options(target))
    assert capsys.readouterr().out == ""
    document = json.loads(target.read_text())
    assert document["schema_version"] == 1 and document["machine"]["threads"] == 1
    assert {"name", "value", "unit", "anchor", "ratio"} == set(document["rows"][0])
    assert list(tmp_path.iterdir()) == [target]
    kernels_command(KernelBenchOptions(sizes=(1000,)))
    out = capsys.readouterr().out
    assert "adam n=1,000" in out and bench_cases.LIMIT in out and "…" not in out


def options(target) -> KernelBenchOptions:
    return KernelBenchOptions(sizes=(1000,), json_path=target, quiet=True)


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "run_kernels", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kernels_command(options(tmp_path / "rows.json"))
    assert not list(tmp_path.iterdir())


def test_default_sizes_fit_the_memory(monkeypatch):
    asked = []
    monkeypatch.setattr(bench, "_one", lambda case, *rest: asked.append(case.n) or [])
    monkeypatch.setattr(bench, "free_bytes", lambda: 96 * 50_000_000)
    bench.run_kernels(ops=("adam",))
    assert asked == [1_000_000, 50_000_000]


@pytest.mark.parametrize(
    "error, words, options",
    [
        (KernelError, ["0 parameters"], {"sizes": (0,)}),
        (KernelError, ["10000000000000", "at most"], {"sizes": (10**13,)}),
        (KernelError, ["threads: 0"], {"threads": 0}),
        (KernelError, ["'lion'"], {"ops": ("lion",), "sizes": (10,)}),
        (KernelError, ["sgd with int8_linear"], {"ops": ("sgd",), "formats": ("int8_linear",)}),
    ],
)
def test_bad_input(error, words, options):
    with pytest.raises(error) as caught:
        bench.run_kernels(**options)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)


def test_an_impossible_target_is_named_before_measuring(tmp_path, monkeypatch):
    def measure(*_, **__):
        raise AssertionError("measured before the target was looked at")

    monkeypatch.setattr(bench, "run_kernels", measure)
    with pytest.raises(InputError, match="it is a folder"):
        kernels_command(options(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        kernels_command(options(tmp_path / "file" / "rows.json"))
