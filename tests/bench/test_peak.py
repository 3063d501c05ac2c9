"""Are the operations those of the definitions, and is the compute limit made of multiply-adds?"""

from collections import Counter

import numpy as np
import pytest

from ondie.kernels import OPS, get, isas
from ondie.kernels.bench import contenders as bench_peak
from ondie.kernels.bench.contenders import HYPER, OPERATIONS, Operations

KINDS = {
    np.add: "adds",
    np.subtract: "adds",
    np.multiply: "multiplies",
    np.divide: "divides",
    np.sqrt: "roots",
}


class Counted(np.ndarray):
    """An array that counts what is done with its elements."""

    seen: Counter

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        assert method == "__call__" and ufunc in KINDS, ufunc
        plain = [np.asarray(x) for x in inputs]
        result = ufunc(*plain, **options)
        Counted.seen[KINDS[ufunc]] += result.size
        return result.view(Counted)


@pytest.mark.parametrize("op", OPS)
def test_operations_are_those_of_the_definition(op):
    """The NumPy definition run on arrays that count."""
    n, kernel = 10, get(op, backend="numpy")
    arrays = [np.ones(n, np.float32).view(Counted) for _ in kernel.slots]
    coef = kernel.coefficients(HYPER[op], 10)
    Counted.seen = Counter()
    kernel._definition.numpy["canonical"](arrays[0], arrays[1], arrays[2:], coef)
    per = {kind: count / n for kind, count in Counted.seen.items()}
    assert per == {kind: k for kind, k in OPERATIONS[op]._asdict().items() if k}


def test_each_kind_counts_once():
    assert {op: sum(k) for op, k in OPERATIONS.items()} == {
        "sgd": 2, "momentum": 5, "nesterov": 7, "adam": 14, "adamw": 14, "adagrad": 7
    }  # fmt: skip
    assert Operations(1, 2) == (1, 2, 0, 0)


class Number:
    """A number that counts."""

    done = 0

    def __mul__(self, other):
        Number.done += 1
        return self

    __add__ = __mul__


@pytest.mark.parametrize("threads", [1, 2])
def test_the_limit_does_what_it_counts(threads, monkeypatch):
    monkeypatch.setattr(bench_peak, "TIMES", 3)
    monkeypatch.setattr(bench_peak, "NUMBERS", 5)
    monkeypatch.setattr(bench_peak, "compiled", lambda: bench_peak.multiply_adds)
    monkeypatch.setattr(np, "full", lambda n, value, kind: [Number() for _ in range(n)])
    monkeypatch.setattr(Number, "done", 0)
    call, operations = bench_peak.peak(threads)
    call()
    assert Number.done == operations == 2 * 8 * 5 * 3 * threads


def test_the_compiled_loop_computes_and_uses_vectors():
    loop = bench_peak.compiled()
    x = np.full(64, 3, np.float32)
    loop(x, 1)
    assert (x == 1 + 2 * 2.0**-8).all()  # halves the distance to 1 with each
    text = next(iter(loop.inspect_asm().values()))
    if "avx2" in isas():
        packed = [line for line in text.splitlines() if "vfmadd" in line and "ps" in line]
        assert sum("zmm" in line or "ymm" in line for line in packed) >= 8
