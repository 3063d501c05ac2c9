"""Are the chosen numbers the largest, and do they come back where they were?"""

import numpy as np
import pytest

from ondie.kernels import KernelError, topk
from ondie.kernels.cast import narrow, widen
from ondie.kernels.grad import accumulate
from ondie.kernels.update import BACKENDS
from tests.numerics.harness import KINDS, compiled, same_bits, values


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_largest_by_sorting(backend, rng, counts):
    """Of every kind of number, with many equals: Python's stable sort chooses."""
    for kind in (*KINDS, "equal"):
        for n in (1, 2, 17, 1000, counts(5000, 100_000)):
            g = values(rng, n, kind) if kind != "equal" else rng.integers(-3, 4, n).astype("f4")
            sizes = (g.view(np.uint32) & 0x7FFFFFFF).tolist()
            order = sorted(range(n), key=lambda i, s=sizes: (-s[i], i))
            for k in {0, 1, n // 100, n // 2, n - 1, n}:
                index, value = topk.compress(g, k, backend)
                assert index.dtype == np.uint32 and index.tolist() == sorted(order[:k])
                assert value.tobytes() == g[index].tobytes()


def test_scatter_is_the_inverse(rng):
    g = values(rng, 3000, "wide")
    index, value = topk.compress(g, 300)
    back = np.full(3000, 7, np.float32)
    topk.scatter(index, value, back)
    assert back[index].tobytes() == value.tobytes() and np.count_nonzero(back) == 300
    rest = g - back
    assert np.abs(rest).max() <= np.abs(value).min() and not rest[index].any()
    everything = topk.compress(g, 3000)
    topk.scatter(*everything, back)
    assert back.tobytes() == g.tobytes()


def test_refused(rng):
    g = values(rng, 100, "ordinary")
    for k in (-1, 101):
        with pytest.raises(KernelError, match="must be from 0 to 100"):
            topk.compress(g, k)
    with pytest.raises(KernelError, match="g is float64"):
        topk.compress(g.astype(np.float64), 3)
    index, value = topk.compress(g, 5)
    with pytest.raises(KernelError, match="must be below 10"):
        topk.scatter(np.full(5, 10, np.uint32), value, np.zeros(10, np.float32))
    with pytest.raises(KernelError, match="value 4"):
        topk.scatter(index, value[:4].copy(), g)


@pytest.mark.parametrize("backend, isa", [("numpy", None), *compiled()])
def test_accumulate(backend, isa, rng):
    """What is added is exactly what was stored, for any number of threads."""
    for kind in KINDS:
        for n in (0, 1, 33, 1000, 40_000):
            start, x = values(rng, n, kind), values(rng, n, kind)
            for form in (None, "float16", "bfloat16"):
                g = x if form is None else narrow(x, form)
                wide = x if form is None else widen(g, form)
                with np.errstate(all="ignore"):
                    want = start + wide
                for threads in (1, 3):
                    total = start.copy()
                    accumulate(total, g, backend, isa, threads)
                    assert same_bits(total, want), (kind, n, form)


def test_accumulate_refuses():
    x = np.zeros(8, np.float32)
    for g, words in [
        (np.zeros(8), "g is float64"),
        (np.zeros(7, np.float32), "g has 7 elements, total has 8"),
        (x, "share memory"),
    ]:
        with pytest.raises(KernelError, match=words):
            accumulate(x, g)
