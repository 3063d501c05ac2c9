"""Owns: the cffi recipe: the declarations, read from ondie.h, and the glue source made of them; the
glue knows the compiler and the flags, too.
Does not: compile anything (setuptools does) or decide when the glue is written (backend.py).
Source: cffi documentation, API mode, out of line.
"""

import tomllib
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
MODULE = "ondie.kernels._native"


def declarations(header: Path = HERE / "ondie.h") -> str:
    """The header without its preprocessor lines; cffi understands the rest as it stands."""
    lines = header.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


COMPILER = """
#ifdef __clang__
#define COMPILER __VERSION__
#else
#define COMPILER "GCC " __VERSION__
#endif
static const char *ondie_compiler(void) {{ return COMPILER ", {flags}"; }}
"""


def flags() -> list[str]:
    """What the project compiles with, beside what setuptools adds of its own."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    return project["tool"]["setuptools"]["ext-modules"][0]["extra-compile-args"]


def write_glue(target: Path) -> None:
    """Write the C source of the extension module to `target`; an unchanged file is not touched."""
    ffi = FFI()
    ffi.cdef(declarations() + "\nconst char *ondie_compiler(void);\n")
    ffi.set_source(MODULE, '#include "ondie.h"\n' + COMPILER.format(flags=" ".join(flags())))
    target.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(str(target))
