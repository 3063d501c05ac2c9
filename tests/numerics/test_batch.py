"""Do tables of tensors and of pages give what one call for each gives?"""

import numpy as np
import pytest

from ondie.kernels import FORMATS, KernelError, aligned_empty, get, one, pages, stochastic, tensors
from ondie.kernels.update import BACKENDS
from tests.numerics.test_formats import arrays_of, pairs
from tests.numerics.test_updates import BASE


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op, name", [("sgd", "fp32"), ("momentum", "fp32"), *pairs()])
def test_tensors(op, name, backend, rng):
    """Of any sizes, empty ones among them; elements are numbered through."""
    kernel = get(op, backend=backend, format=name)
    coef, key = kernel.coefficients(BASE[op], 3), stochastic.key(3)
    sizes = [0, 1, 700, 256, 3000, 17, 0, 5000]
    parts = [arrays_of(rng, kernel, n, "ordinary") for n in sizes]
    wanted = [[a.copy() for a in arrays] for arrays in parts]
    first = 0
    for arrays, n in zip(wanted, sizes, strict=True):
        kernel.run(arrays, coef, 1, first, key)
        first += n
    table = tensors(kernel, parts)
    assert len(table) == len(sizes) and table.parameters == sum(sizes)
    table(coef, key=key)
    for got, want in zip(parts, wanted, strict=True):
        assert [a.tobytes() for a in got] == [a.tobytes() for a in want]


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("name", ["fp32", "bf16_stochastic", "int8_dynamic"])
def test_threads_share_tensors(name, threads, rng):
    kernel = get("adam", backend="c", format=name)
    coef = kernel.coefficients(BASE["adam"], 3)
    parts = [arrays_of(rng, kernel, int(n), "ordinary") for n in rng.integers(0, 4000, 60)]
    alone = [[a.copy() for a in arrays] for arrays in parts]
    tensors(kernel, parts)(coef, threads=threads, key=5)
    tensors(kernel, alone)(coef, key=5)
    for got, want in zip(parts, alone, strict=True):
        assert [a.tobytes() for a in got] == [a.tobytes() for a in want]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FORMATS)
def test_pages_in_any_order(name, backend, rng):
    """Those of the list are updated, each once; the others are left alone."""
    page, count = 512, 24
    kernel = get("adam", backend=backend, format=name)
    coef, key = kernel.coefficients(BASE["adam"], 3), 99
    arrays = arrays_of(rng, kernel, page * count, "ordinary")
    whole, before = [a.copy() for a in arrays], [a.copy() for a in arrays]
    order = rng.permutation(count)[:17]
    pages(kernel, arrays, page, order)(coef, key=key)
    kernel.run(whole, coef, 1, 0, key)
    for slot, got, all_of_it, old in zip(kernel.slots, arrays, whole, before, strict=True):
        step = page // slot.share
        for p in range(count):
            want = all_of_it if p in order else old
            here = slice(p * step, (p + 1) * step)
            assert got[here].tobytes() == want[here].tobytes()


def test_elements_beyond_32_bits_keep_their_numbers(rng):
    """One call across the end of 32 bits is two calls that meet there."""
    kernel = get("adam", backend="c", format="bf16_stochastic")
    coef, n, cut = kernel.coefficients(BASE["adam"], 3), 5000, 1234
    whole = arrays_of(rng, kernel, n, "ordinary")
    parts = [a.copy() for a in whole]
    kernel.run(whole, coef, 1, 2**32 - cut, 3)
    kernel.run([a[:cut] for a in parts], coef, 1, 2**32 - cut, 3)
    kernel.run([a[cut:] for a in parts], coef, 1, 2**32, 3)
    assert [a.tobytes() for a in whole] == [a.tobytes() for a in parts]


def test_one_is_a_call(rng):
    kernel = get("adamw")
    coef = kernel.coefficients(BASE["adamw"], 3)
    arrays = arrays_of(rng, kernel, 4096, "ordinary")
    again = [a.copy() for a in arrays]
    call = one(kernel, *arrays)
    for _ in range(3):
        call(coef)
        kernel(again[0], again[1], again[2:], coef)
    assert [a.tobytes() for a in arrays] == [a.tobytes() for a in again]


@pytest.mark.parametrize("backend", BACKENDS)
def test_refused(backend):
    kernel = get("adam", backend=backend)
    good = [aligned_empty(4096) for _ in range(4)]
    with pytest.raises(KernelError, match="g is float64"):
        tensors(kernel, [good, [good[0], good[1].astype(np.float64), *good[2:]]])
    raw = np.zeros(4 * 4096 + 1, np.uint8)[1:].view(np.float32)
    with pytest.raises(KernelError, match="tensor 1 begins at an address"):
        tensors(kernel, [good, [raw, *good[1:]]])
    for page, order, words in [
        (1000, [0], "page: 1000 parameters; must divide the 4096"),
        (0, [0], "page: 0 parameters"),
        (1024, [0, 4], "order: page 4; must be from 0 to 3"),
        (1024, [-1, 0], "order: page -1"),
        (1024, [0.9, 2.7], "expected whole numbers"),
        (1024, [True, False], "order is bool"),
        (1024, [[0, 1]], r"order is int64 \(1, 2\)"),
        (1024, [2, 1, 2], "order: page 2 occurs 2 times"),
    ]:
        with pytest.raises(KernelError, match=words):
            pages(kernel, good, page, np.array(order))
    coded = get("adam", backend=backend, format="int8_linear")
    arrays = [good[0], good[1], *coded.zeros(4096)]
    with pytest.raises(KernelError, match="for 8-bit states, be a multiple of 256"):
        pages(coded, arrays, 128, np.arange(3))
    with pytest.raises(KernelError, match="share memory"):
        one(kernel, good[0], good[0], *good[2:])


def test_what_the_arrays_share_is_refused_however_it_is_cut():
    """Whole arrays are looked at, not only the parts that one thread or call has."""
    n = 65_536
    buffer = aligned_empty(2 * n)
    for backend in BACKENDS:
        kernel = get("sgd", backend=backend)
        coef = kernel.coefficients(BASE["sgd"], 1)
        for threads in (1, 2):
            with pytest.raises(KernelError, match="share memory"):
                kernel(buffer[:n], buffer[n // 2 : n // 2 + n], (), coef, threads=threads)
        with pytest.raises(KernelError, match="share memory"):
            pages(kernel, [buffer[:n], buffer[n // 2 : n // 2 + n]], 4096, np.arange(4))
        w, g = (aligned_empty(n) for _ in range(2))
        with pytest.raises(KernelError, match="tensors 0 and 1 share memory"):
            tensors(kernel, [(w, g), (w, aligned_empty(n))])
        with pytest.raises(KernelError, match="share memory"):
            tensors(kernel, [(w, g), (buffer[:n], g), (g[5:9], buffer[n : n + 4])])
        tensors(kernel, [(w, g), (buffer[:n], g)])  # a gradient for two
        raw = np.zeros(4 * n + 1, np.uint8)[1:].view(np.float32)
        with pytest.raises(KernelError, match="share memory"):
            kernel(raw, raw, (), coef)


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_scalars_and_keys_are_refused(backend):
    kernel = get("adam", backend=backend, format="bf16_stochastic")
    coef = kernel.coefficients(BASE["adam"], 1)
    arrays = [np.zeros(64, np.uint16) for _ in range(4)]
    table = one(kernel, *arrays)
    table(coef, key=1)
    for bad in (
        coef.astype(np.float64),
        coef[:3],
        np.zeros(1, np.float32),
        np.zeros(20, "f4")[::2],
    ):
        for call in (
            lambda c: table(c, key=1),
            lambda c: kernel(*arrays[:2], arrays[2:], c, key=1),
        ):
            with pytest.raises(KernelError, match="coef must be a result"):
                call(bad)
    for key, words in [(None, "needs key"), (-1, "key = -1"), (2**32, "key = 4294967296"),
                       (1.5, "key = 1.5")]:  # fmt: skip
        with pytest.raises(KernelError, match=words):
            table(coef, key=key)
        with pytest.raises(KernelError, match=words):
            kernel(*arrays[:2], arrays[2:], coef, key=key)
    with pytest.raises(KernelError, match="first = -1"):
        kernel(*arrays[:2], arrays[2:], coef, key=1, first=-1)
    for step in (float("nan"), float("inf"), 0, 1.5):
        with pytest.raises(KernelError, match="must be a whole number"):
            kernel.coefficients(BASE["adam"], step)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_do(backend):
    kernel = get("sgd", backend=backend)
    coef = kernel.coefficients(BASE["sgd"], 1)
    tensors(kernel, [])(coef, threads=2)
    w = aligned_empty(1024)
    w[:] = 1
    pages(kernel, [w, aligned_empty(1024)], 256, np.array([], dtype=np.int64))(coef)
    assert (w == 1).all()
