"""Compiler passes that lower a function.

This module owns the list of passes and the pass manager that runs them. It does not lower functions
(parts.py, direct.py) and does not own the compilation rules (jit.py).
Source: Numba's default pipeline and pass manager.

Numba's pass manager verifies, times and reports every pass. For four hundred small functions that
are compiled one inside the other, this overhead exceeds the time of type inference.
"""

import _operator
from typing import Any

from numba.core import errors, types
from numba.core.compiler import DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.ir_utils import build_definitions
from numba.core.ssa import reconstruct_ssa
from numba.core.typed_passes import NativeLowering, PreLowerStripPhis
from numba.core.untyped_passes import ReconstructSSA

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


class _Signatures:
    """Memo of the call signatures of one operator, such as ``+``, by argument types.

    It replaces ``get_call_type`` of the operator's type in Numba. An operator has up to about a
    hundred templates. Numba tries all of them when it types an occurrence of the operator, and
    again when it lowers the occurrence. The signature depends only on the argument types. Failures
    are not memoized.
    """

    def __init__(self, function: Any) -> None:
        self._resolve = function.get_call_type
        self._implementations = function._impl_keys
        self._known: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, context: Any, args: Any, named: Any) -> Any:
        if named:
            return self._resolve(context, args, named)
        key = tuple(args)
        known = self._known.get(key)
        if known is None:
            signature = self._resolve(context, args, named)
            self._known[key] = signature, self._implementations[signature.args]
            return signature
        signature, self._implementations[signature.args] = known
        return signature


class _Resolver:
    """Resolves calls in a typing context, and installs a memo (`_Signatures`) for each operator at
    its first call."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._resolve = context.resolve_function_type

    def __call__(self, function: Any, args: Any, named: Any) -> Any:
        kind = self._context._lookup_global(function) or function
        if _is_operator(kind) and not isinstance(kind.get_call_type, _Signatures):
            kind.get_call_type = _Signatures(kind)
        return self._resolve(function, args, named)


def _is_operator(function: Any) -> bool:
    """Return True if ``function`` is Numba's type of an operator.

    Operators are the functions of the module ``operator``, and bool and int.
    """
    if type(function) is not types.Function:
        return False
    key = function.typing_key
    return key in (bool, int) or getattr(key, "__module__", None) == _operator.__name__


def _remember_operators(context: Any) -> None:
    """Install the memos of operators in a typing context, unless it has them already."""
    if not isinstance(context.resolve_function_type, _Resolver):
        context.resolve_function_type = _Resolver(context)


@register_pass(mutates_CFG=True, analysis_only=False)
class _ToSingleAssignments(ReconstructSSA):
    """Numba's pass ReconstructSSA without the lifetimes of variables.

    The pass IRLegalization computes the lifetimes later.
    """

    _name = "to_single_assignments"

    def run_pass(self, state: Any) -> bool:
        state.func_ir = reconstruct_ssa(state.func_ir)
        self._patch_locals(state)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _StripPhis(PreLowerStripPhis):
    """Numba's pass PreLowerStripPhis without the lifetimes of variables.

    The pass IRLegalization computes the lifetimes later.
    """

    _name = "strip_phis"

    def run_pass(self, state: Any) -> bool:
        state.func_ir = self._strip_phi_nodes(state.func_ir)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


class _Passes(PassManager):
    """A pass manager that runs the passes in order, without timing and verification."""

    def _runPass(self, index: int, pss: Any, internal_state: Any) -> None:
        pss.analysis = self._analysis
        with errors.new_error_context("Pass {name}", name=pss.name()):  # type: ignore[attr-defined]
            pss.run_initialization(internal_state)
            pss.run_pass(internal_state)
            pss.run_finalizer(internal_state)


def passes(state: Any, lowering: type, left_out: tuple[str, ...]) -> list[Any]:
    """Return the pass managers for a compilation: one that runs Numba's passes with ``lowering`` as
    the lowering pass, and without the passes named in ``left_out``.

    ``state``: Numba's state of the compilation. The passes in UNUSED are omitted only for functions
    of ondie.emu.
    """
    _remember_operators(state.typingctx)
    manager = _Passes("parts")
    replaced = {NativeLowering: lowering}
    if state.func_id.func.__module__.startswith("ondie.emu"):
        replaced |= {ReconstructSSA: _ToSingleAssignments, PreLowerStripPhis: _StripPhis}
    else:
        left_out = tuple(name for name in left_out if name not in UNUSED)
    manager.passes.extend(
        (replaced.get(each, each), name)
        for each, name in DefaultPassBuilder.define_nopython_pipeline(state).passes
        if each.__name__ not in left_out
    )
    manager.finalize()
    return [manager]
