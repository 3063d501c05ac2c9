"""How fast is each kernel? pytest-benchmark's table over the points of `ondie bench kernels`.

python -m pytest tests/bench/test_kernels.py --benchmark-only
"""

import numpy as np
import pytest

from ondie.emu.bench_cases import HYPER
from ondie.kernels import OPS, aligned_empty, get, isas
from ondie.kernels import grad as G
from ondie.kernels.cast import FORMATS, narrow, widen

BACKENDS = [("numpy", None), ("numba", None), *(("c", isa) for isa in isas())]
SIZES = {"page": 4096, "cache": 1_000_000}


def arrays(count, n):
    made = [aligned_empty(n) for _ in range(count)]
    for a in made:
        a[:] = np.linspace(0.5, 1.5, n, dtype=np.float32)
    return made


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", ["canonical", "torch"])
@pytest.mark.parametrize("backend, isa", BACKENDS)
@pytest.mark.parametrize("op", OPS)
def test_update(benchmark, op, backend, isa, form, size):
    benchmark.group = f"{op} {size}"
    kernel = get(op, backend=backend, isa=isa, form=form)
    w, g, *states = arrays(2 + len(kernel.states), SIZES[size])
    coef = kernel.coefficients(HYPER[op], 10)
    before = w.copy()
    benchmark(kernel, w, g, states, coef)
    assert not np.array_equal(w, before)


@pytest.mark.parametrize("backend, isa", BACKENDS)
@pytest.mark.parametrize("what", ["norm", "unscale", *FORMATS])
def test_gradient(benchmark, what, backend, isa):
    benchmark.group = f"gradient {what}"
    (g,) = arrays(1, SIZES["cache"])
    if what == "norm":
        assert benchmark(G.norm, g, backend=backend, isa=isa) > 0
    elif what == "unscale":
        assert not benchmark(G.unscale, g, 1.0, backend=backend, isa=isa)
    else:
        short = benchmark(narrow, g, what, backend=backend, isa=isa)
        np.testing.assert_allclose(widen(short, what), g, rtol=2.0**-8)
