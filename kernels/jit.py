"""Owns: the `njit` of this project and its cache folder.
Does not: parallelise (no prange) or relax arithmetic (no fastmath).
Source: Numba documentation, "Notes on caching": an edited helper in another file goes unnoticed.

Numba checks a cached function against its own file only. Here the folder's name holds a hash of the
function's file, of every source file of ondie.kernels and ondie.emu that it imports, directly or
through others, and of Numba's version, so an edit of any of them means a new folder:
$XDG_CACHE_HOME/ondie/numba-<key>, else ~/.cache/ondie/numba-<key>.
"""

import ast
import hashlib
import importlib.util
import os
import re
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numba

from .errors import KernelError
from .parts import (
    ApartCompiler,
    ColdCompiler,
    Function,
    PartCompiler,
    ScalarCompiler,
    WholeCompiler,
)

KEEP = 160  # cache folders, newest first; a whole engine takes about thirty
_lock = threading.Lock()


@cache
def _rooms() -> dict[str, Path]:
    """The folders of ondie.kernels and, where it can be found, ondie.emu, found without import."""
    rooms = {"ondie.kernels": Path(__file__).resolve().parent}
    try:
        spec = importlib.util.find_spec("ondie.emu")
    except ModuleNotFoundError:
        spec = None
    if spec is not None and spec.submodule_search_locations:
        rooms["ondie.emu"] = Path(spec.submodule_search_locations[0]).resolve()
    return rooms


def _file(module: str) -> Path | None:
    """Source file of one of our modules, None when there is no such module."""
    for room, folder in _rooms().items():
        if module == room or module.startswith(room + "."):
            path = folder.joinpath(*module.removeprefix(room).split(".")[1:])
            for candidate in (path.with_suffix(".py"), path / "__init__.py"):
                if candidate.is_file():
                    return candidate
    return None


_IMPORT = re.compile(r"^[ \t]*((?:from|import)[ \t][^\n(]*(?:\([^)]*\))?)", re.MULTILINE)


def _imports(source: str) -> Iterator[ast.stmt]:
    """The import statements of a source. To parse all of it takes forty times as long."""
    for found in _IMPORT.finditer(source):
        try:
            yield from ast.parse(found[1]).body
        except SyntaxError:  # a line of prose
            continue


@cache
def _imported(path: Path) -> tuple[Path, ...]:
    """Files of our modules that a source file imports, in any of its lines."""
    found: set[Path | None] = set()
    ours = {str(folder): room for room, folder in _rooms().items()}
    for node in _imports(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            found |= {_file(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: as the place of the file says
                place = next((str(p) for p in path.parents if str(p) in ours), None)
                if place is None:
                    continue
                inside = path.relative_to(place).parts[: -node.level or None]
                base = ".".join(p for p in (ours[place], *inside, base) if p)
            found |= {_file(base), *(_file(f"{base}.{alias.name}") for alias in node.names)}
    return tuple(sorted(path for path in found if path is not None))


@cache
def key(path: Path) -> str:
    """16 hex digits over a source file and all of ours that it leads to, as they were when first
    asked for, and Numba's version."""
    seen: set[Path] = set()
    ahead = [path]
    while ahead:
        at = ahead.pop()
        if at not in seen:
            seen.add(at)
            ahead += _imported(at)
    digest = hashlib.sha256(numba.__version__.encode())
    for at in sorted(seen):
        digest.update(b"\0" + at.name.encode() + b"\0" + at.read_bytes())
    return digest.hexdigest()[:16]


@cache
def root() -> Path | None:
    """Where the cache folders are, with old ones removed; None when it cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    place = Path(numba.config.CACHE_DIR or base).absolute() / "ondie"
    try:
        place.mkdir(parents=True, exist_ok=True)
        folders = sorted(place.glob("numba-*"), key=lambda p: p.stat().st_mtime, reverse=True)
    except OSError as error:
        warnings.warn(f"compiled functions are not cached: {error}", RuntimeWarning, stacklevel=2)
        return None
    for old in folders[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)
    return place if os.access(place, os.W_OK) else None


@cache
def folder(path: Path) -> Path | None:
    """The cache folder of the functions of one source file; None when it cannot be written."""
    place = root()
    if place is None:
        return None
    here = place / f"numba-{key(path)}"
    try:
        here.mkdir(exist_ok=True)
        os.utime(here)
    except OSError as error:
        warnings.warn(f"compiled functions are not cached: {error}", RuntimeWarning, stacklevel=2)
        return None
    return here


def _place(function: Any) -> Path | None:
    """The cache folder of a function, None without a source file or a writable folder."""
    path = Path(function.__code__.co_filename)
    return folder(path.resolve()) if path.is_file() else None


def njit(*signature_or_function: Any, **options: Any) -> Any:
    """numba.njit with this project's rules; with or without parentheses, signature or options.

    Always error_model="numpy" and nogil=True, never fastmath or parallel; cached in its `folder`
    unless cache=False or the function has no source file. Under NUMBA_DISABLE_JIT=1 the plain
    function comes back.
    """
    for banned in ("fastmath", "parallel"):
        if options.get(banned):
            raise KernelError(f"njit: {banned}={options[banned]!r} changes results; leave it out")
    compiler = options.pop("part", PartCompiler)
    options = {"error_model": "numpy", "nogil": True, "boundscheck": False, "cache": True} | options

    def decorate(function: Callable[..., Any]) -> Any:
        if numba.config.DISABLE_JIT:
            return function
        chosen = dict(options)
        place = _place(function) if chosen["cache"] else None
        chosen["cache"] = place is not None

        def whole() -> Any:
            with _lock:
                before = numba.config.CACHE_DIR
                numba.config.CACHE_DIR = str(place or before)
                try:
                    if signature:
                        return numba.njit(*signature, **chosen)(function)
                    engine = function.__module__.startswith("ondie.emu")
                    pipeline = ScalarCompiler if engine else WholeCompiler
                    return numba.njit(pipeline_class=pipeline, **chosen)(function)
                finally:
                    numba.config.CACHE_DIR = before

        if signature:
            return whole()
        kept = {key: value for key, value in chosen.items() if key != "cache"}
        return Function(function, kept, whole, compiler)

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
    """numba.cfunc of a compiled function, cached like :func:`njit`; has ``address``."""
    plain = getattr(function, "py_func", function)
    place = _place(plain)
    with _lock:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(place or before)
        try:
            compiled = numba.cfunc(
                signature,
                cache=place is not None,
                error_model="numpy",
                pipeline_class=WholeCompiler,
            )
            return compiled(plain)
        finally:
            numba.config.CACHE_DIR = before
