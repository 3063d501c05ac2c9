"""Does an update of arrays in any format give the bits of its definition: on every backend and
width, whatever the arrays hold, however they are cut?
"""

import numpy as np
import pytest

from ondie.kernels import FORMATS, OPS, KernelError, get, isas, stochastic
from ondie.kernels.cast import narrow, widen
from ondie.kernels.update import BACKENDS
from tests.numerics.harness import check_kernel, compiled, same_bits, values
from tests.numerics.test_updates import BASE, hypers

STEPS = 20
NARROW = [name for name in FORMATS if name != "fp32"]
KINDS = ("ordinary", "wide", "zeros", "denormals", "infinities", "nans", "bits")
FIRST = 2**32 - 1000  # rounding at random crosses the end of 32 bits


def pairs():
    """(operation, format) that go together."""
    return [(op, f) for op in OPS for f in NARROW if op != "sgd" or not FORMATS[f].codes]


def stored(x, dtype):
    """float32 as an array of a format: cut off where it is narrow, so that odd bits remain."""
    if dtype == np.float32:
        return x.copy()
    if dtype == np.float16:
        with np.errstate(all="ignore"):
            return x.astype(np.float16)
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def arrays_of(rng, kernel, n, kind):
    """Weights, gradient, states and out of one kind; second moments are not negative."""
    found = []
    for slot in kernel.slots:
        if slot.dtype == np.uint8:
            found.append(rng.integers(0, 256, n).astype(np.uint8))
            continue
        x = values(rng, slot.size(n), kind)
        positive = slot.name == "v" or slot.share > 1
        found.append(stored(np.abs(x) if positive else x, slot.dtype))
    return found


def nan_bits(a, b, dtype):
    """The same bits, NaNs equal wherever both have one; BF16 travels as uint16."""
    if dtype == np.uint16:
        return same_bits(widen(a, "bfloat16"), widen(b, "bfloat16"))
    return same_bits(a, b)


def run(kernel, arrays, coef, first, key, threads=1):
    kernel.run(list(arrays), coef, threads, first, key)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("op, name", pairs())
def test_bits_of_definition(op, name, rng, counts):
    """Of all backends, each on the same arrays."""
    definition = get(op, backend="numpy", format=name)
    kernels = {each: get(op, backend=each[0], isa=each[1], format=name) for each in compiled()}
    sizes = (0, 1, 17, 255, 256, 257, 2049, 4097)
    for hyper in hypers(op)[: counts(2, 3)]:
        for step, size in enumerate(sizes, start=1):
            for kind in KINDS:
                coef = definition.coefficients(hyper, step)
                key = stochastic.key(step, seed=7)
                start = arrays_of(rng, definition, size, kind)
                wanted = [a.copy() for a in start]
                run(definition, wanted, coef, FIRST, key)
                for which, kernel in kernels.items():
                    got = [a.copy() for a in start]
                    run(kernel, got, coef, FIRST, key)
                    for slot, a, b in zip(kernel.slots, got, wanted, strict=True):
                        assert nan_bits(a, b, slot.dtype), (which, slot.name, size, kind, step)
                    assert got[1].tobytes() == start[1].tobytes(), which


@pytest.mark.parametrize("op, name", pairs())
def test_twenty_steps(op, name, rng, counts):
    """From zero states, gradients over 40 binary orders of magnitude, zeros and denormals among
    them; at full counts a million elements. All backends take each step side by side."""
    definition = get(op, backend="numpy", format=name)
    kernels = {each: get(op, backend=each[0], isa=each[1], format=name) for each in compiled()}
    n = counts(3001, 1_000_000 if op in ("adam", "momentum") else 100_003)
    slots = definition.slots
    w = stored(values(rng, n, "ordinary"), slots[0].dtype)
    out = [np.zeros(n, s.dtype) for s in slots if s.name == "out"]
    wanted, *found = (
        [w.copy(), *each.zeros(n), *(o.copy() for o in out)]
        for each in (definition, *kernels.values())
    )
    for step in range(1, STEPS + 1):
        kind = ("ordinary", "wide", "zeros", "denormals")[step % 4]
        g = stored(values(rng, n, kind), slots[1].dtype)
        coef, key = definition.coefficients(BASE[op], step), stochastic.key(step)
        run(definition, [wanted[0], g, *wanted[1:]], coef, 5, key)
        bits = [a.view(np.uint8) for a in wanted]
        for (which, kernel), got in zip(kernels.items(), found, strict=True):
            run(kernel, [got[0], g, *got[1:]], coef, 5, key)
            for a, b in zip(got, bits, strict=True):
                assert np.array_equal(a.view(np.uint8), b), (which, f"step {step}")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_threads_do_not_change_bits(name, backend, rng):
    n = 70_001
    kernel = get("adam", backend=backend, format=name)
    coef = kernel.coefficients(BASE["adam"], 3)
    start = arrays_of(rng, kernel, n, "wide")
    results = set()
    for threads in (1, 2, 3, 7):
        arrays = [a.copy() for a in start]
        run(kernel, arrays, coef, 11, 12345, threads)
        results.add(b"".join(a.tobytes() for a in arrays))
    assert len(results) == 1


@pytest.mark.parametrize("backend, isa", compiled())
@pytest.mark.parametrize("name", FORMATS)
def test_memory_around_the_arrays_is_left_alone(name, backend, isa, rng):
    """At odd addresses, and with a gradient that nobody writes to."""
    kernel = get("adam", backend=backend, isa=isa, format=name)
    definition = get("adam", backend="numpy", format=name)
    coef = kernel.coefficients(BASE["adam"], 2)
    for size in (1, 33, 257, 1000):
        for offset in (0, 4, 60):
            check_kernel(
                lambda a: run(definition, a, coef, 0, 9),
                lambda a: run(kernel, a, coef, 0, 9),
                arrays_of(rng, kernel, size, "ordinary"),
                offset,
                [s.name for s in kernel.slots],
                readonly=(1,),
            )


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_pass_is_the_three_passes(backend, rng):
    """Casting the gradient, updating and casting the weights, one after the other."""
    n = 5000
    for name, form in (("fp16", "float16"), ("bf16", "bfloat16")):
        kernel, plain = (get("adamw", backend=backend, format=f) for f in (name, "fp32"))
        coef = plain.coefficients(BASE["adamw"] | {"weight_decay": 0.1}, 4)
        w, g, m, v, out = arrays_of(rng, kernel, n, "ordinary")
        one = [w.copy(), g, m.copy(), v.copy(), out]
        kernel(*one[:2], one[2:4], coef, out=out)
        plain(w, widen(g, form, backend), (m, v), coef)
        assert [a.tobytes() for a in one[:4:2]] == [a.tobytes() for a in (w, m)]
        assert out.tobytes() == narrow(w, form, backend).tobytes()


# --- rounding at random


def test_rounding_at_random_has_the_right_mean(counts):
    """1 + k / 65536 of the way from one BF16 number to the next, ever new keys."""
    n, steps = 4096, counts(64, 1000)
    share = np.linspace(0, 1, n, endpoint=False, dtype=np.float64)
    x = ((0x3F800000 + (share * 65536).astype(np.uint32)).astype(np.uint32)).view(np.float32)
    ups = np.zeros(n)
    for step in range(1, steps + 1):
        more = stochastic.numpy_draws(n, 0, stochastic.key(step)) & 0xFFFF
        rounded = stochastic.numpy_to_bf16(x, more)
        assert set(np.unique(rounded)) <= {0x3F80, 0x3F81}
        ups += rounded == 0x3F81
    # A binomial count each: their squared deviations in units of the variance have mean 1.
    inner = slice(n // 64, -n // 64)
    deviation = (ups - steps * share)[inner] ** 2 / (steps * share * (1 - share))[inner]
    assert abs(deviation.mean() - 1) < 5 * np.sqrt(2 / deviation.size)
    assert abs((ups - steps * share).sum()) < 5 * np.sqrt((steps * share * (1 - share)).sum())


def test_the_bits_of_an_element_are_those_of_its_number_and_the_key():
    whole = stochastic.numpy_draws(3000, FIRST, 77)
    for first, n in ((0, 1), (900, 300), (999, 2), (1000, 2000)):
        part = stochastic.numpy_draws(n, FIRST + first, 77)
        assert part.tobytes() == whole[first : first + n].tobytes()
        assert stochastic.draw(FIRST + first, 77) == part[0]
    keys = {stochastic.key(step, seed) for step in range(1, 200) for seed in range(5)}
    assert len(keys) == 199 * 5
    bits = np.unpackbits(stochastic.numpy_draws(1 << 16, 0, stochastic.key(1)).view(np.uint8))
    share = bits.reshape(-1, 32).mean(axis=0)
    assert (np.abs(share - 0.5) < 5 * 0.5 / np.sqrt(1 << 16)).all()


def test_small_changes_are_lost_by_the_nearest_only():
    """A second moment that shrinks by 0.1 % a step stands still in BF16 rounded to nearest."""
    n = 4096
    left = {}
    for name in ("bf16_all", "bf16_stochastic"):
        kernel = get("adam", format=name)
        w, g = (np.zeros(n, np.uint16) for _ in range(2))
        m, v = kernel.zeros(n)
        v[:] = 0x3F80
        for step in range(1, 501):
            coef = kernel.coefficients(BASE["adam"], 10_000)
            kernel(w, g, (m, v), coef, key=stochastic.key(step))
        left[name] = float(widen(v, "bfloat16").mean())
    assert left["bf16_all"] == 1.0
    assert left["bf16_stochastic"] == pytest.approx(0.999**500, rel=0.01)


# --- what is refused


def test_refused():
    with pytest.raises(KernelError, match="unknown format 'fp8'"):
        get("adam", format="fp8")
    with pytest.raises(KernelError, match="canonical form"):
        get("adam", form="torch", format="bf16")
    with pytest.raises(KernelError, match="canonical form"):
        get("adam_on_die", format="bf16")
    with pytest.raises(KernelError, match="no states"):
        get("sgd", format="int8_linear")
    with pytest.raises(KernelError, match="form 'torch'"):
        get("adam_on_die", form="torch")


@pytest.mark.parametrize("backend", BACKENDS)
def test_arrays_of_another_format_are_refused(backend):
    n = 600
    kernel = get("adam", backend=backend, format="int8_dynamic")
    coef = kernel.coefficients(BASE["adam"], 1)
    w, g = (np.ones(n, np.float32) for _ in range(2))
    good = kernel.zeros(n)
    assert [s.size for s in good] == [n, 3, n, 3]
    for at, bad, words in [
        (
            1,
            np.zeros(2, np.float32),
            r"m_scale is float32 \(2,\), expected contiguous float32 \(3,\)",
        ),
        (0, np.zeros(n, np.float32), r"m is float32 \(600,\), expected contiguous uint8"),
        (3, np.zeros(4, np.float32), r"v_scale is float32 \(4,\)"),
    ]:
        states = [bad if i == at else s for i, s in enumerate(good)]
        with pytest.raises(KernelError, match=words):
            kernel(w, g, states, coef)
    mixed = get("adam", backend=backend, format="fp16")
    m, v = mixed.zeros(n)
    with pytest.raises(KernelError, match="expected w, g, m, v, out"):
        mixed(w, g.astype(np.float16), (m, v), coef)
    with pytest.raises(KernelError, match="share memory"):
        mixed(w, g.astype(np.float16), (m, v), coef, out=w.view(np.float16)[:n])
    assert (w == 1).all() and not m.any()


def test_every_width_was_compared():
    assert len(isas()) >= 1 and len(compiled()) == 1 + len(isas())
