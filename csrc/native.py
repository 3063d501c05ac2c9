"""Owns: the cffi recipe: the declarations, read from ondie.h, and the glue source made of them.
Does not: compile anything (setuptools does) or decide when the glue is written (backend.py).
Source: cffi documentation, API mode, out of line.
"""

from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
MODULE = "ondie.kernels._native"


def declarations(header: Path = HERE / "ondie.h") -> str:
    """The header without its preprocessor lines; cffi understands the rest as it stands."""
    lines = header.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


def write_glue(target: Path) -> None:
    """Write the C source of the extension module to `target`; an unchanged file is not touched."""
    ffi = FFI()
    ffi.cdef(declarations())
    ffi.set_source(MODULE, '#include "ondie.h"')
    target.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(str(target))
