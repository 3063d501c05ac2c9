"""cffi recipe of the C extension.

This module owns the declarations, which it reads from ondie.h, and the glue source generated from
them. The glue also reports the compiler and its flags. The module does not compile anything
(setuptools does) and does not decide when the glue is written (backend.py).
Source: cffi documentation, API mode, out of line.
"""

import tomllib
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
MODULE = "ondie.kernels._native"


def declarations(header: Path = HERE / "ondie.h") -> str:
    """Return the header without its preprocessor lines; cffi parses the rest unchanged."""
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
    """Return the project's compiler flags, without those that setuptools adds."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    return project["tool"]["setuptools"]["ext-modules"][0]["extra-compile-args"]


def write_glue(target: Path) -> None:
    """Write the C source of the extension module to `target`; keep an unchanged file untouched."""
    ffi = FFI()
    ffi.cdef(declarations() + "\nconst char *ondie_compiler(void);\n")
    ffi.set_source(MODULE, '#include "ondie.h"\n' + COMPILER.format(flags=" ".join(flags())))
    target.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(str(target))
