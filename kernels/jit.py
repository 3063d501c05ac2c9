"""Owns: the `njit` of this project, and what a program may watch of compiling.
Does not: store compiled code (code_cache.py), parallelise (no prange) or relax arithmetic (no
fastmath). Source: none.
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
"""A function with at least this many helpers takes seconds to compile; `on_compile` is told."""


def _nothing(done: int, total: int) -> None: ...


on_compile: Callable[[int, int], None] = _nothing
"""Called with (compiled functions, functions in all) while a LARGE function is compiled, first with
0 and last with the total. A program may replace it."""


class _Progress:
    """What is compiled at the moment."""

    total = 0
    done = 0
    collected = True


def _missed(count: int) -> None:
    """Compiling begins: of one function and ``count`` in all. No garbage collection meanwhile: it
    would go through the same few million live objects again and again."""
    if count < LARGE:
        return
    _Progress.total, _Progress.done = count, 0
    _Progress.collected = gc.isenabled()
    gc.disable()
    on_compile(0, count)


def _stored() -> None:
    if _Progress.total:
        on_compile(_Progress.total, _Progress.total)
        _Progress.total = 0
        if _Progress.collected:
            gc.enable()


def _lowered() -> None:
    """One more part has been lowered."""
    if _Progress.total:
        _Progress.done = min(_Progress.done + 1, _Progress.total - 1)
        on_compile(_Progress.done, _Progress.total)


def _cached(dispatcher: Any, plain: Any, options: Any) -> Any:
    """A dispatcher or callback with our cache instead of Numba's."""
    dispatcher._cache = CodeCache(plain, repr(options), _missed, _stored)
    return dispatcher


def njit(*signature_or_function: Any, **options: Any) -> Any:
    """numba.njit with this project's rules; with or without parentheses, signature or options.

    Always error_model="numpy" and nogil=True, never fastmath or parallel; stored between runs
    unless cache=False. A function is inlined only where :func:`inline` says so: Numba would hand
    the option on to every function that is first compiled inside an inlined one. Under
    NUMBA_DISABLE_JIT=1 the plain function comes back.
    """
    for banned in ("fastmath", "parallel"):
        if options.get(banned):
            raise KernelError(f"njit: {banned}={options[banned]!r} changes results; leave it out")
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
    """:func:`njit` for a small function of a hot loop: the compiler copies it to where it is
    called."""
    return njit(forceinline=True)(function)


def cold(function: Callable[..., Any]) -> Any:
    """:func:`njit` for what a hot loop seldom calls: it is never copied to where it is called, and
    the way to it is laid out of the loop's way."""
    return njit(part=ColdCompiler)(function)


def apart(function: Callable[..., Any]) -> Any:
    """:func:`njit` for a large function of a hot loop: it is never copied to where it is called, so
    that the loop stays small whatever the compiler makes of the rest."""
    return njit(part=ApartCompiler)(function)


def callback(signature: Any, function: Any) -> Any:
    """numba.cfunc of a compiled function, stored like :func:`njit`; has ``address``."""
    plain = getattr(function, "py_func", function)
    options = {"error_model": "numpy", "nopython": True}
    parts = (signature.args, signature.return_type)
    made = CFunc(plain, parts, locals={}, options=options, pipeline_class=WholeCompiler)
    _cached(made, plain, options).compile()
    return made
