"""Is the checksum of stored pages the CRC-32C of its definition, in C and in Numba?"""

import numpy as np
import pytest

from ondie.kernels import crc, native

LENGTHS = (
    0,
    1,
    7,
    8,
    9,
    503,
    504,
    505,
    511,
    1007,
    1008,
    1009,
    1512,
    2020,
    4079,
    4080,
    4081,
    4096,
    8160,
    8161,
    16384,
)


def by_definition(data: bytes, value: int = 0) -> int:
    """Bit by bit, as RFC 3720 defines it."""
    register = ~value & 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_the_examples_of_the_standard():
    """RFC 3720, appendix B.4."""
    assert crc.crc32c(bytes(32)) == 0x8A9136AA
    assert crc.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc.crc32c(bytes(range(32))) == 0x46DD794E
    assert crc.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("isa", [*native.isas(), "numba"])
def test_every_length_is_the_definition(isa, rng, monkeypatch):
    if isa == "numba":
        monkeypatch.setattr(native, "lib", None)
        isa = None
    for length in LENGTHS:
        data = rng.integers(0, 256, length, np.uint8)
        assert crc.crc32c(data, isa=isa) == by_definition(data.tobytes()), length
        assert crc.crc32c(data, 0x1234, isa) == by_definition(data.tobytes(), 0x1234), length


def test_of_parts_and_of_any_type(rng):
    data = rng.integers(0, 2**62, 1000)
    raw = data.tobytes()
    assert crc.crc32c(data) == crc.crc32c(raw) == crc.crc32c(raw[100:], crc.crc32c(raw[:100]))
    assert crc.crc32c(data.reshape(10, 100)) == crc.crc32c(raw)
