"""Build backend: the PEP 517 and PEP 660 hooks.

This module owns the hooks, which are those of setuptools after writing the cffi glue. It does not
own the list of sources to build (pyproject.toml).
Source: PEP 517, "in-tree build backends".
"""

from pathlib import Path

import native
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


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Write the glue and build a wheel (PEP 517)."""
    native.write_glue(GLUE)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Write the glue and build an editable wheel (PEP 660)."""
    native.write_glue(GLUE)
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
