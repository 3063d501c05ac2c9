"""The reference of a trace: the kernel, called tensor by tensor as an optimizer does."""

import numpy as np
import pytest

from ondie.emu.paths.optimizer_step import Arithmetic
from ondie.emu.units import InputError
from ondie.kernels import OPS, get
from tests.state.models import model


@pytest.mark.parametrize("op", OPS)
def test_reference_is_the_kernel_on_each_tensor(op):
    """Each tensor with the coefficients of its group and of the optimizer's own count of steps,
    which does not begin at 1 here; a skipped step consumes nothing."""
    trace = model(op, steps=4, skipped=(2,))
    kernel = get(op)
    vectors = {"w": trace.weights("initial").copy()}
    vectors |= {name: x.copy() for name, x in trace.states().items()}
    for i in (0, 1, 3):
        step = trace.steps[i]
        gradient = trace.gradient(i)
        for t in trace.tensors:
            at = slice(t.offset, t.offset + t.size)
            states = [vectors[name][at] for name in kernel.states]
            coefficients = kernel.coefficients(step.hyper[t.group], step.count)
            kernel(vectors["w"][at], gradient[at].copy(), states, coefficients)
    reference = Arithmetic(trace).reference(4)
    assert (reference.view(np.uint32) == vectors["w"].view(np.uint32)).all()
    assert (reference != trace.weights("initial")).mean() > 0.99


@pytest.mark.parametrize("cut", [1, 4101, 4102, 9103, 9105])
def test_pieces_make_the_whole(cut):
    """An update cut anywhere, inside a tensor or at the border of two groups, gives the same
    bits."""
    trace = model("adamw", steps=1)
    arithmetic = Arithmetic(trace)
    coefficients = arithmetic.coefficients(0)
    whole = {"w": trace.weights("initial").copy(), **trace.states()}
    parts = {name: x.copy() for name, x in whole.items()}
    g, n = trace.gradient(0), trace.n_params
    arithmetic.apply(coefficients, 0, n, whole, g)
    for a, b in ((0, cut), (cut, n)):
        views = {name: x[a:b] for name, x in parts.items()}
        arithmetic.apply(coefficients, a, b, views, g[a:b])
    for name in whole:
        assert (whole[name].view(np.uint32) == parts[name].view(np.uint32)).all()


def test_a_trace_without_a_kernel_is_refused():
    trace = model("sgd")
    object.__setattr__(trace, "op", "other")
    with pytest.raises(InputError, match="'other' has no update kernel; known: sgd"):
        Arithmetic(trace)
