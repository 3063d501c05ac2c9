"""Compiler passes by which a function is lowered.

This module owns the list of passes and their runner. It does not lower functions (parts.py,
direct.py) and does not decide how a function is compiled (jit.py).
Source: Numba's default pipeline and pass manager.

Numba's pass manager verifies, times and reports every pass. For four hundred small functions that
are compiled one inside the other, this overhead exceeds the time of type inference.
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
"""Numba passes that the functions of ondie.emu do not need.

They handle closures, ``with`` blocks, exceptions, branches on literals and array expressions.
"""


class _OperatorMemo:
    """Resolves calls in a typing context and memoizes the signatures of operators.

    Numba tries each template of an operator, up to about a hundred, at every occurrence of the
    operator. The signature depends only on the argument types and the function type, which includes
    the templates. Failures are not memoized.
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
    """Return True for Numba's type of a function of the module ``operator``."""
    if type(function) is not types.Function:
        return False
    return getattr(function.typing_key, "__module__", None) == _operator.__name__


def _remember_operators(context: Any) -> None:
    """Install the operator memo in a typing context, once."""
    if not isinstance(context.resolve_function_type, _OperatorMemo):
        context.resolve_function_type = _OperatorMemo(context)


class _Passes(PassManager):
    """A pass manager that runs passes in order without timing and verification."""

    def _runPass(self, index: int, pss: Any, internal_state: Any) -> None:
        pss.analysis = self._analysis
        with errors.new_error_context("Pass {name}", name=pss.name()):  # type: ignore[attr-defined]
            pss.run_initialization(internal_state)
            pss.run_pass(internal_state)
            pss.run_finalizer(internal_state)


def passes(state: Any, lowering: type, left_out: tuple[str, ...]) -> list[Any]:
    """Return Numba's passes with the given lowering pass and without those in ``left_out``."""
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
