"""Owns: the passes by which a function is lowered, and what happens between them.
Does not: lower (parts.py, direct.py) or decide which functions are compiled how (jit.py).
Source: Numba's default pipeline and pass manager.

Numba checks its own work after every pass, times it, and tells listeners of it. Of four hundred
small functions that are compiled one inside the other, this takes longer than typing them.
"""

import _operator
from typing import Any

from numba.core import errors, types
from numba.core.compiler import DefaultPassBuilder
from numba.core.compiler_machinery import PassManager
from numba.core.typed_passes import NativeLowering

UNUSED = (
    "WithLifting",
    "InlineClosureLikes",
    "RewriteDynamicRaises",
    "MakeFunctionToJitFunction",
    "InlineInlinables",
    "DeadBranchPrune",
    "FindLiterallyCalls",
    "LiteralUnroll",
    "LiteralPropagationSubPipelinePass",
    "InlineOverloads",
    "DumpParforDiagnostics",
    "NopythonRewrites",
)
"""Numba's passes for what the functions of ondie.emu do without: closures, blocks of ``with``,
exceptions, branches on literals, expressions of whole arrays."""


class _OperatorMemo:
    """Resolves calls in a typing context and keeps the signatures of operators.

    Numba tries each of an operator's templates, up to some hundred, every time that the operator
    occurs. The signature follows from the function type, which includes the templates, and the
    argument types. Failures are not kept.
    """

    def __init__(self, context: Any) -> None:
        self._resolve = context.resolve_function_type
        self._known: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, function: Any, args: Any, named: Any) -> Any:
        if named or not _is_operator(function):
            return self._resolve(function, args, named)
        key = (function, tuple(args))
        if key in self._known:
            signature, implementation = self._known[key]
            function._impl_keys[signature.args] = implementation
            return signature
        signature = self._resolve(function, args, named)
        if signature is not None and signature.args in function._impl_keys:
            self._known[key] = signature, function._impl_keys[signature.args]
        return signature


def _is_operator(function: Any) -> bool:
    """Is this Numba's type of a function of the module ``operator``?"""
    if type(function) is not types.Function:
        return False
    return getattr(function.typing_key, "__module__", None) == _operator.__name__


def _remember_operators(context: Any) -> None:
    """Give a typing context its memo, once."""
    if not isinstance(context.resolve_function_type, _OperatorMemo):
        context.resolve_function_type = _OperatorMemo(context)


class _Passes(PassManager):
    """Passes one after the other."""

    def _runPass(self, index: int, pss: Any, internal_state: Any) -> None:
        pss.analysis = self._analysis
        with errors.new_error_context("Pass {name}", name=pss.name()):  # type: ignore[attr-defined]
            pss.run_initialization(internal_state)
            pss.run_pass(internal_state)
            pss.run_finalizer(internal_state)


def passes(state: Any, lowering: type, left_out: tuple[str, ...]) -> list[Any]:
    """Numba's passes with a lowering of our own."""
    _remember_operators(state.typingctx)
    manager = _Passes("parts")
    if not state.func_id.func.__module__.startswith("ondie.emu"):
        left_out = tuple(name for name in left_out if name not in UNUSED)
    manager.passes.extend(
        (lowering, "lowering") if each is NativeLowering else (each, name)
        for each, name in DefaultPassBuilder.define_nopython_pipeline(state).passes
        if each.__name__ not in left_out
    )
    manager.finalize()
    return [manager]
