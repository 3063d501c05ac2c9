"""Does `ondie bench kernels` measure what it says, and write it whole? Nothing here is timed."""

import json

import numpy as np
import pytest

from ondie.emu import bench
from ondie.emu.units import InputError
from ondie.kernels import OPS, KernelError, backends, get


@pytest.fixture(scope="module")
def small():
    return bench.run_kernels(sizes=(1000, 20_000), ops=OPS, repeat=2)


def test_every_contender_has_its_rows(small):
    names = {row.name for row in small.rows}
    for op in OPS:
        for n in (1000, 20_000):
            for contender in (bench.LIMIT, *backends()):
                assert f"{op} n={n} {contender}" in names
    assert all(row.value > 0 and row.ratio > 0 for row in small.rows)
    assert {row.unit for row in small.rows} == {"ns/param", "GB/s"}
    limits = [r for r in small.rows if r.name.endswith(r.anchor)]
    assert all(r.ratio == 1 for r in limits)


def test_torch_is_measured_where_it_is():
    pytest.importorskip("torch", reason="torch is not installed")
    rows = bench.run_kernels(sizes=(5000,), ops=OPS, repeat=2).rows
    for op in OPS:
        contenders = {r.name.split(" ", 2)[2] for r in rows if r.name.startswith(f"{op} ")}
        assert {bench.TORCH, "torch.optim fused", "torch.optim foreach"} <= contenders
        assert any(r.name == f"{op} n=5000 c" and r.anchor == bench.TORCH for r in rows)


def test_torchs_operator_does_the_work_ours_does(rng):
    """The anchor updates the same memory: one call equals the torch form at the same step."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for op in OPS:
        kernel = get(op, form="torch")
        arrays = [np.abs(rng.standard_normal(64)).astype("f4") for _ in range(4)]
        arrays = arrays[: 2 + len(kernel.states)]
        ours = [a.copy() for a in arrays]
        kernel(ours[0], ours[1], ours[2:], kernel.coefficients(bench.HYPER[op], 10))
        bench._theirs(torch, op, arrays)[bench.TORCH]()
        assert all(a.tobytes() == b.tobytes() for a, b in zip(ours, arrays, strict=True)), op


def test_ratios_are_per_round():
    """Times that drift together: the ratio stays 2 though the medians' ratio would not say so."""
    samples = {bench.LIMIT: [1.0, 10.0, 3.0], "c": [2.0, 20.0, 6.0]}
    row = next(r for r in bench._rows("adam", 1, 28, samples) if r.name == "adam n=1 c")
    assert row.ratio == 2 and row.value == 6e9
    rate = [r for r in bench._rows("adam", 1, 28, samples) if r.unit == "GB/s"]
    assert [r.value for r in rate] == [float(f"{28 / 3e9:.4g}"), float(f"{28 / 6e9:.4g}")]
    assert [r.ratio for r in rate] == [1.0, 0.5]


def test_the_limit_moves_the_updates_bytes():
    """28, 20 and 12 bytes: every array read, all but the gradient written: x = (x + g) / 2."""
    for op in OPS:
        kernel = get(op)
        arrays = [np.full(100, i, np.float32) for i in range(2 + len(kernel.states))]
        assert kernel.bytes_per_param() == 4 * (2 * len(arrays) - 1)
        bench._ours(op, arrays, 1)[bench.LIMIT]()
        for i, a in enumerate(arrays):
            assert (a == (i if i == 1 else (i + 1) / 2)).all()


def test_json_and_table(tmp_path, capsys, monkeypatch):
    run = bench.run_kernels
    monkeypatch.setattr(
        bench, "run_kernels", lambda sizes, threads, ops, progress: run(sizes, threads, ops, 2)
    )
    target = tmp_path / "rows.json"
    bench.kernels_command([1000], 1, target, quiet=True)
    assert capsys.readouterr().out == ""
    document = json.loads(target.read_text())
    assert document["schema_version"] == 1 and document["machine"]["threads"] == 1
    assert {"name", "value", "unit", "anchor", "ratio"} == set(document["rows"][0])
    assert list(tmp_path.iterdir()) == [target]
    bench.kernels_command([1000], 1, None, quiet=False)
    out = capsys.readouterr().out
    assert "adam n=1,000" in out and bench.LIMIT in out and "…" not in out


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "run_kernels", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.kernels_command([1000], 1, tmp_path / "rows.json", quiet=True)
    assert not list(tmp_path.iterdir())


def test_default_sizes_fit_the_memory(monkeypatch):
    asked = []
    monkeypatch.setattr(bench, "_one", lambda op, n, *rest: asked.append(n) or [])
    monkeypatch.setattr(bench, "free_bytes", lambda: 64 * 50_000_000)
    bench.run_kernels(ops=("adam",))
    assert asked == [1_000_000, 50_000_000]


@pytest.mark.parametrize(
    "error, words, options",
    [
        (InputError, ["0 parameters"], {"sizes": (0,)}),
        (InputError, ["10000000000000", "at most"], {"sizes": (10**13,)}),
        (InputError, ["threads: 0"], {"threads": 0}),
        (KernelError, ["'lion'"], {"ops": ("lion",), "sizes": (10,)}),
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
        bench.kernels_command([1000], 1, tmp_path, quiet=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        bench.kernels_command([1000], 1, tmp_path / "file" / "rows.json", quiet=True)
