"""The `njit` decorator of this project and its compilation progress callback.

This module owns the compilation rules. It does not store compiled code (code_cache.py), does not
parallelize (no prange) and does not relax arithmetic (no fastmath).
Source: this project.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numba
from numba.core.ccallback import CFunc

from .code_cache import CodeCache
from .errors import KernelError
from .parts import (
    ApartCompiler,
    ColdCompiler,
    Function,
    PartCompiler,
    ScalarCompiler,
    WholeCompiler,
)

LARGE = 100
"""Number of functions, including helper functions, at and above which a compilation takes seconds.

`on_compile` reports the progress of such a compilation.
"""


def _nothing(done: int, total: int) -> None: ...


on_compile: Callable[[int, int], None] = _nothing
"""Callback that receives (number of functions compiled so far, total number of functions) during a
compilation of at least LARGE functions.

In the first call, the first number is 0; in the last call, it equals the total number. A program
may replace the callback.
"""


class _Progress:
    """Progress of a compilation of at least LARGE functions: the total number of functions, the
    number compiled so far, and whether Python's garbage collector was enabled before."""

    total = 0
    done = 0
    collected = True


def _missed(count: int) -> None:
    """Prepare for the compilation of ``count`` functions. If these are at least LARGE, start the
    progress report and disable garbage collection.

    Garbage collection would repeatedly scan the same few million live objects.
    """
    if count < LARGE:
        return
    _Progress.total, _Progress.done = count, 0
    _Progress.collected = gc.isenabled()
    gc.disable()
    on_compile(0, count)


def _stored() -> None:
    """If progress is reported, report the end of the compilation and restore garbage collection."""
    if _Progress.total:
        on_compile(_Progress.total, _Progress.total)
        _Progress.total = 0
        if _Progress.collected:
            gc.enable()


def _lowered() -> None:
    """If progress is reported, report that one more function has been lowered."""
    if _Progress.total:
        _Progress.done = min(_Progress.done + 1, _Progress.total - 1)
        on_compile(_Progress.done, _Progress.total)


def _cached(dispatcher: Any, plain: Any, options: Any) -> Any:
    """Return a Numba dispatcher or callback after replacing its cache with a CodeCache."""
    dispatcher._cache = CodeCache(plain, repr(options), _missed, _stored)
    return dispatcher


def njit(*signature_or_function: Any, **options: Any) -> Any:
    """Return numba.njit with this project's rules; parentheses, signature and options are optional.

    The options are always error_model="numpy" and nogil=True, and never fastmath or parallel.
    Compiled code is stored on disk unless cache=False. Only :func:`inline` inlines a function,
    because Numba passes the option on to every function that is first compiled inside an inlined
    one. With NUMBA_DISABLE_JIT=1 the result is the plain function. Raises KernelError for an option
    that would change results.
    """
    for banned in ("fastmath", "parallel"):
        if options.get(banned):
            raise KernelError(f"njit: {banned}={options[banned]!r} would change results; remove it")
    compiler = options.pop("part", PartCompiler)
    cached = options.pop("cache", True)
    rules = {"error_model": "numpy", "nogil": True, "boundscheck": False, "forceinline": False}
    options = rules | options

    def decorate(function: Callable[..., Any]) -> Any:
        if numba.config.DISABLE_JIT:
            return function

        def whole() -> Any:
            engine = function.__module__.startswith("ondie.emu")
            pipeline = (
                {} if signature else {"pipeline_class": ScalarCompiler if engine else WholeCompiler}
            )
            dispatcher = numba.njit(**pipeline, **options)(function)
            return _cached(dispatcher, function, options) if cached else dispatcher

        if not signature:
            return Function(function, options, whole, compiler, _lowered)
        dispatcher = whole()
        listed = signature[0] if isinstance(signature[0], list | tuple) else [signature[0]]
        for each in listed:
            dispatcher.compile(each)
        dispatcher.disable_compile()
        return dispatcher

    if len(signature_or_function) == 1 and hasattr(signature_or_function[0], "__code__"):
        signature: tuple[Any, ...] = ()
        return decorate(signature_or_function[0])
    signature = signature_or_function
    return decorate


def inline(function: Callable[..., Any]) -> Any:
    """Compile a small function of a hot loop with :func:`njit`; the compiler inlines every call."""
    return njit(forceinline=True)(function)


def cold(function: Callable[..., Any]) -> Any:
    """Compile a rarely called function of a hot loop with :func:`njit`.

    The function is never inlined, and the compiler moves its calls out of the loop's hot path.
    """
    return njit(part=ColdCompiler)(function)


def apart(function: Callable[..., Any]) -> Any:
    """Compile a large function of a hot loop with :func:`njit`.

    The function is never inlined, so that the loop stays small.
    """
    return njit(part=ApartCompiler)(function)


def entry(function: Any, *args: Any) -> Any:
    """Return the compiled program of ``function`` for arguments of the types of ``args``.

    A call of the program takes 0.3 us. A call of ``function`` takes 9 us, mostly to determine the
    types of records and of the engine's state. The arguments of every call must have the types of
    ``args``, which are not checked. With NUMBA_DISABLE_JIT=1 the result is ``function``.
    """
    return function.entry(*args) if isinstance(function, Function) else function


def callback(signature: Any, function: Any) -> Any:
    """Return numba.cfunc of a compiled function. Store its machine code on disk, as njit does.

    The attribute ``address`` of the result is the address for C code.
    """
    plain = getattr(function, "py_func", function)
    options = {"error_model": "numpy", "nopython": True}
    parts = (signature.args, signature.return_type)
    made = CFunc(plain, parts, locals={}, options=options, pipeline_class=WholeCompiler)
    _cached(made, plain, options).compile()
    return made
