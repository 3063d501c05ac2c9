"""The setuptools command that compiles the C extensions, `build_ext` in pyproject.toml.

This module owns the order and number of compilers that run: as many as there are processors, each
with one source file, since three files take four fifths of the time. It does not own the list of
sources and flags (pyproject.toml) or the hooks (backend.py).
Source: GCC manual, "Options for Debugging Your Program": the last of several -g options counts.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SLOWEST = "isa_"
"""What the names of the files begin with that take longest: they include all update kernels."""
DEBUG = "-g1"
"""Lines and function names, which traces and profiles show. Python's own -g adds variables, and
takes half as long again."""


def processors() -> int:
    """Processors that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on macOS
    return (len(allowed(0)) if allowed else os.cpu_count()) or 1


def reason(error: BaseException) -> str:
    """Why a file was not compiled: the exit code of the compiler, which has printed more, or the
    message of `error`."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, CalledProcessError):
            return f"{inner.cmd[0]} ended with exit code {inner.returncode}"
        inner = inner.__cause__ or inner.__context__
    return str(error)


def in_parallel(compile_files: Callable[..., list[str]], jobs: int) -> Callable[..., list[str]]:
    """A compiler's method `compile` that runs up to `jobs` compilers at a time.

    It takes the list of sources and the arguments of `compile_files`, and returns the object files
    in the order of the sources. CompileError names a file that failed, in one line; files that
    no compiler has begun then are not compiled.
    """

    def compile_all(sources: Sequence[str], *args: Any, **kwargs: Any) -> list[str]:
        failed = threading.Event()

        def one(source: str) -> list[str]:
            if failed.is_set():
                return []
            try:
                return compile_files([source], *args, **kwargs)
            except CompileError as error:
                failed.set()
                raise CompileError(f"{source} was not compiled: {reason(error)}") from error

        first = sorted(sources, key=lambda source: not Path(source).name.startswith(SLOWEST))
        with ThreadPoolExecutor(jobs) as pool:
            running = {source: pool.submit(one, source) for source in first}
        return [name for source in sources for name in running[source].result()]

    return compile_all


class BuildUnits(build_ext):
    """Compile each source file in a process of its own, several at a time."""

    def build_extensions(self) -> None:
        self.compiler.compile = in_parallel(self.compiler.compile, processors())
        if "CFLAGS" not in os.environ:  # the user's choice
            for extension in self.extensions:
                extension.extra_compile_args = [DEBUG, *extension.extra_compile_args]
        super().build_extensions()
