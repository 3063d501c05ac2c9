"""Are the 16-bit casts right for every input, and the same on every backend and width?"""

import numpy as np
import pytest

from ondie.kernels import KernelError
from ondie.kernels.cast import FORMATS, narrow, widen
from tests.numerics.harness import cases, check_kernel, compiled, same_bits, values

ALL = [("numpy", None), *compiled()]
PATTERNS = np.arange(65536, dtype=np.uint16)


def boundary_values():
    """Every 16-bit value and, between neighbours, the midpoint and the floats next to it."""
    points = []
    for form, dtype in FORMATS.items():
        exact = widen(PATTERNS.view(dtype), form, backend="numpy")
        words = exact.view(np.uint32)
        half = np.uint32(1 << (12 if form == "float16" else 15))
        points += [words + half * np.uint32(k) + np.uint32(d) for k in (0, 1) for d in (0, 1)]
        points += [words + half * np.uint32(k) - np.uint32(1) for k in (0, 1)]
    # halfway between FP16 denormals, where the steps are not steps of FP32 words
    steps = (np.arange(0, 2049, dtype=np.float64) * 2.0**-25).astype(np.float32)
    points += [steps.view(np.uint32) + np.uint32(d) for d in (0, 1)]
    points += [steps[1:].view(np.uint32) - np.uint32(1)]
    return np.concatenate(points).view(np.float32)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("backend, isa", compiled())
def test_bits_of_definition(form, backend, isa, rng, counts):
    word = FORMATS[form]
    for size, offset, kind in cases():
        if offset % 4:
            continue
        x = values(rng, size, kind)
        arrays = [x, np.zeros(size, word)]
        check_kernel(
            lambda a: narrow(a[0], form, backend="numpy", out=a[1]) if a[0].size else None,
            lambda a: narrow(a[0], form, backend=backend, isa=isa, out=a[1]),
            arrays,
            offset,
            ["x", "y"],
            readonly=(0,),
        )
    many = np.concatenate([boundary_values(), values(rng, counts(200_000, 20_000_000), "bits")])
    results = [narrow(many, form, backend=b, isa=i) for b, i in (("numpy", None), (backend, isa))]
    nan = np.isnan(many)
    assert (results[0].view(np.uint16)[~nan] == results[1].view(np.uint16)[~nan]).all()
    for r in results:
        assert np.isnan(widen(r, form)[nan]).all()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("backend, isa", ALL)
def test_widening_is_exact_and_narrowing_undoes_it(form, backend, isa):
    x = PATTERNS.view(FORMATS[form])
    wide = widen(x, form, backend=backend, isa=isa)
    if form == "float16":
        assert same_bits(wide, x.astype(np.float32))
    else:
        assert (wide.view(np.uint32) == PATTERNS.astype(np.uint32) << 16).all()
    back = narrow(wide, form, backend=backend, isa=isa).view(np.uint16)
    nan = np.isnan(wide)
    assert (back[~nan] == PATTERNS[~nan]).all()
    assert np.isnan(widen(back.view(FORMATS[form]), form)[nan]).all()


def test_nearest_even_by_hand():
    """FP16 has 10 fraction bits, BF16 7; FP16 runs from 2^-24 to 65504."""
    fp16 = {1 + 2.0**-11: 1.0, 1 + 3 * 2.0**-11: 1 + 2.0**-9, 2.0**-25: 0.0, 65519.0: 65504.0}
    fp16 |= {65520.0: np.inf, 3 * 2.0**-25: 2.0**-23, -(2.0**-26): -0.0}
    bf16 = {1 + 2.0**-8: 1.0, 1 + 3 * 2.0**-8: 1 + 2.0**-6, 3.4e38: np.inf, 2.0**-133: 2.0**-133}
    for form, table in (("float16", fp16), ("bfloat16", bf16)):
        x = np.array(list(table), np.float32)
        want = np.array(list(table.values()), np.float32)
        for backend, isa in ALL:
            assert same_bits(widen(narrow(x, form, backend=backend, isa=isa), form), want)


@pytest.mark.parametrize("form", FORMATS)
def test_equal_to_torch(form, rng, counts):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = np.concatenate([boundary_values(), values(rng, counts(200_000, 20_000_000), "bits")])
    theirs = torch.tensor(x).to(getattr(torch, form)).view(torch.int16).numpy().view(np.uint16)
    ours = narrow(x, form).view(np.uint16)
    nan = np.isnan(x)
    assert (ours[~nan] == theirs[~nan]).all()


def test_threads_and_out(rng):
    x = values(rng, 100_001, "wide")
    for form, word in FORMATS.items():
        one = narrow(x, form)
        out = np.empty(x.size, word)
        assert narrow(x, form, threads=3, out=out) is out
        assert out.tobytes() == one.tobytes()
        assert same_bits(widen(one, form, threads=3), widen(one, form))


def test_bad_input():
    x = np.ones(4, np.float32)
    for call, word in (
        (lambda: narrow(x, "float61"), "float16"),
        (lambda: narrow(x.astype(np.float64), "float16"), "float64"),
        (lambda: widen(x, "bfloat16"), "uint16"),
        (lambda: narrow(x, "float16", out=np.empty(3, np.float16)), "3 elements"),
        (lambda: narrow(x, "float16", out=np.empty(4, np.uint16)), "float16"),
    ):
        with pytest.raises(KernelError, match=word):
            call()
