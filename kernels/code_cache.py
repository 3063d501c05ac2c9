"""Cache of compiled code on disk.

This module owns the cache key, the file format, and reading and writing of cache files. It does not
compile functions (parts.py) and does not choose the functions to compile (jit.py).
Source: the interface of numba.core.caching. Numba's own index covers one source file and no
constants, so it is not used.

Each compiled function and signature has one file, NAME-KEY.code, in $XDG_CACHE_HOME/ondie/compiled
or ~/.cache/ondie/compiled. KEY is a hash of the compilation inputs: the bytecode of the function
and of all its direct and indirect callees, the values of the constants used by these functions, the
signature, the sources that configure Numba's compilation, the versions, and the processor. Editing
a comment, a docstring or an uncompiled function keeps the key.

A file holds a header, a SHA-256 checksum and Numba's pickled result. It is written under a
temporary name and renamed, so a killed process leaves no partial file under the final name. A file
that cannot be loaded is deleted and the function is compiled again. If the folder is not writable,
nothing is stored and one message reports this.
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
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

KEEP_BYTES = 256 << 20
"""Size limit of the cache folder in bytes; the least recently used files are deleted first."""
STALE_SECONDS = 3600.0
"""Age in seconds at which a temporary file is deleted, because its process was probably killed."""
_HEADER = b"ondie compiled code 1\n"
_COMPILER = ("code_cache", "direct", "jit", "parts", "pipeline")
_CONSTANTS = (int, float, complex, str, bytes, bool, type(None), np.generic, np.dtype, enum.Enum)


def _warn(message: str) -> None:
    """Emit a message as a RuntimeWarning."""
    warnings.warn(message, RuntimeWarning, stacklevel=2)


say: Callable[[str], None] = _warn
"""Callback that receives each message about the cache folder; a program may replace the
callback."""


@cache
def not_stored(place: Path, reason: str | None) -> None:
    """Report that compiled code is not stored in folder ``place``, once per process, folder and
    reason. ``reason``: text of the operating system's error, or None if the error has no text."""
    say(f"compiled code is not stored in {place}: {reason}")


@cache
def folder() -> Path | None:
    """Return the folder of compiled code; None, with a message, if it cannot be created."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    place = Path(base).absolute() / "ondie" / "compiled"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        not_stored(place, error.strerror)
        return None
    return place


# --- cache key


def _code(code: types.CodeType, documented: bool) -> Iterator[bytes]:
    """Yield the parts of a function's bytecode that affect compilation.

    Omits line numbers, and the docstring if the function has one (``documented``).
    """
    yield code.co_code
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_name)
    yield repr(names).encode()
    yield code.co_exceptiontable
    for constant in (None, *code.co_consts[1:]) if documented else code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant, False)
        elif isinstance(constant, frozenset):  # the iteration order differs between processes
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield repr(constant).encode()


def _used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of every global and closure variable that a function can use.

    An attribute of an ondie module is included if its name occurs in the function.
    """
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
                yield from ((node, getattr(value, node)) for node in names if hasattr(value, node))
        else:
            yield name, value
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # the variable has no value yet
            yield name, cell.cell_contents


def _function(value: Any) -> types.FunctionType | None:
    """Return the Python function of a compiled function, an intrinsic or a plain ondie function.

    Return None for any other value.
    """
    found = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value
    if not isinstance(found, types.FunctionType):
        return None
    foreign = found is value and not found.__module__.startswith("ondie.")
    return None if foreign else found


class Closure:
    """A function and all functions that are compiled together with it.

    count: number of these functions. digest: hash of their bytecode and of the constants that they
    use.
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
        """Add the bytes ``part``, preceded by their number, to the hash."""
        self._hash.update(len(part).to_bytes(8, "little") + part)

    def _constant(self, value: Any) -> None:
        """Add the value of a constant to the hash."""
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
        else:  # Numba types, and modules and objects that compiled code cannot use
            self._add(type(value).__qualname__.encode())


@cache
def _compiler() -> bytes:
    """Return a hash of the versions of Numba, llvmlite, NumPy and Python, and of the ondie sources
    that configure Numba's compilation."""
    digest = hashlib.sha256()
    tag = sys.implementation.cache_tag
    for version in (numba.__version__, llvmlite.__version__, np.__version__, tag):
        digest.update(f"{version}\0".encode())
    digest.update(f"{numba.config.OPT}".encode())
    for name in _COMPILER:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.digest()


def _source(kind: Any) -> bytes:
    """Return the source of the ondie module that defines a type, or b"" for a type of another
    module. The source determines how values of the type are compiled."""
    module = sys.modules.get(type(kind).__module__)
    name = getattr(module, "__name__", "")
    path = getattr(module, "__file__", None)
    return Path(path).read_bytes() if path and name.startswith("ondie.") else b""


# --- files


def _write(path: Path, content: bytes) -> None:
    """Write a file completely or not at all. Raises OSError if it cannot be written."""
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
    """Delete the least recently used files above KEEP_BYTES, and stale temporary files."""
    used = 0
    now = time.time()
    try:
        files = [(path.stat(), path) for path in place.iterdir()]
    except OSError:  # another process is deleting files
        return
    for status, path in sorted(files, key=lambda pair: -pair[0].st_mtime):
        used += status.st_size
        stale = path.name.startswith(".") and now - status.st_mtime > STALE_SECONDS
        if used > KEEP_BYTES or stale:
            with contextlib.suppress(OSError):
                path.unlink()


class CodeCache(_Cache):
    """Cache of the compiled code of one function, with the interface of Numba's cache.

    missed(count) is called before the compilation of a function and its helpers, ``count``
    functions in total. stored() is called after the compilation.
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
        """Return the path of the function's cache file for a signature (argument types), or None if
        there is no cache folder."""
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
        """Return the stored result of the function's compilation for a signature (argument types),
        or None if no result is stored."""
        path = self.path(signature, context)
        found = None if path is None else self._load(path, context)
        if found is None:
            self._missed((self._closure or Closure(self._function)).count)
        return found

    def _load(self, path: Path, context: Any) -> Any:
        """Return the compilation result in a file, or None if the file is missing or damaged."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            not_stored(path.parent, error.strerror)
            return None
        body = content[len(_HEADER) + 32 :]
        checksum = content[len(_HEADER) : len(_HEADER) + 32]
        if content.startswith(_HEADER) and hashlib.sha256(body).digest() == checksum:
            try:
                rtsys.initialize(context)
                found = CompileResult._rebuild(context, *pickle.loads(body))
            except Exception:  # noqa: BLE001 - stored code of another version can fail in any way
                found = None
            if found is not None:
                with contextlib.suppress(OSError):
                    os.utime(path)
                return found
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def save_overload(self, signature: Any, data: Any) -> None:
        """Store the result of a compilation in the function's cache file for ``signature``."""
        self._stored()
        path = self.path(signature, data.target_context)
        if path is None or data.library.has_dynamic_globals:
            return
        body = dumps(data._reduce())
        try:
            _write(path, _HEADER + hashlib.sha256(body).digest() + body)
        except OSError as error:
            not_stored(path.parent, error.strerror)
        else:
            _sweep(path.parent)
