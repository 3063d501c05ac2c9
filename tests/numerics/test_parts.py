"""Functions compiled as one program: what is copied, what stays apart, what callers share."""

import operator

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import types
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.core.runtime import _nrt_python, rtsys

from ondie.kernels import parts, pipeline
from ondie.kernels.direct import _Context
from ondie.kernels.jit import cold, inline, njit


@inline
def doubled(x):
    return 2 * x


@cold
def seldom(x):
    return x - 1000


@njit
def taken(x):
    return seldom(x) if x > 100 else doubled(x)


def text(function) -> str:
    """The program that Python calls, as LLVM has optimized it."""
    (result,) = function.whole.overloads.values()
    return result.library.get_llvm_str()


def defined(function, name: str) -> list[str]:
    """Heads of the definitions whose names hold ``name``."""
    return [x for x in text(function).splitlines() if x.startswith("define") and name in x]


@pytest.mark.parametrize("value", [-7, 0, 100, 101, 2**40])
def test_parts_compute_what_python_does(value):
    def plain(x):
        return x - 1000 if x > 100 else 2 * x

    assert taken(value) == plain(value)
    assert taken.py_func(value) == plain(value)


def test_signed_integers_of_any_width_share_a_part():
    @njit(cache=False)
    def part(x):
        return seldom(x) if x > 100 else doubled(x)

    @njit(cache=False)
    def of_widths(a, i):
        return part(a[i]) + part(np.int8(a[i])) + part(np.int32(a[i])) + part(3)

    values = np.array([-5, 90], np.int16)
    assert of_widths(values, 0) == 3 * -10 + 6
    assert of_widths(values, 1) == 3 * 180 + 6
    assert list(part.overloads) == [(types.int64,)]


def test_other_types_keep_theirs():
    @njit(cache=False)
    def half(x):
        return x / 2

    @njit(cache=False)
    def both(a, b):
        return half(a), half(b)

    assert both(np.float32(3), np.uint32(2**32 - 1)) == (1.5, (2**32 - 1) / 2)
    assert set(half.overloads) == {(types.float32,), (types.uint32,)}


def test_small_parts_are_copied_and_cold_ones_are_private():
    @cold
    def squared(x):
        return x * x + 1

    @njit(cache=False)
    def whole(x):
        return doubled(squared(x) + squared(x + 1))

    assert whole(3) == 2 * (10 + 17)
    assert not defined(whole, "doubled")
    (head,) = defined(whole, "squared")
    assert "internal" in head
    assert "i32 @" not in head  # its status, which is always the same, is gone
    assert "noinline" in text(whole)


def test_called_by_python_and_by_compiled_code():
    """A function is a program of its own where Python calls it, and a part where others do."""

    @njit(cache=False)
    def inner(x):
        return x + 1

    @njit(cache=False)
    def outer(x):
        return inner(inner(x))

    assert outer(1) == 3
    assert inner(1) == 2
    assert outer(2.5) == 4.5
    assert inner(np.int32(7)) == 8


def test_arrays_of_parts_are_freed():
    """Parts count references of arrays, and of nothing else."""

    @njit(cache=False)
    def filled(n):
        held = np.zeros(n)
        for i in range(n):
            row = np.full(3, float(i))
            if i % 2:
                held = row
        return held

    @njit(cache=False)
    def total(n):
        x = 0.0
        for i in range(n):
            x += filled(i).sum()
        return x

    assert total(3) == 0.0 + 0.0 + 3.0
    _nrt_python.memsys_enable_stats()
    before = rtsys.get_allocation_stats()
    assert total(50) == sum(3.0 * (n - 1 - n % 2) for n in range(2, 50))
    after = rtsys.get_allocation_stats()
    _nrt_python.memsys_disable_stats()
    assert after.alloc - before.alloc == after.free - before.free > 1000


def test_operators_are_resolved_once_for_each_types():
    @njit(cache=False)
    def work(x, y):
        return (x + y) + (x + y) + x

    work(1, 2.5)
    adding = cpu_target.typing_context._lookup_global(operator.add)
    memo = adding.get_call_type
    assert isinstance(memo, pipeline._Signatures)
    asked = []

    def resolve(context, args, named):
        asked.append(args)
        return resolved(context, args, named)

    resolved, memo._resolve = memo._resolve, resolve
    try:
        for _ in range(2):
            with pytest.raises(TypingError):
                memo(cpu_target.typing_context, (types.none, types.int64), {})
        memo(cpu_target.typing_context, (types.int64, types.float64), {})
    finally:
        memo._resolve = resolved
    assert asked == [(types.none, types.int64)] * 2  # a failure may be mended by a new declaration


def test_linked_modules_keep_their_order():
    """More modules than fit into one group of groups."""
    names = [f"f{i}" for i in range(parts.GROUP**2 + parts.GROUP + 1)]
    modules = [
        llvm.parse_assembly(
            f"declare i64 @{after}()\n"
            f"define i64 @{name}() {{ %x = call i64 @{after}() ret i64 %x }}"
        )
        for name, after in zip(names, [*names[1:], "g"], strict=True)
    ]
    linked = parts._merged(modules)
    linked.verify()
    assert [each.name for each in linked.functions if not each.is_declaration] == names


@pytest.mark.parametrize("kind", [types.int8, types.int64, types.float32, types.complex128])
def test_sizes_of_types(kind):
    context = cpu_target.target_context.subtarget()
    context.__class__ = _Context
    for _ in range(2):
        assert context.get_abi_sizeof(context.get_value_type(kind)) == kind.bitwidth // 8
