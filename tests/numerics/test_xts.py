"""AES and AES-XTS against vectors of their standards, the package cryptography, and XTS written out
with single blocks."""

import numpy as np
import pytest

from ondie.emu.compute.aes import BACKENDS, SUB, Aes
from ondie.emu.compute.xts import Xts
from ondie.kernels import KernelError

COUNT = bytes(range(256)) * 2
E_256 = "2718281828459045235360287471352662497757247093699959574966967627"
PI_256 = "3141592653589793238462643383279502884197169399375105820974944592"
VECTORS = {
    2: ("11" * 16 + "22" * 16, 0x3333333333, b"\x44" * 32,
        "c454185e6a16936e39334038acef838bfb186fff7480adc4289382ecd6d394f0", ""),
    3: ("fffefdfcfbfaf9f8f7f6f5f4f3f2f1f0" + "22" * 16, 0x3333333333, b"\x44" * 32,
        "af85336b597afc1a900b2eb21ec949d292df4c047e0b21532186a5971a227a89", ""),
    4: (E_256[:32] + PI_256[:32], 0, COUNT,
        "27a7479befa1d476489f308cd4cfa6e2a96e4bbe3208ff25287dd3819616e89c"
        "c78cf7f5e543445f8333d8fa7f56000005279fa5d8b5e4ad40e736ddb4d35412",
        "eb4a427d1923ce3ff262735779a418f20a282df920147beabe421ee5319d0568"),
    10: (E_256 + PI_256, 0xFF, COUNT,
         "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b"
         "5d31e276f8fe4a8d66b317f9ac683f44680a86ac35adfc3345befecb4bb188fd", ""),
}  # fmt: skip
"""IEEE 1619, annex B, by number: keys, data unit, plain text, begin and end of the cipher text.
Number 1 has two equal keys, which are refused."""

EXAMPLES = {
    "000102030405060708090a0b0c0d0e0f": "69c4e0d86a7b0430d8cdb78070b4c55a",
    "000102030405060708090a0b0c0d0e0f1011121314151617": "dda97ca4864cdfe06eaf70a0ec0d7191",
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f": (
        "8ea2b7ca516745bfeafc49904b496089"
    ),
}
"""FIPS 197, annex C: keys and the block 00112233...ff encrypted."""


def array(raw):
    return np.frombuffer(raw, np.uint8)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("key", EXAMPLES, ids=len)
def test_examples_of_the_standard(key, backend):
    aes = Aes(bytes.fromhex(key), backend)
    plain = array(bytes.fromhex("00112233445566778899aabbccddeeff"))[None]
    found = aes.encrypt(plain)
    assert found.tobytes().hex() == EXAMPLES[key]
    assert (aes.decrypt(found) == plain).all()


def test_table_of_bytes():
    """FIPS 197, figure 7: the first row, and no byte replaced by itself or by its complement."""
    assert SUB[:16].tobytes().hex() == "637c777bf26b6fc53001672bfed7ab76"
    assert len(set(SUB.tolist())) == 256
    assert not {0, 255} & set((SUB ^ np.arange(256, dtype=np.uint8)).tolist())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", VECTORS)
def test_vectors_of_the_standard(number, backend):
    key, unit, plain, begin, end = VECTORS[number]
    xts = Xts(bytes.fromhex(key), backend)
    found = xts.encrypt(array(plain), unit)
    assert found.tobytes().startswith(bytes.fromhex(begin))
    assert found.tobytes().endswith(bytes.fromhex(end)) and len(found) == len(plain)
    assert xts.decrypt(found, unit).tobytes() == plain


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("key_bytes", [32, 64])
def test_the_package_cryptography_has_the_same_bytes(key_bytes, backend):
    ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers")
    from cryptography.hazmat.primitives.ciphers import algorithms, modes

    rng = np.random.default_rng(key_bytes)
    for blocks, unit in ((1, 0), (2, 1), (1024, 2**40 + 5), (1023, 2**128 - 1)):
        key, page = rng.bytes(key_bytes), rng.bytes(16 * blocks)
        tweak = modes.XTS(unit.to_bytes(16, "little"))
        expected = ciphers.Cipher(algorithms.AES(key), tweak).encryptor().update(page)
        xts = Xts(key, backend)
        assert xts.encrypt(array(page), unit).tobytes() == expected
        assert xts.decrypt(array(expected), unit).tobytes() == page


@pytest.mark.parametrize("key_bytes", [32, 64])
def test_xts_written_out(key_bytes):
    """XTS by its definition: multiplication by x in GF(2^128) and single blocks of AES."""
    rng = np.random.default_rng(key_bytes)
    key, page = rng.bytes(key_bytes), rng.bytes(4096)
    first, second = (Aes(key[: key_bytes // 2], "numpy"), Aes(key[key_bytes // 2 :], "numpy"))

    def block(aes, data):
        return aes.encrypt(array(data)[None]).tobytes()

    unit = 2**40 + 5
    mask, expected = int.from_bytes(block(second, unit.to_bytes(16, "little")), "little"), b""
    for at in range(0, len(page), 16):
        own = mask.to_bytes(16, "little")
        mixed = bytes(a ^ b for a, b in zip(page[at : at + 16], own, strict=True))
        expected += bytes(a ^ b for a, b in zip(block(first, mixed), own, strict=True))
        mask = (mask << 1) % 2**128 ^ 0x87 * (mask >> 127)
    for backend in BACKENDS:
        assert Xts(key, backend).encrypt(array(page), unit).tobytes() == expected


def test_a_wrong_bit_spoils_its_block_only():
    xts, page = Xts(bytes(range(32))), np.zeros(256, np.uint8)
    stored = xts.encrypt(page, 3)
    stored[100] ^= 4
    wrong = np.flatnonzero(xts.decrypt(stored, 3))
    assert wrong.min() >= 96 and wrong.max() < 112 and len(wrong) > 8
    assert not page.any()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (bytes(31), "31 bytes; must be a bytes object of length 32"),
        ("00" * 32, "str; must be a bytes object of length 32"),
        (bytes(32), "both halves are equal"),
    ],
)
def test_keys_refused(key, words):
    with pytest.raises(KernelError, match=words):
        Xts(key)


def test_keys_and_backends_of_aes_refused():
    with pytest.raises(
        KernelError, match="AES key: 17 bytes; must be a bytes object of length 16, 24 or 32"
    ):
        Aes(bytes(17))
    with pytest.raises(KernelError, match="AES key: str"):
        Aes("0" * 16)
    with pytest.raises(KernelError, match="unknown backend 'c'"):
        Xts(bytes(range(32)), "c")


@pytest.mark.parametrize(
    ("data", "unit", "words"),
    [
        (np.zeros(24, np.uint8), 0, "24 bytes; must be 1 to 1048576 blocks"),
        (np.zeros(0, np.uint8), 0, "0 bytes"),
        (np.zeros(16 + (16 << 20), np.uint8), 0, "16777232 bytes"),
        (np.zeros(16, np.int8), 0, "int8"),
        (np.zeros(16, np.uint8), -1, "unit = -1"),
        (np.zeros(16, np.uint8), 1 << 128, "to 2"),
    ],
)
def test_units_refused(data, unit, words):
    with pytest.raises(KernelError, match=words):
        Xts(bytes(range(32))).encrypt(data, unit)
