"""Owns: compiled code on disk: what identifies it, how it is written and read.
Does not: compile (parts.py), or decide what is compiled (jit.py).
Source: the interface of numba.core.caching, whose index names one source file and no constants.

One file per compiled function and signature: $XDG_CACHE_HOME/ondie/compiled/NAME-KEY.code, else
below ~/.cache. KEY is a hash of what is compiled: the bytecode of the function and of every
function that it calls, directly or through others, the values of the constants that they use, the
signature, the sources that tell Numba how to compile, the versions, and the processor. An edited
comment, docstring or uncompiled function keeps the key.

A file is a header, a SHA-256 checksum and Numba's pickled result. It is written under another name
and renamed, so a killed process leaves no part of a file under the final name. A file that cannot
be loaded is deleted and compiled again. Without a writable folder nothing is stored, and a message
says so once.
"""

import contextlib
import enum
import hashlib
import os
import pickle
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

KEEP_BYTES = 256 << 20
"""The folder holds at most this much: the files that were used last stay."""
STALE_SECONDS = 3600.0
"""Age at which the temporary file of a killed process is deleted."""
_HEADER = b"ondie compiled code 1\n"
_COMPILER = ("code_cache", "direct", "jit", "parts", "pipeline")
_CONSTANTS = (int, float, complex, str, bytes, bool, type(None), np.generic, np.dtype, enum.Enum)


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


say: Callable[[str], None] = _warn
"""Shows a message about the cache folder. A program may replace it."""


@cache
def _once(message: str) -> None:
    say(message)


def not_stored(error: OSError) -> None:
    """Say once per process that compiled code is not stored, and why."""
    _once(f"compiled code is not stored: {error}")


@cache
def folder() -> Path | None:
    """The folder of compiled code; None, with a message, when it cannot be made."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    place = Path(base).absolute() / "ondie" / "compiled"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        not_stored(error)
        return None
    return place


# --- what is compiled


def _code(code: types.CodeType, documented: bool) -> Iterator[bytes]:
    """What matters of a function's bytecode: no line numbers, no docstring."""
    yield code.co_code
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_name)
    yield repr(names).encode()
    yield code.co_exceptiontable
    for constant in (None, *code.co_consts[1:]) if documented else code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant, False)
        elif isinstance(constant, frozenset):  # its order depends on the process
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield repr(constant).encode()


def _used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """(name, value) of every global and closure variable that a function can use. An attribute of
    one of our modules counts where its name occurs in the function."""
    names: list[str] = []
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names += code.co_names
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    known = function.__globals__
    for name in dict.fromkeys(names):
        if name not in known:
            continue
        value = known[name]
        if isinstance(value, types.ModuleType):
            if value.__name__.startswith("ondie."):
                yield from ((n, getattr(value, n)) for n in names if hasattr(value, n))
        else:
            yield name, value
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            yield name, cell.cell_contents


def _function(value: Any) -> types.FunctionType | None:
    """The Python function of a compiled function, an intrinsic or one of our plain functions."""
    found = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value
    if not isinstance(found, types.FunctionType):
        return None
    foreign = found is value and not found.__module__.startswith("ondie.")
    return None if foreign else found


class Closure:
    """A function with everything that is compiled with it.

    count: number of functions; digest: hash of their bytecode and of the constants they use.
    """

    def __init__(self, function: types.FunctionType) -> None:
        self._hash = hashlib.sha256()
        self.count = 0
        seen: set[int] = set()
        ahead = [function]
        while ahead:
            each = ahead.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            self.count += 1
            for part in _code(each.__code__, each.__doc__ is not None):
                self._add(part)
            self._add(repr(each.__defaults__).encode())
            for name, value in _used(each):
                inner = _function(value)
                self._add(name.encode())
                if inner is not None:
                    self._add(repr(getattr(value, "targetoptions", None)).encode())
                    self._add(repr(getattr(value, "pipeline", None)).encode())
                    ahead.append(inner)
                else:
                    self._constant(value)
        self.digest = self._hash.digest()

    def _add(self, part: bytes) -> None:
        self._hash.update(len(part).to_bytes(8, "little") + part)

    def _constant(self, value: Any) -> None:
        if isinstance(value, np.ndarray):
            self._add(repr((value.dtype, value.shape)).encode() + value.tobytes())
        elif isinstance(value, tuple | list | set | frozenset):
            for each in value if isinstance(value, tuple | list) else sorted(value, key=repr):
                self._constant(each)
        elif isinstance(value, _CONSTANTS):
            self._add(repr(value).encode())
        elif isinstance(value, enum.EnumType):
            members: list[Any] = list(value)
            self._add(repr([(each.name, each.value) for each in members]).encode())
        elif isinstance(value, type):
            fields = getattr(value, "_fields", None)
            self._add(f"{value.__module__}.{value.__qualname__} {fields}".encode())
        else:  # Numba's types, and modules and objects that compiled code cannot use
            self._add(type(value).__qualname__.encode())


@cache
def _compiler() -> bytes:
    """Hash of the versions and of the sources that tell Numba how to compile."""
    digest = hashlib.sha256()
    tag = sys.implementation.cache_tag
    for version in (numba.__version__, llvmlite.__version__, np.__version__, tag):
        digest.update(f"{version}\0".encode())
    digest.update(f"{numba.config.OPT}".encode())
    for name in _COMPILER:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.digest()


def _source(kind: Any) -> bytes:
    """The source of a type of ours, which tells how values of the type are lowered."""
    module = sys.modules.get(type(kind).__module__)
    name = getattr(module, "__name__", "")
    path = getattr(module, "__file__", None)
    return Path(path).read_bytes() if path and name.startswith("ondie.") else b""


# --- files


def _write(path: Path, content: bytes) -> None:
    """Write a whole file or none. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
        try:
            file.write(content)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise


def _sweep(place: Path) -> None:
    """Delete the files that were not used for longest, and what killed processes left."""
    used = 0
    now = time.time()
    try:
        files = [(path.stat(), path) for path in place.iterdir()]
    except OSError:  # another process deletes too
        return
    for status, path in sorted(files, key=lambda pair: -pair[0].st_mtime):
        used += status.st_size
        stale = path.name.startswith(".") and now - status.st_mtime > STALE_SECONDS
        if used > KEEP_BYTES or stale:
            with contextlib.suppress(OSError):
                path.unlink()


class CodeCache(_Cache):
    """Numba's interface to the stored code of one function.

    missed(count) is called before a function and its ``count`` helpers are compiled, and stored()
    after.
    """

    def __init__(
        self,
        function: types.FunctionType,
        options: str,
        missed: Callable[[int], None],
        stored: Callable[[], None],
    ) -> None:
        self._function = function
        self._options = options
        self._missed = missed
        self._stored = stored
        self._closure: Closure | None = None

    @property
    def cache_path(self) -> str | None:
        return None if folder() is None else str(folder())

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...

    def path(self, signature: Any, context: Any) -> Path | None:
        """Where the code for a signature is or would be."""
        place = folder()
        if place is None:
            return None
        if self._closure is None:
            self._closure = Closure(self._function)
        digest = hashlib.sha256(_compiler() + self._closure.digest + self._options.encode())
        digest.update(repr((str(signature), context.codegen().magic_tuple())).encode())
        for kind in signature if isinstance(signature, tuple) else getattr(signature, "args", ()):
            digest.update(_source(kind))
        return place / f"{self._function.__name__}-{digest.hexdigest()[:24]}.code"

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The compiled result for a signature, or None."""
        path = self.path(signature, context)
        found = None if path is None else self._load(path, context)
        if found is None:
            self._missed((self._closure or Closure(self._function)).count)
        return found

    def _load(self, path: Path, context: Any) -> Any:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            not_stored(error)
            return None
        body = content[len(_HEADER) + 32 :]
        checksum = content[len(_HEADER) : len(_HEADER) + 32]
        if content.startswith(_HEADER) and hashlib.sha256(body).digest() == checksum:
            try:
                context.refresh()
                found = CompileResult._rebuild(context, *pickle.loads(body))
            except Exception:  # noqa: BLE001 - whatever another version's code meets here
                found = None
            if found is not None:
                with contextlib.suppress(OSError):
                    os.utime(path)
                return found
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def save_overload(self, signature: Any, data: Any) -> None:
        """Store a compiled result."""
        self._stored()
        path = self.path(signature, data.target_context)
        if path is None or data.library.has_dynamic_globals:
            return
        body = dumps(data._reduce())
        try:
            _write(path, _HEADER + hashlib.sha256(body).digest() + body)
        except OSError as error:
            not_stored(error)
        else:
            _sweep(path.parent)
