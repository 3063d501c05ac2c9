"""Compilation of functions that call each other as one program, optimized once.

This module owns the libraries and compilers of parts and whole programs. It does not own the
compilation rules (jit.py), and it does not cache parts; a program is cached as a whole.
Source: Numba's code generator, and link-time internalization as LLVM's documentation describes it.

Numba generates machine code for every function together with all its callees, so a function five
calls deep is optimized and generated six times. A function that other code may call also keeps
Numba's calling convention, with a status and a returned value in memory. In this module a function
that compiled code calls is only lowered; it becomes a part. The function that Python calls is
linked with all its parts, which become private, and is optimized together with them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import llvmlite.binding as llvm
from numba import typeof
from numba.core import sigutils, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, _LowerResult
from numba.core.compiler_lock import require_global_compiler_lock
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering
from numba.core.types.misc import unliteral

from .direct import PartLower, caller
from .pipeline import UNUSED, passes

GROUP = 16
"""Number of LLVM modules that are linked into one module at a time."""


class _Part(JITCodeLibrary):
    """LLVM code of one function and of its callees: not linked, not optimized, not executable."""

    _shared_module: Any

    def add_linking_library(self, library: Any) -> None:
        self._linking_libraries.append(library)

    def _optimize_functions(self, module: Any) -> None:
        """Do nothing; the optimization of the whole program includes this code."""

    def finalize(self) -> None:
        self._finalized = True

    def own(self) -> Any:
        """Return the LLVM module of this function without its callees."""
        return self._final_module

    def _get_module_for_linking(self) -> Any:
        """Return this module linked with all callees, for libraries that do not use parts."""
        if self._shared_module is None:
            module = self._final_module.clone()
            for library in _parts(self._linking_libraries):
                _link(module, library)
            for function in module.functions:
                if not function.is_declaration and function.linkage == llvm.Linkage.external:
                    function.linkage = "linkonce_odr"
            self._shared_module = module
        return self._shared_module


class _Whole(JITCodeLibrary):
    """LLVM code of a function that Python calls, linked with all its parts."""

    _shared_module: Any
    scalar = False
    """True if no loop of the program gains from vector instructions; the vectorizers then do not
    run.

    They would add a second, unused form of each loop, and code that prepares the inputs of this
    form.
    """

    def add_linking_library(self, library: Any) -> None:
        self._linking_libraries.append(library)

    def finalize(self) -> None:
        require_global_compiler_lock()
        self._codegen._check_llvm_bugs()
        self._raise_if_finalized()
        own = {f.name for f in self._final_module.functions if not f.is_declaration}
        libraries = _parts(self._linking_libraries)
        for library in libraries:
            self._reload_init.update(library._reload_init)
        parts = [library.own().clone() for library in libraries if isinstance(library, _Part)]
        if parts:
            self._final_module.link_in(_merged(parts))
        for library in libraries[len(parts) :]:
            _link(self._final_module, library)
        for function in self._final_module.functions:
            if not function.is_declaration and function.name not in own:
                function.linkage = "internal"
        if self.scalar:
            options = {"loop_vectorize": False, "slp_vectorize": False}
            optimizer, builder = self._codegen._module_pass_manager(**options)
            optimizer.run(self._final_module, builder)
        else:
            self._optimize_final_module()
        self._final_module.verify()
        self._finalize_final_module()

    def _get_module_for_linking(self) -> Any:
        """Return the LLVM module that the cache stores with the machine code.

        The module declares the public names and has no code.
        """
        if self._shared_module is None:
            private = (llvm.Linkage.internal, llvm.Linkage.private)
            module = self._final_module
            lines = [
                f'define void @"{each.name}"() {{ unreachable }}'
                for each in module.functions
                if not each.is_declaration and each.linkage not in private
            ]
            lines += [
                f'@"{each.name}" = global i8 0'
                for each in module.global_variables
                if not each.is_declaration and each.linkage not in private
            ]
            self._shared_module = llvm.parse_assembly("\n".join(lines))
        return self._shared_module


def _parts(direct: list[Any]) -> list[Any]:
    """Return the libraries in ``direct`` and all libraries that parts among them need, directly or
    indirectly, without duplicates."""
    found: dict[Any, None] = {}
    ahead = list(reversed(direct))
    while ahead:
        library = ahead.pop()
        if library not in found:
            found[library] = None
            if isinstance(library, _Part):
                ahead += reversed(library._linking_libraries)
    # The linker takes from a Numba library only the functions that the parts before it need.
    return sorted(found, key=lambda library: not isinstance(library, _Part))


def _merged(modules: list[Any]) -> Any:
    """Link LLVM modules, in order, into one module; the given modules become unusable.

    To link a module, LLVM visits the whole module into which it is linked. Linking in groups keeps
    that module small.
    """
    while len(modules) > 1:
        groups = [modules[i : i + GROUP] for i in range(0, len(modules), GROUP)]
        for first, *others in groups:
            for each in others:
                first.link_in(each)
        modules = [first for first, *_ in groups]
    return modules[0]


def _link(module: Any, library: Any) -> None:
    """Link the code of a library into an LLVM module."""
    if isinstance(library, _Part):
        module.link_in(library.own(), preserve=True)
    else:
        library._ensure_finalized()
        module.link_in(library._get_module_for_linking(), preserve=True)


def _library(state: Any, kind: type) -> None:
    """Create the library of type ``kind`` into which the function of ``state`` is lowered."""
    state.library = kind(state.targetctx.codegen(), state.func_id.func_qualname)
    state.library.enable_object_caching()


class _Name:
    """Key under which Numba's target context finds the call of a part."""


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerPart(NativeLowering):
    """Compiler pass that lowers a function to a part, which other compiled functions call."""

    _name = "lower_part"

    @property
    def lowering_class(self) -> type:
        return PartLower

    def run_pass(self, state: Any) -> bool:
        _library(state, _Part)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        name = _Name()
        call: Any = caller(lowered.fndesc, [state.library])
        state.targetctx._defns[name].append(call, call.signature)
        state["cr"] = _LowerResult(lowered.fndesc, lowered.call_helper, cfunc=name, env=lowered.env)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerApart(_LowerPart):
    """Compiler pass that lowers a function to a part with the attribute noinline."""

    _name = "lower_apart"
    attributes: tuple[str, ...] = ("noinline",)

    def run_pass(self, state: Any) -> bool:
        super().run_pass(state)
        function = state.library.own().get_function(state["cr"].fndesc.llvm_func_name)
        for attribute in self.attributes:
            function.add_function_attribute(attribute)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerCold(_LowerApart):
    """Compiler pass that lowers a function to a part with the attributes cold (rarely called) and
    noinline."""

    _name = "lower_cold"
    attributes = ("cold", "noinline")


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerWhole(NativeLowering):
    """Compiler pass that lowers a function called from Python, together with all its callees, as
    one program."""

    _name = "lower_whole"

    def run_pass(self, state: Any) -> bool:
        _library(state, _Whole)
        return super().run_pass(state)


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerScalar(NativeLowering):
    """Compiler pass that lowers a whole program without vector instructions."""

    _name = "lower_scalar"

    def run_pass(self, state: Any) -> bool:
        _library(state, _Whole)
        state.library.scalar = True
        return super().run_pass(state)


@contextmanager
def _as_it_is(context: Any) -> Iterator[None]:
    """Disable Numba's search for new declarations in a typing or target context inside the
    block."""
    context.refresh = lambda: None
    try:
        yield
    finally:
        del context.refresh


class PartCompiler(CompilerBase):
    """Compiler of a function that compiled code calls; its callers may inline it.

    Numba looks for new declarations before it compiles a function. The search is skipped while
    Numba types a program that calls the function, because Numba has already searched for the
    program.
    """

    lowering: type = _LowerPart

    def __init__(self, typing: Any, target: Any, *rest: Any) -> None:
        if not len(typing.callstack):  # nothing is being typed: a policy, compiled by itself
            super().__init__(typing, target, *rest)
            return
        with _as_it_is(typing), _as_it_is(target):
            super().__init__(typing, target, *rest)

    def define_pipelines(self) -> list[Any]:
        return passes(self.state, self.lowering, ("AnnotateTypes", *UNUSED))


class ApartCompiler(PartCompiler):
    """Compiler of a function that is never inlined into its callers."""

    lowering = _LowerApart


class ColdCompiler(PartCompiler):
    """Compiler of a rarely called function, which is marked cold, so that the compiled callers keep
    calls of the function outside their hot path."""

    lowering = _LowerCold


class WholeCompiler(CompilerBase):
    """Compiler that compiles a function for calls from Python, together with its parts."""

    def define_pipelines(self) -> list[Any]:
        return passes(self.state, _LowerWhole, UNUSED)


class ScalarCompiler(CompilerBase):
    """Compiler that compiles a function for calls from Python, without vector instructions."""

    def define_pipelines(self) -> list[Any]:
        return passes(self.state, _LowerScalar, UNUSED)


def _wide(kind: Any) -> Any:
    """Return int64 for a signed integer type; return any other type unchanged."""
    kind = unliteral(kind)
    return types.int64 if kind in types.signed_domain else kind


class Function(CPUDispatcher):
    """A compiled function: compiled callers use it as a part, and Python calls it as a whole
    program.

    ``whole`` returns the dispatcher that compiles the function for Python or loads it from the
    cache; most functions never need the dispatcher. ``lowered`` is called after each part is
    lowered.
    """

    def __init__(
        self,
        function: Any,
        options: dict[str, Any],
        whole: Callable[[], Any],
        compiler: type = PartCompiler,
        lowered: Callable[[], None] = lambda: None,
    ) -> None:
        wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        options = {"nopython": True} | options | wrappers
        super().__init__(function, targetoptions=options, pipeline_class=compiler)
        self._make_whole = whole
        self._lowered = lowered
        self.pipeline = compiler.__name__
        self._known: set[Any] = set()

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return the call signature of one helper function; integer arguments of any width are
        widened to int64.
        """
        args = tuple(_wide(kind) for kind in args)
        return super().get_call_template(args, {key: _wide(kind) for key, kind in kws.items()})

    def compile(self, sig: Any) -> Any:
        """Compile the function for the argument types ``sig`` and return its entry point.

        The caller holds the compiler lock.
        """
        args, returned = sigutils.normalize_signature(sig)
        known = self.overloads.get(tuple(args))
        if known is not None:
            return known.entry_point
        with self._compiling_counter:
            result = self._compiler.compile(args, returned)
            self.add_overload(result)
        self._lowered()
        return result.entry_point

    def add_overload(self, result: Any) -> None:
        self.overloads[tuple(result.signature.args)] = result

    def entry(self, *args: Any) -> Any:
        """Return the program compiled for the argument types of ``args``; see jit.entry."""
        return self.whole.compile(tuple(typeof(value) for value in args))

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        entry = self.whole._compile_for_args(*args, **kws)
        for signature, result in self.whole.overloads.items():
            if signature not in self._known:
                self._known.add(signature)
                self._insert([kind._code for kind in signature], result.entry_point, False)
        return entry

    @cached_property
    def whole(self) -> Any:
        return self._make_whole()

    @property
    def stats(self) -> Any:
        return self.whole.stats
