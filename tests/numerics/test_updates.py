"""Does every update kernel give the bits of its NumPy definition, on every backend and width?"""

import sys

import numpy as np
import pytest

from ondie.kernels import FORMATS, FORMS, OPS, KernelError, aligned_empty, get, isas
from tests.numerics.harness import SIZES, cases, check_kernel, compiled, same_bits, values

STEPS = 20
# One set of hyperparameters per branch a kernel takes: weight decay off and on, maximised,
# dampened, decayed, and a beta1 below 1/2, where torch interpolates from the other end.
BASE = {
    "sgd": {"lr": 0.1},
    "momentum": {"lr": 0.1, "momentum": 0.9},
    "nesterov": {"lr": 0.1, "momentum": 0.9},
    "adam": {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    "adamw": {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    "adagrad": {"lr": 0.1, "eps": 1e-10},
}
CHANGES = {
    "sgd": [{}, {"weight_decay": 0.01}, {"maximize": True}],
    "momentum": [{}, {"weight_decay": 0.01, "dampening": 0.1}, {"maximize": True}],
    "nesterov": [{}, {"weight_decay": 0.01}, {"weight_decay": 0.01, "maximize": True}],
    "adam": [{}, {"weight_decay": 0.01, "maximize": True}, {"beta1": 0.3}],
    "adamw": [{"weight_decay": 0.01}, {"maximize": True}, {"beta1": 0.3, "weight_decay": 0.01}],
    "adagrad": [{}, {"weight_decay": 0.01, "lr_decay": 0.1}, {"maximize": True}],
}


def hypers(op):
    return [BASE[op] | change for change in CHANGES[op]]


def initial(rng, op, n, kind):
    """Weights, gradient and states of one kind; second moments are not negative."""
    names = get(op, backend="numpy").states
    arrays = [values(rng, n, kind) for _ in range(2 + len(names))]
    for i, name in enumerate(names, start=2):
        if name == "v":
            arrays[i] = np.abs(arrays[i])
    return arrays


@pytest.mark.one_in(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend, isa", compiled())
def test_bits_of_definition(op, form, backend, isa, rng, counts):
    definition = get(op, backend="numpy", form=form)
    kernel = get(op, backend=backend, form=form, isa=isa)
    names = ("w", "g", *kernel.states)
    for _ in range(counts(1, 5)):
        for hyper in hypers(op):
            for step, (size, offset, kind) in enumerate(cases(), start=1):
                coef = kernel.coefficients(hyper, step)
                check_kernel(
                    lambda a, c=coef: definition(a[0], a[1], a[2:], c),
                    lambda a, c=coef: kernel(a[0], a[1], a[2:], c),
                    initial(rng, op, size, kind),
                    offset,
                    names,
                    readonly=(1,),
                )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPS)
def test_twenty_steps(op, form, rng, counts):
    """From zero states, gradients over 40 binary orders of magnitude, zeros among them. All
    backends take each step side by side."""
    definition = get(op, backend="numpy", form=form)
    kernels = {each: get(op, backend=each[0], form=form, isa=each[1]) for each in compiled()}
    n = counts(4097, 100_003)
    names = ("w", *definition.states)
    for hyper in hypers(op):
        wanted = [values(rng, n, "ordinary"), *(np.zeros(n, np.float32) for _ in names[1:])]
        found = {which: [a.copy() for a in wanted] for which in kernels}
        for step in range(1, STEPS + 1):
            g = values(rng, n, ("ordinary", "wide", "zeros", "denormals")[step % 4])
            coef = definition.coefficients(hyper, step)
            definition(wanted[0], g, wanted[1:], coef)
            for which, kernel in kernels.items():
                assert same_bits(coef, kernel.coefficients(hyper, step)), which
                got = found[which]
                kernel(got[0], g, got[1:], coef)
                for name, a, b in zip(names, got, wanted, strict=True):
                    assert same_bits(a, b), f"{which}: {name} at step {step} of {hyper}"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPS)
def test_threads_do_not_change_bits(op, form, rng):
    n = 70_001
    hyper = hypers(op)[1]
    for backend in ("numba", "c"):
        kernel = get(op, backend=backend, form=form)
        coef = kernel.coefficients(hyper, 3)
        start = initial(rng, op, n, "wide")
        results = []
        for threads in (1, 2, 3, 7):
            arrays = [a.copy() for a in start]
            kernel(arrays[0], arrays[1], arrays[2:], coef, threads=threads)
            results.append(b"".join(a.tobytes() for a in arrays))
        assert len(set(results)) == 1


@pytest.mark.parametrize("op", OPS)
def test_first_step_by_hand(op):
    """w = 1, g = 0.5, no decay: after one step from zero states every operation has a closed form.

    sgd, momentum: 1 - lr/2. nesterov: 1 - lr (g + 0.9 g) = 1 - 0.1 * 0.95 = 0.905.
    adam: m / (1 - beta1) = g and v / (1 - beta2) = g^2, so w = 1 - lr g / (g + eps) = 0.99.
    adagrad: v = g^2, w = 1 - lr g / (g + eps) = 0.9.
    """
    want = {"sgd": 0.95, "momentum": 0.95, "nesterov": 0.905}
    want |= {"adam": 0.99, "adamw": 0.99, "adagrad": 0.9}
    for form in FORMS:
        kernel = get(op, backend="numpy", form=form)
        w, g = np.ones(1, np.float32), np.full(1, 0.5, np.float32)
        states = [np.zeros(1, np.float32) for _ in kernel.states]
        kernel(w, g, states, kernel.coefficients(BASE[op], 1))
        assert w[0] == pytest.approx(want[op], abs=3e-7)


def test_decay_is_coupled_in_adam_and_decoupled_in_adamw():
    """g = 0: AdamW shrinks w by lr * wd exactly once; Adam's step is lr in size, whatever wd is."""
    hyper = BASE["adam"] | {"weight_decay": 0.1, "lr": 0.01}
    for op, want in (("adamw", 2 * (1 - 0.001)), ("adam", 2 - 0.01)):
        kernel = get(op, backend="numpy")
        w, g, m, v = (np.full(1, x, np.float32) for x in (2, 0, 0, 0))
        kernel(w, g, (m, v), kernel.coefficients(hyper, 1))
        assert w[0] == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("op", OPS)
def test_maximize_is_the_negated_gradient(op, rng):
    for form in FORMS:
        for backend, isa in (("numpy", None), *compiled()):
            kernel = get(op, backend=backend, isa=isa, form=form)
            for extra in ({}, {"weight_decay": 0.01}):
                hyper = BASE[op] | extra
                start = initial(rng, op, 333, "ordinary")
                for step in (1, 2):
                    up, down = [a.copy() for a in start], [a.copy() for a in start]
                    down[1] *= -1
                    coef = kernel.coefficients(hyper | {"maximize": True}, step)
                    kernel(up[0], up[1], up[2:], coef)
                    kernel(down[0], down[1], down[2:], kernel.coefficients(hyper, step))
                    assert all(same_bits(a, b) for a, b in zip(up[::2], down[::2], strict=True))


def test_first_momentum_step_takes_the_gradient_undampened():
    hyper = {"lr": 1.0, "momentum": 0.9, "dampening": 0.5}
    g = np.array([3.0, -0.0, 0.0, -2.0], np.float32)
    for form in FORMS:
        for backend, isa in (("numpy", None), *compiled()):
            kernel = get("momentum", backend=backend, isa=isa, form=form)
            w, m = np.zeros(4, np.float32), np.zeros(4, np.float32)
            kernel(w, g, (m,), kernel.coefficients(hyper, 1))
            assert m.tobytes() == g.tobytes()
            kernel(w, g, (m,), kernel.coefficients(hyper, 2))
            assert m[0] == np.float32(0.9) * np.float32(3) + np.float32(0.5) * np.float32(3)


def test_what_a_kernel_says_of_itself():
    traffic = {"sgd": 12, "momentum": 20, "nesterov": 20, "adam": 28, "adamw": 28, "adagrad": 20}
    states = {"sgd": (), "momentum": ("m",), "nesterov": ("m",), "adagrad": ("v",)}
    for op in OPS:
        kernel = get(op, form="torch")
        assert (kernel.op, kernel.form) == (op, "torch")
        assert kernel.bytes_per_param() == traffic[op]
        assert kernel.states == states.get(op, ("m", "v"))
        # weights and states are read and written, the gradient is read
        assert kernel.bytes_per_param() == 4 * (2 * (1 + len(kernel.states)) + 1)
        assert len({kernel.coefficients(h, s).size for h in hypers(op) for s in (1, 9)}) == 1


def test_auto_is_c_where_it_was_built():
    from ondie.kernels import backends, isas

    kernel = get("adamw")
    assert kernel.backend == ("c" if "c" in backends() else "numba")
    assert kernel.isa == (isas()[-1] if isas() else None)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: get("adamax"), ["operation", "'adamax'", "'adam"]),
        (lambda: get("adam", backend="cuda"), ["backend", "'cuda'", "numba"]),
        (lambda: get("adam", form="pytorch"), ["form", "'pytorch'", "'torch'"]),
        (lambda: get("adam", backend="c", isa="avx1024"), ["isa", "'avx1024'"]),
        (lambda: get("adam", backend="numpy", isa="base"), ["isa", "'base'", "'numpy'"]),
        (lambda: get("sgd").coefficients({}, 1), ["'lr'", "missing"]),
        (lambda: get("sgd").coefficients({"lr": 1, "momentum": 0.9}, 1), ["sgd", "'momentum'"]),
        (lambda: get("sgd").coefficients({"lr": 1, "weight_decy": 0}, 1), ["'weight_decay'"]),
        (lambda: get("sgd").coefficients({"lr": -1}, 1), ["lr = -1.0", "0 <= lr"]),
        (lambda: get("sgd").coefficients({"lr": float("nan")}, 1), ["lr = nan"]),
        (lambda: get("sgd").coefficients({"lr": 1e300}, 1), ["1e+300", "float32"]),
        (lambda: get("sgd").coefficients({"lr": "fast"}, 1), ["lr = 'fast'", "number"]),
        (lambda: get("sgd").coefficients({"lr": 1, "maximize": 0.5}, 1), ["maximize"]),
        (lambda: get("adam").coefficients(BASE["adam"] | {"beta2": 1.0}, 1), ["beta2 = 1.0"]),
        (lambda: get("sgd").coefficients({"lr": 1}, 0), ["step = 0"]),
        (lambda: get("sgd").coefficients({"lr": 1}, 1.5), ["step = 1.5"]),
        (lambda: aligned_empty(-1), ["-1"]),
        (lambda: aligned_empty(8, align=48), ["48"]),
    ],
)
def test_bad_names_and_values_are_one_line(call, words):
    with pytest.raises(KernelError) as error:
        call()
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_neutral_hyperparameters_of_other_operations_are_accepted():
    assert get("sgd").coefficients({"lr": 1, "momentum": 0.0, "dampening": 0}, 1)[0] == 1


@pytest.mark.parametrize("backend", ["numpy", "numba", "c"])
def test_bad_arrays_are_refused_and_nothing_is_written(backend):
    kernel = get("momentum", backend=backend)
    coef = kernel.coefficients(BASE["momentum"], 2)
    w, g, m = (np.ones(8, np.float32) for _ in range(3))
    frozen = np.ones(8, np.float32)
    frozen.flags.writeable = False
    for arrays, word in [
        ((w, g.astype(np.float64), (m,)), "g is float64"),
        ((w, g[:7], (m,)), "g is float32 (7,)"),
        ((w.reshape(2, 4), g, (m,)), "w is float32 (2, 4)"),
        ((np.ones(16, np.float32)[::2], g, (m,)), "strided"),
        ((frozen, g, (m,)), "w is read-only"),
        ((w, g, (frozen,)), "m is read-only"),
        ((w, g, ()), "2 arrays, expected w, g, m"),
        ((w, w, (m,)), "share memory"),
        ((w, g, (w,)), "share memory"),
    ]:
        with pytest.raises(KernelError, match=word.replace("(", r"\(").replace(")", r"\)")):
            kernel(*arrays, coef)
        assert (w == 1).all() and (m == 1).all()
    with pytest.raises(KernelError, match="coef"):
        kernel(w, g, (m,), coef.astype(np.float64))
    with pytest.raises(KernelError, match="threads"):
        kernel(w, g, (m,), coef, threads=0)
    kernel(w, frozen, (m,), coef)  # a read-only gradient is fine


def test_aligned_empty():
    for n in SIZES:
        for dtype in (np.float32, np.uint16, np.float64):
            a = aligned_empty(n, dtype)
            assert a.shape == (n,) and a.dtype == dtype and a.flags.carray
            assert n == 0 or a.ctypes.data % 64 == 0


@pytest.mark.skipif(not isas(), reason="the extension is not built")
@pytest.mark.parametrize("form", FORMATS)
def test_the_direct_call(form):
    """Arguments without a fault are updated at once; all others are left to the checks."""
    kernel = get("adam", "c", format=form)
    arrays = tuple(np.ones(slot.size(600), slot.dtype) for slot in kernel.slots)
    coef = kernel.coefficients({"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "eps": 1e-8}, 1)
    key = 7 if kernel.random else None
    before = [sys.getrefcount(array) for array in arrays]
    assert kernel._one(arrays, coef, 1, 0, key) == 0
    assert [sys.getrefcount(array) for array in arrays] == before
    assert (arrays[0] != 1).any()
    kept = [array.copy() for array in arrays]
    wide = np.zeros((600, 2), np.float32)
    frozen = arrays[0].copy()
    frozen.flags.writeable = False
    wrong = [
        (list(arrays), coef, 1, 0, key),
        (arrays[:-1], coef, 1, 0, key),
        (arrays, coef[:-1], 1, 0, key),
        (arrays, coef.astype(np.float64), 1, 0, key),
        (arrays, None, 1, 0, key),
        (arrays, coef, True, 0, key),
        (arrays, coef, 0, 0, key),
        (arrays, coef, 1025, 0, key),
        (arrays, coef, 1, -1, key),
        (arrays, coef, 1, 1 << 63, key),
        (arrays, coef, 1, 0, 1 << 32),
        (arrays, coef, 1, 0, 7.0),
    ] + [((bad, *arrays[1:]), coef, 1, 0, key) for bad in (
        wide[:, 0], wide, frozen, arrays[0][:-1], arrays[0].astype(arrays[0].dtype.newbyteorder()),
        arrays[0].view(np.int16), list(arrays[0]), None,
    )]  # fmt: skip
    if kernel.random:
        wrong.append((arrays, coef, 1, 0, None))
    for arguments in wrong:
        assert kernel._one(*arguments) is None
    for array, copy in zip(arrays, kept, strict=True):
        np.testing.assert_array_equal(array, copy)
