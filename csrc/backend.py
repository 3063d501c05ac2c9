"""Build backend: the PEP 517 and PEP 660 hooks.

This module owns the hooks, which are those of setuptools after writing the cffi glue and naming the
folder of NumPy's headers. It does not own the list of sources to build (pyproject.toml).
Source: PEP 517, "in-tree build backends"; GCC and Clang, CPATH.
"""

import os
from pathlib import Path

import native
import numpy
from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

GLUE = Path("build", "ondie_native.c")  # as in pyproject.toml; hooks run in the project root


def _prepare():
    """Write the glue, and let the compiler find NumPy's headers (pyproject.toml cannot)."""
    native.write_glue(GLUE)
    folders = [numpy.get_include(), os.environ.get("CPATH")]
    os.environ["CPATH"] = os.pathsep.join(filter(None, folders))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Write the glue and build a wheel (PEP 517)."""
    _prepare()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Write the glue and build an editable wheel (PEP 660)."""
    _prepare()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
