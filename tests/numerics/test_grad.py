"""Do unscale, norm and clip give the same bits on every backend, width and thread count?"""

import math

import numpy as np
import pytest

from ondie.kernels import KernelError
from ondie.kernels import grad as G
from tests.numerics.harness import KINDS, SIZES, cases, check_kernel, compiled, values

ALL = [("numpy", None), *compiled()]


@pytest.mark.parametrize("backend, isa", compiled())
def test_unscale_bits(backend, isa, rng):
    for size, offset, kind in cases():
        found = []

        def run(arrays, backend=backend, isa=isa, found=found):
            found.append(G.unscale(arrays[0], 1024.0, backend=backend, isa=isa))

        g = values(rng, size, kind)
        if offset % 4:
            continue  # refused, see below
        check_kernel(lambda a, r=run: r(a, "numpy", None), run, [g], offset, ["g"])
        assert found == [bool(~np.isfinite(g).all())] * 2


@pytest.mark.parametrize("backend, isa", ALL)
def test_unscale_finds_one_bad_element_anywhere(backend, isa, rng):
    for n in (1, 2, 15, 16, 17, 33, 64, 1000):
        for bad in (np.inf, -np.inf, np.nan):
            for at in {0, n // 2, n - 1}:
                g = values(rng, n, "ordinary")
                assert not G.unscale(g.copy(), 8.0, backend=backend, isa=isa)
                g[at] = bad
                assert G.unscale(g, 8.0, backend=backend, isa=isa)
                assert not np.isfinite(g[at]) and np.isfinite(np.delete(g, at)).all()


def test_unscale_sees_what_came_in_not_what_overflows():
    g = np.full(3, 3e38, np.float32)
    for backend, isa in ALL:
        assert not G.unscale(g.copy(), 0.5, backend=backend, isa=isa)


@pytest.mark.parametrize("backend, isa", ALL)
def test_clip_multiplies_by_a_float32(backend, isa, rng):
    g = values(rng, 1000, "wide")
    clipped = g.copy()
    G.clip(clipped, 0.3, backend=backend, isa=isa)
    assert clipped.tobytes() == (g * np.float32(0.3)).tobytes()


def test_norm_is_the_same_everywhere(rng, counts):
    for n in (*SIZES, 4095, 4096, 8192, 12289, counts(50_001, 3_000_001)):
        for kind in KINDS:
            g = values(rng, n, kind)
            results = {
                np.float64(G.norm(g, backend=b, isa=i, threads=t)).tobytes()
                if not math.isnan(G.norm(g, backend=b, isa=i, threads=t))
                else "nan"
                for b, i in ALL
                for t in (1, 3)
            }
            assert len(results) == 1, f"n = {n}, {kind}: {results}"


def test_norm_value(rng):
    """Against a correctly rounded sum; n additions in FP64 err by less than n * 2^-53."""
    for n in SIZES:
        g = values(rng, n, "ordinary")
        want = math.sqrt(math.fsum(float(x) ** 2 for x in g))
        assert G.norm(g) == pytest.approx(want, rel=max(n, 1) * 2.0**-53, abs=0)
    assert G.norm(np.full(4, 3e38, np.float32)) == pytest.approx(6e38)  # no overflow in FP32
    assert G.norm(np.array([np.inf, 1], np.float32)) == math.inf
    assert math.isnan(G.norm(np.array([np.nan, np.inf], np.float32)))


def test_norm_by_its_definition(rng):
    """Element i of a block goes to lane i % 32; lanes and then blocks are halved: spelled out.

    Lanes meet their opposite half (0 and 16), blocks their neighbour (0 and 1). A square root
    hides the last bit of about every other sum, so several gradients are tried.
    """
    for _ in range(40):
        g = values(rng, 4 * 4096 + 100, "ordinary")
        blocks = []
        for start in range(0, g.size, 4096):
            squares = g[start : start + 4096].astype(np.float64) ** 2
            lanes = [sum(squares[j::32].tolist(), 0.0) for j in range(32)]
            while len(lanes) > 1:
                half = len(lanes) // 2
                lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
            blocks.append(lanes[0])
        a, b, c, d, e = blocks
        assert G.norm(g) == math.sqrt(((a + b) + (c + d)) + e)


def test_clip_coefficient():
    assert G.clip_coefficient(2.0, 1.0) == np.float32(1 / (2 + 1e-6))
    assert G.clip_coefficient(0.5, 1.0) == 1.0
    assert G.clip_coefficient(math.inf, 1.0) == 0.0
    assert math.isnan(G.clip_coefficient(math.nan, 1.0))


def test_clip_coefficient_is_torchs(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for size in (1e-3, 1.0, 50.0):
        g = values(rng, 999, "ordinary") * np.float32(size)
        p = torch.zeros(999, requires_grad=True)
        p.grad = torch.tensor(g)
        total = torch.nn.utils.clip_grad_norm_([p], 1.0)
        assert float(total) == pytest.approx(G.norm(g), rel=1e-6)
        G.clip(g, G.clip_coefficient(float(total), 1.0))
        np.testing.assert_allclose(p.grad.numpy(), g, rtol=3e-7)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda g: G.unscale(g, 0.0), ["scale", "0.0"]),
        (lambda g: G.unscale(g, math.inf), ["scale", "inf"]),
        (lambda g: G.unscale(g, 1e-300), ["scale", "float32"]),
        (lambda g: G.unscale(g[::2], 1.0), ["strided"]),
        (lambda g: G.norm(g.astype(np.float64)), ["float64"]),
        (lambda g: G.norm(np.zeros(17, np.uint8)[1:].view(np.float32)), ["aligned"]),
        (lambda g: G.norm(g, backend="C"), ["backend", "'c'"]),
        (lambda g: G.clip_coefficient(1.0, -1.0), ["max_norm", "-1.0"]),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(KernelError) as error:
        call(np.ones(8, np.float32))
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)
