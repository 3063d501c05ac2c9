"""Owns: the `njit` of this project and its cache folder.
Does not: parallelise (no prange) or relax arithmetic (no fastmath).
Source: Numba documentation, "Notes on caching": an edited helper in another file goes unnoticed.

Numba checks a cached function against its own file only. Here the folder's name holds a hash of
every source file of ondie.kernels and ondie.emu and of Numba's version, so an edit anywhere means
a new folder: $XDG_CACHE_HOME/ondie/numba-<key>, else ~/.cache/ondie/numba-<key>.
"""

import hashlib
import importlib.util
import os
import shutil
import threading
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

from .errors import KernelError

KEEP = 6  # cache folders, newest first
_lock = threading.Lock()


def _source_folders() -> list[Path]:
    """The folders of ondie.kernels and, where it can be found, ondie.emu, found without import."""
    folders = [Path(__file__).resolve().parent]
    try:
        spec = importlib.util.find_spec("ondie.emu")
    except ModuleNotFoundError:
        spec = None
    if spec is not None:
        folders += [Path(place).resolve() for place in spec.submodule_search_locations or ()]
    return folders


@cache
def key() -> str:
    """16 hex digits over the sources as they were when first asked for, and Numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for folder in _source_folders():
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"\0{path.relative_to(folder)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def folder() -> Path | None:
    """The cache folder, made and with old siblings removed; None when it cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    root = Path(numba.config.CACHE_DIR or base).absolute() / "ondie"
    here = root / f"numba-{key()}"
    try:
        here.mkdir(parents=True, exist_ok=True)
        os.utime(here)
        others = sorted(root.glob("numba-*"), key=lambda p: p.stat().st_mtime, reverse=True)
    except OSError as error:
        warnings.warn(f"compiled functions are not cached: {error}", RuntimeWarning, stacklevel=2)
        return None
    for old in others[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)
    return here if os.access(here, os.W_OK) else None


def njit(*signature_or_function: Any, **options: Any) -> Any:
    """numba.njit with this project's rules; with or without parentheses, signature or options.

    Always error_model="numpy" and nogil=True, never fastmath or parallel; cached in `folder()`
    unless cache=False or the function has no source file. Under NUMBA_DISABLE_JIT=1 the plain
    function comes back.
    """
    for banned in ("fastmath", "parallel"):
        if options.get(banned):
            raise KernelError(f"njit: {banned}={options[banned]!r} changes results; leave it out")
    options = {"error_model": "numpy", "nogil": True, "boundscheck": False, "cache": True} | options

    def decorate(function: Callable[..., Any]) -> Any:
        if numba.config.DISABLE_JIT:
            return function
        chosen = dict(options)
        if not os.path.isfile(function.__code__.co_filename) or folder() is None:
            chosen["cache"] = False
        with _lock:
            before = numba.config.CACHE_DIR
            numba.config.CACHE_DIR = str(folder() or before)
            try:
                return numba.njit(*signature, **chosen)(function)
            finally:
                numba.config.CACHE_DIR = before

    if len(signature_or_function) == 1 and hasattr(signature_or_function[0], "__code__"):
        signature: tuple[Any, ...] = ()
        return decorate(signature_or_function[0])
    signature = signature_or_function
    return decorate


def inline(function: Callable[..., Any]) -> Any:
    """:func:`njit` for a small function of a hot loop: the compiler copies it to where it is
    called."""
    return njit(forceinline=True)(function)
