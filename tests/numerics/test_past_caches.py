"""Are copies past the caches (csrc/past_caches.h) copies, at any alignment of both sides and of any
size? The header is compiled here, with the flags of the extension."""

import shutil
import subprocess
import tomllib

import numpy as np
import pytest
from cffi import FFI

COMPILER = shutil.which("gcc")
LINE, SIZES, STRIDE = 64, 200, 320
"""Bytes of a cache line, largest copy, and distance of the places of two copies: whole lines."""
ERASED = 0xAA
SOURCE = """
#include "past_caches.h"
void copy_sizes(uint8_t *to, const uint8_t *from, size_t stride, size_t sizes) {
    for (size_t n = 1; n <= sizes; n++) copy_past_caches(to + (n - 1) * stride, from, n);
    drain();
}
"""


@pytest.fixture(scope="module")
def copy_sizes(root, tmp_path_factory):
    """(to, from): copies 1, 2, ... SIZES bytes of ``from`` to places STRIDE bytes apart."""
    if COMPILER is None:
        pytest.skip("gcc is not installed")
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    flags = project["tool"]["setuptools"]["ext-modules"][0]["extra-compile-args"]
    folder = tmp_path_factory.mktemp("copies")
    (folder / "copies.c").write_text(SOURCE, encoding="utf-8")
    command = [COMPILER, *flags, "-I", root / "csrc", "-shared", "-fPIC", folder / "copies.c",
               "-o", folder / "copies.so"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ffi = FFI()
    ffi.cdef("void copy_sizes(uint8_t *, const uint8_t *, size_t, size_t);")
    library = ffi.dlopen(str(folder / "copies.so"))

    def copy(to, source):
        library.copy_sizes(
            ffi.cast("uint8_t *", to.ctypes.data), ffi.cast("uint8_t *", source.ctypes.data),
            STRIDE, SIZES,
        )  # fmt: skip

    return copy


def lines(count: int) -> np.ndarray:
    """``count`` bytes from the begin of a cache line on."""
    memory = np.zeros(count + LINE, np.uint8)
    first = -memory.ctypes.data % LINE
    return memory[first : first + count]


def test_all_alignments_and_rests_of_a_line(copy_sizes):
    """Every byte is there, and none beside them changes."""
    source = lines(LINE + SIZES)
    source[:] = np.random.default_rng(5).integers(0, 256, len(source))
    places = lines(STRIDE * SIZES)
    rows = places.reshape(SIZES, STRIDE)
    copied = np.arange(SIZES) <= np.arange(SIZES)[:, None]  # of the copy of row + 1 bytes
    expected = np.full((SIZES, STRIDE), ERASED, np.uint8)
    for to in range(LINE):
        for at in range(LINE):
            places[:] = ERASED
            expected[:] = ERASED
            given = source[at : at + SIZES]
            expected[:, to : to + SIZES] = np.where(copied, given, np.uint8(ERASED))
            copy_sizes(places[to:], given)
            assert np.array_equal(rows, expected), (to, at)
