"""Owns: the passes by which a function is lowered, and what happens between them.
Does not: lower (parts.py, direct.py) or decide which functions are compiled how (jit.py).
Source: Numba's default pipeline and pass manager.

Numba checks its own work after every pass, times it, and tells listeners of it. Of four hundred
small functions that are compiled one inside the other, this takes longer than typing them.
"""

from typing import Any

from numba.core import errors
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
