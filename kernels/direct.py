"""Calling convention of parts: compiled functions that return their value without a status.

This module owns the calling convention between compiled functions. It does not own the selection of
the functions that become parts (parts.py) or calls from Python.
Source: Numba's calling convention, which returns a status and writes the value to memory.

A part raises no exceptions, so its callers do not check a status or load the value from memory. If
Numba's own code would raise (for example, for a range with step 0), a part terminates the process.
"""

import copy
from collections.abc import Callable
from typing import Any, ClassVar

from llvmlite import ir
from numba.core import cgutils, errors, types
from numba.core.callconv import CPUCallConv
from numba.core.cpu import CPUContext
from numba.core.imputils import impl_ret_new_ref
from numba.core.lowering import Lower
from numba.core.types.misc import Optional


def _is_part(function: Any) -> bool:
    """Return True if an LLVM function is a part, which returns its value directly."""
    return getattr(function, "returns_directly", False)


def declare(context: Any, module: Any, described: Any) -> Any:
    """Return the LLVM function of a part (compiled function that returns its value without a
    status). Declare it in ``module`` if it is not declared yet.

    ``context``: Numba's target context. ``described``: Numba's description of the part (name and
    types).
    """
    packer = context.get_arg_packer(described.argtypes)
    returned = ir.VoidType()
    if described.restype != types.none:
        if isinstance(described.restype, Optional):
            raise errors.TypingError(
                f"{described.qualname} returns {described.restype}; a part must return a number on "
                "every path"
            )
        returned = context.data_model_manager[described.restype].get_return_type()
    kind = ir.FunctionType(returned, packer.argument_types)
    function = cgutils.get_or_insert_function(module, kind, described.mangled_name)
    function.returns_directly = True
    packer.assign_names(function.args, [f"arg.{name}" for name in described.args])
    if described.inline:
        function.attributes.add("alwaysinline")
    return function


def caller(described: Any, libraries: list[Any]) -> Callable[..., Any]:
    """Return the function with which Numba generates the code for a call of a part (compiled
    function that returns its value without a status).

    ``described``: Numba's description of the part (name and types). ``libraries``: libraries that
    the calling code must link.
    """

    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = declare(context, builder.module, described)
        packer = context.get_arg_packer(described.argtypes)
        value = builder.call(function, list(packer.as_arguments(builder, args)))
        if described.restype == types.none:
            return context.get_dummy_value()
        value = context.get_returned_value(builder, described.restype, value)
        return impl_ret_new_ref(context, builder, described.restype, value)

    write.signature = described.argtypes  # type: ignore[attr-defined]
    write.libs = tuple(libraries)  # type: ignore[attr-defined]
    return write


class _Convention(CPUCallConv):
    """Numba's calling convention, except that parts return their value directly."""

    def get_arguments(self, function: Any) -> Any:
        return function.args if _is_part(function) else super().get_arguments(function)

    def return_value(self, builder: Any, value: Any) -> None:
        if not _is_part(builder.function):
            super().return_value(builder, value)
        elif isinstance(builder.function.function_type.return_type, ir.VoidType):
            builder.ret_void()
        else:
            builder.ret(value)

    def return_status_propagate(self, builder: Any, status: Any) -> None:
        if _is_part(builder.function):
            self._stop(builder)
        else:
            super().return_status_propagate(builder, status)

    def return_user_exc(self, builder: Any, *rest: Any, **named: Any) -> None:
        if _is_part(builder.function):
            self._stop(builder)
        else:
            super().return_user_exc(builder, *rest, **named)

    def _stop(self, builder: Any) -> None:
        """Emit code that terminates the process."""
        trap = ir.FunctionType(ir.VoidType(), [])
        builder.call(cgutils.get_or_insert_function(builder.module, trap, "llvm.trap"), [])
        builder.unreachable()


class _Context(CPUContext):
    """Numba's target context with the calling convention of parts."""

    _sizes: ClassVar[dict[Any, int]] = {}

    @property
    def call_conv(self) -> Any:
        return _Convention(self)

    def get_abi_sizeof(self, kind: Any) -> int:
        """Return the size of an LLVM type in bytes.

        The sizes are memoized, because LLVM parses a module to compute one.
        """
        if kind not in self._sizes:
            self._sizes[kind] = super().get_abi_sizeof(kind)
        return self._sizes[kind]


class PartLower(Lower):
    """Compiler stage that lowers a part (a function that returns its value directly) to LLVM's
    intermediate representation.

    It emits no reference counting for values that hold no references.
    """

    _counted_types: ClassVar[dict[Any, bool]] = {}

    def __init__(self, context: Any, *rest: Any, **named: Any) -> None:
        own = copy.copy(context)
        own.__class__ = _Context
        super().__init__(own, *rest, **named)

    def setup_function(self, described: Any) -> None:
        self.function = declare(self.context, self.module, described)
        self.entry_block = self.function.append_basic_block("entry")
        self.builder = ir.IRBuilder(self.entry_block)
        self.call_helper = self.call_conv.init_call_helper(self.builder)

    def _counted(self, kind: Any) -> bool:
        """Return True if values of a Numba type hold counted references."""
        found = self._counted_types.get(kind)
        if found is None:
            found = self.context.data_model_manager[kind].contains_nrt_meminfo()
            self._counted_types[kind] = found
        return found

    def incref(self, kind: Any, value: Any) -> None:
        if self._counted(kind):
            super().incref(kind, value)

    def decref(self, kind: Any, value: Any) -> None:
        if self._counted(kind):
            super().decref(kind, value)

    def delvar(self, name: str) -> None:
        """Release a variable at the end of its lifetime if its type holds counted references."""
        if self._counted(self.typeof(name)):
            super().delvar(name)
