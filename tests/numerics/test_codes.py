"""Are 8-bit codes those of the paper, and the nearest ones?"""

import numpy as np
import pytest

from ondie.kernels import codes, get, native
from ondie.kernels.codes import BUCKETS, LEAST, MAPS
from ondie.kernels.errors import KernelError

EACH = [(name, signed) for name in MAPS for signed in (True, False)]


def by_buckets(m, y):
    """The code of each quotient, found as compiled code finds it."""
    word = y.view(np.int32)
    size = word & 0x7FFFFFFF
    at = np.maximum((size >> 16) - LEAST, 0) + np.where(word < 0, BUCKETS, 0)
    passed = (size & 0xFFFF) >= (m.bucket[at] & 0x1FFFF)
    return (m.bucket[at] >> 17) + np.where(passed, np.where(word < 0, -1, 1), 0)


def dynamic(signed):
    """The paper's numbers: 0 and 1, and middles of equal parts of 0.1 .. 1 times 10^-e."""
    found = [0.0, 1.0]
    for zeros in range(7):
        edges = np.linspace(0.1, 1.0, 2 ** (6 - zeros) * (1 if signed else 2) + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0**-zeros
        found += [*middles, *(-middles if signed else ())]
    return np.sort(np.array(found))


@pytest.mark.parametrize("signed", [True, False])
def test_numbers_are_those_of_the_paper(signed):
    """A product and a sum in FP32 for each: within 2^-20 of it."""
    m = codes.codes("dynamic", signed)
    np.testing.assert_allclose(m.value, dynamic(signed), rtol=2.0**-20, atol=0)
    linear = np.arange(-128, 128) / 127 if signed else np.arange(1, 257) / 256
    np.testing.assert_allclose(codes.codes("linear", signed).value, linear, rtol=2.0**-23, atol=0)


def test_the_dynamic_map_of_the_paper():
    """Figure 3 of the paper: 0 and 1 exact; with e zeros behind the sign the rest of 7 bits, but
    one, is a fraction. The smallest is 0.55e-6, in the middle of a tenth of the range."""
    m = codes.codes("dynamic", signed=True)
    assert m.value[m.zero] == 0 and m.value[255] == 1 and len(set(m.value.tolist())) == 256
    smallest = m.value[m.zero + 1 : m.zero + 4]
    np.testing.assert_allclose(smallest, [0.55e-6, 3.25e-6, 7.75e-6], rtol=2.0**-20)
    assert (m.value[:127] == -m.value[128:255][::-1]).all()
    top = m.value[(m.value > 0.1) & (m.value < 1)]
    assert len(top) == 64 and np.allclose(np.diff(top), 0.9 / 64, atol=1e-7)
    for e in range(7):
        decade = (m.value > 10.0 ** -(e + 1)) & (m.value < 10.0**-e)
        assert decade.sum() == 2 ** (6 - e)
    m = codes.codes("dynamic", signed=False)
    assert m.zero == 0 and m.value[255] == 1
    for e in range(7):
        decade = (m.value > 10.0 ** -(e + 1)) & (m.value < 10.0**-e)
        assert decade.sum() == 2 * 2 ** (6 - e)


@pytest.mark.parametrize("name, signed", EACH)
def test_a_code_is_the_nearest(name, signed, rng, counts):
    """At every edge of a bucket, around every middle, and everywhere else: no other value is
    nearer, and of two as near it is the lower one."""
    m = codes.codes(name, signed)
    edges = (np.arange(0x3300, 0x3F81, dtype=np.uint32) << 16).view(np.float32)
    middles = np.abs(m.middle[:-1])
    up, down = np.float32(2), np.float32(0)
    x = [edges, np.nextafter(edges, up), np.nextafter(edges, down), middles]
    x += [np.nextafter(middles, up), np.nextafter(middles, down)]
    x += [rng.random(counts(10**5, 10**7), dtype=np.float32)]
    x += [(10.0 ** rng.uniform(-9, 0, 10**5)).astype(np.float32)]
    y = np.concatenate(x)
    y = y[y <= 1]
    if signed:
        y = np.concatenate([y, -y])
    found = by_buckets(m, y)
    assert (found == np.searchsorted(m.middle, y, side="left")).all()
    value, exact = m.value.astype(np.float64), y.astype(np.float64)
    mine = np.abs(value[found] - exact)
    below = np.abs(value[np.maximum(found - 1, 0)] - exact)
    above = np.abs(value[np.minimum(found + 1, 255)] - exact)
    assert (mine <= above).all()
    assert ((mine < below) | (found == 0)).all()


@pytest.mark.parametrize("backend", ["numpy", "numba", "c"])
@pytest.mark.parametrize("name", MAPS)
def test_states_keep_the_nearest_codes(name, backend, rng, counts):
    """Of what 32-bit states would be, quotients rounded: 99.999 % of the codes are nearest to the
    exact quotient; nothing else is lost than by that rounding."""
    n = counts(1 << 18, 1 << 22)
    kernel = get("adam", backend=backend, format=f"int8_{name}")
    plain = get("adam", backend="numpy")
    coef = plain.coefficients({"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}, 1)
    w, g = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
    g *= 10.0 ** rng.uniform(-4, 0, n).astype(np.float32)
    states = kernel.zeros(n)
    exact = [np.zeros(n, np.float32) for _ in range(2)]
    kernel(w.copy(), g, states, coef)
    plain(w, g, exact, coef)
    for (q, scale), x, signed in zip((states[:2], states[2:]), exact, (True, False), strict=True):
        m = codes.codes(name, signed)
        blocks = np.abs(x).reshape(-1, 256).max(1)
        assert (scale == blocks).all()
        quotient = x.astype(np.float64) / np.repeat(scale.astype(np.float64), 256)
        value = m.value.astype(np.float64)
        middle = (value[:-1] + value[1:]) / 2
        nearest = np.searchsorted(middle, quotient, side="left")
        assert (np.abs(q.astype(int) - nearest) <= 1).all()
        assert (q != nearest).mean() <= 1e-5


def around(m, signed, steps):
    """Quotients at every place where the code changes, and up to ``steps`` floats from there."""
    middles = np.abs(m.middle[(np.abs(m.middle) <= 1)]).astype(np.float32)
    bits = middles.view(np.int32)[:, None] + np.arange(-steps, steps + 1)
    y = np.minimum(bits.astype(np.int32).view(np.float32).ravel(), 1)
    return np.concatenate([y, -y]) if signed else y


@pytest.mark.parametrize("isa", native.isas())
@pytest.mark.parametrize("name, signed", EACH)
def test_vectors_find_the_same_codes(name, signed, isa, rng, counts):
    """C with its tables in registers against NumPy's search, where it is hardest: near every change
    of code and for every scale, tiny, huge and infinite ones too."""
    m = codes.codes(name, signed)
    op, hyper = ("momentum", {"momentum": 0.0}) if signed else ("adagrad", {"eps": 1e-10})
    found = []
    y = around(m, signed, counts(40, 400))
    y = rng.permutation(np.concatenate([y, rng.uniform(-1, 1, 4096).astype(np.float32)]))
    y = y[: y.size // 255 * 255].reshape(-1, 255)
    scale = 2.0 ** rng.uniform(-126, 126, (len(y), 1)).astype(np.float32)
    scale[: len(y) // 2] = rng.uniform(0.5, 2, (len(y) // 2, 1))
    scale[0], scale[1], scale[2] = 1e-42, 3e38, np.inf
    with np.errstate(all="ignore"):
        x = np.concatenate([scale, y * scale], axis=1).ravel().astype(np.float32)
        g = x if signed else np.sqrt(np.abs(x))
    for backend, its_isa in (("numpy", None), ("c", isa)):
        kernel = get(op, backend, isa=its_isa, format=f"int8_{name}")
        coef = kernel.coefficients({"lr": 1.0, **hyper}, 1)
        states = kernel.zeros(g.size)
        states[1][:] = 0
        kernel(np.zeros_like(g), g, states, coef)
        found.append(states)
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert len(np.unique(found[0][0])) >= 255


@pytest.mark.parametrize("isa", native.isas())
@pytest.mark.parametrize("name, signed", EACH)
def test_vectors_read_the_same_numbers(name, signed, isa):
    """Every code at some scales: a gradient of 0 and weights of 0 show what was stored."""
    m = codes.codes(name, signed)
    n = 256 * 8 + 77
    code = np.resize(np.arange(256, dtype=np.uint8), n)
    scale = np.array([1, 0.1, 3.0, 1e-38, 1e-45, 0, 3e38, np.inf, 7], np.float32)
    if signed:
        kernel = get("momentum", "c", isa=isa, format=f"int8_{name}")
        coef = kernel.coefficients({"lr": 1.0, "momentum": 1.0}, 2)
    else:
        kernel = get("adam", "c", isa=isa, format=f"int8_{name}")
        coef = np.zeros(10, np.float32)
        coef[[2, 6, 7, 8]] = 1  # v stays; w = w - m / (sqrt(v) + 0), with m = g / 0 left out
    w, g = np.zeros(n, np.float32), np.zeros(n, np.float32)
    if signed:
        kernel(w, g, (code.copy(), scale.copy()), coef)
        with np.errstate(all="ignore"):
            want = 0 - m.value[code] * np.repeat(scale, 256)[:n]
        np.testing.assert_array_equal(w, want)
        return
    first = codes.codes(name, True)
    q = (np.full(n, 255, np.uint8), np.ones(9, np.float32), code.copy(), scale.copy())
    assert first.value[255] == 1
    coef[0] = 1  # m stays 1
    kernel(w, g, q, coef)
    with np.errstate(all="ignore"):
        v = m.value[code] * np.repeat(scale, 256)[:n]
        want = np.float32(0) - np.float32(1) / np.sqrt(v)
    np.testing.assert_array_equal(w, want)


def test_what_is_not_a_number_stays_that():
    """A NaN makes its block NaN, infinity too; the next block keeps its numbers."""
    for backend in ("numpy", "numba", "c"):
        kernel = get("momentum", backend=backend, format="int8_dynamic")
        coef = kernel.coefficients({"lr": 0.1, "momentum": 0.9}, 1)
        for bad in (np.nan, np.inf):
            w, g = np.zeros(600, np.float32), np.ones(600, np.float32)
            g[3] = bad
            q, scale = kernel.zeros(600)
            kernel(w, g, (q, scale), coef)
            assert not np.isfinite(scale[0]) and (scale[1:] == 1).all()
            kernel(w, np.ones(600, np.float32), (q, scale), kernel.coefficients(
                {"lr": 0.1, "momentum": 0.9}, 2))  # fmt: skip
            assert np.isnan(w[:256]).all() and np.allclose(w[256:], -0.1 - 0.19)


def test_an_unknown_map_is_refused():
    with pytest.raises(KernelError, match="unknown map 'log'"):
        codes.codes("log", True)
