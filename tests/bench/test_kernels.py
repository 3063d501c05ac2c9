"""How fast is each kernel? pytest-benchmark's table over small points of `ondie bench kernels`.

python -m pytest tests/bench/test_kernels.py --benchmark-only

Owns a point for each contender of each operation, format and shape, and for each instruction set
and form in FP32. Does not compare: ratios need one interleaved run, which the command does.

Without benchmarks, formats other than FP32 have one shape for each operation (see `chosen`).
"""

from functools import lru_cache

import numpy as np
import pytest

from ondie.kernels import FORMATS, OPS, backends, get, isas
from ondie.kernels import grad as G
from ondie.kernels.bench import contenders as bench_cases
from ondie.kernels.bench.contenders import HYPER, PAGE, SHAPES, TENSORS, Case, filled
from ondie.kernels.cast import FORMATS as SHORT
from ondie.kernels.cast import narrow, widen

BACKENDS = [("numpy", None), ("numba", None), *(("c", isa) for isa in isas())]
SIZES = {"page": PAGE, "cache": 1_000_000}
SMALL = {"flat": 2 * PAGE, "page": PAGE, "tensors": 2 * TENSORS, "pages": 2 * PAGE}
CASES = [
    Case(op, SMALL[shape], form, shape)
    for op in OPS
    for form in FORMATS
    for shape in SHAPES
    if not (op == "sgd" and FORMATS[form].codes)  # it has no states
]
ON_OUR_ARRAYS = {*backends(), bench_cases.TORCH, bench_cases.THREE, bench_cases.LINEAR}


@lru_cache(maxsize=1)
def point(case):
    """The contenders of a case, the arrays that ours work on, and what these begin with."""
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_cases, "filled", lambda k, n: kept.append(filled(k, n)) or kept[-1])
        contenders = case.contenders()
    (arrays,) = kept
    return contenders, arrays, [a.copy() for a in arrays]


def chosen(case):
    """Whether a case runs without benchmarks. Every operation meets every format and every shape;
    test_run_kernels.py has every shape in every format."""
    turn = OPS.index(case.op) + list(FORMATS).index(case.format)
    return case.format == "fp32" or turn % len(SHAPES) == list(SHAPES).index(case.shape)


def pytest_generate_tests(metafunc):
    if metafunc.function is test_contender:
        timed = not metafunc.config.getoption("benchmark_disable")
        points = [
            pytest.param(case, who, id=f"{case.op}-{case.format}-{case.shape}-{who}")
            for case in CASES
            if timed or chosen(case)
            for who in case.names()
        ]
        metafunc.parametrize(("case", "who"), points)


@pytest.mark.one_in(3)
def test_contender(benchmark, case, who):
    benchmark.group = f"{case.name} n={case.n}"
    contenders, arrays, before = point(case)
    for a, b in zip(arrays, before, strict=True):
        a[:] = b
    if who not in contenders:
        pytest.skip(f"{who} is left out: it fails here, or does something else")
    benchmark(contenders[who])
    changed = [not np.array_equal(a, b) for a, b in zip(arrays, before, strict=True)]
    assert not changed[1]  # the gradient
    if who in ON_OUR_ARRAYS:
        if case.op != "sgd":
            assert changed[2]  # the first state
        else:  # a weight of 1 in BF16 is too coarse for a step: it stays
            assert changed[0] == (case.format != "bf16_all")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", ["canonical", "torch"])
@pytest.mark.parametrize("backend, isa", BACKENDS)
@pytest.mark.parametrize("op", OPS)
def test_update(benchmark, op, backend, isa, form, size):
    benchmark.group = f"{op} {size}"
    kernel = get(op, backend=backend, isa=isa, form=form)
    w, g, *states = filled(kernel, SIZES[size])
    coef = kernel.coefficients(HYPER[op], 10)
    before = w.copy()
    benchmark(kernel, w, g, states, coef)
    assert not np.array_equal(w, before)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("backend, isa", BACKENDS)
@pytest.mark.parametrize("what", ["norm", "unscale", *SHORT])
def test_gradient(benchmark, what, backend, isa):
    benchmark.group = f"gradient {what}"
    g = filled(get("sgd"), SIZES["cache"])[1]
    if what == "norm":
        assert benchmark(G.norm, g, backend=backend, isa=isa) > 0
    elif what == "unscale":
        assert not benchmark(G.unscale, g, 1.0, backend=backend, isa=isa)
    else:
        short = benchmark(narrow, g, what, backend=backend, isa=isa)
        np.testing.assert_allclose(widen(short, what), g, rtol=2.0**-8)
