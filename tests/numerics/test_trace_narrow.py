"""Gradients are stored in 16 bits exactly where not one bit is lost, and come back bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ondie.traces import TraceError
from ondie.traces.hdf5 import scale_shift
from ondie.traces.narrow import Packed, pack, unpack

any_bits = arrays(np.uint32, st.integers(0, 80)).map(lambda bits: bits.view(np.float32))
any_half = arrays(np.uint16, st.integers(1, 80)).map(lambda bits: bits.view(np.float16))
finite_half = any_half.map(lambda h: np.where(np.isfinite(h), h, np.float16(-0.0)))
shifts = st.integers(-40, 40)


def comes_back(vector: np.ndarray, starts: list[int], prefer: int = 0) -> Packed:
    packed = pack(vector, starts, prefer)
    back = unpack(packed, starts)
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back.view(np.uint32), vector.view(np.uint32))
    return packed


def bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


@given(any_bits, shifts)
def test_any_vector_comes_back_bit_for_bit(vector, prefer):
    comes_back(vector, [0], prefer)


@given(finite_half, shifts)
def test_a_shifted_fp16_vector_takes_16_bits(half, shift):
    # 2**-40 * 2**-24 and 2**40 * 2**16 are both within float32's range
    vector = half.astype(np.float32) * np.float32(2.0**-shift)
    assert comes_back(vector, [0]).storage == "float16"


@given(finite_half, shifts)
def test_with_the_loss_scale_as_hint_the_bytes_are_the_accelerators(half, shift):
    vector = half.astype(np.float32) * np.float32(2.0**-shift)
    packed = comes_back(vector, [0], prefer=shift)
    assert packed.shift == (shift,)
    assert packed.values.tobytes() == half.tobytes()


@given(arrays(np.uint16, st.integers(1, 80)))
def test_a_bfloat16_vector_takes_16_bits(bits):
    vector = bfloat16(bits)
    packed = comes_back(vector, [0])
    if np.isfinite(vector).all():
        assert packed.values.dtype.itemsize == 2


@given(st.lists(st.tuples(finite_half, shifts), min_size=2, max_size=5))
def test_tensors_with_shifts_of_their_own_take_16_bits(parts):
    vectors = [h.astype(np.float32) * np.float32(2.0**-k) for h, k in parts]
    starts = [0, *np.cumsum([len(v) for v in vectors])[:-1].tolist()]
    assert comes_back(np.concatenate(vectors), starts).values.dtype.itemsize == 2


def test_twelve_significant_bits_do_not_fit_sixteen():
    # 1 + 2**-11 needs 12 significant bits; FP16 has 11, BF16 8
    packed = comes_back(np.array([1 + 2.0**-11, 1.0], np.float32), [0])
    assert packed.storage == "float32"


def test_a_range_beyond_fp16_goes_to_bfloat16_or_per_tensor_shifts():
    # 2**60 and 2**-60 together: no FP16 shift spans them, BF16 does
    assert comes_back(np.array([2.0**60, 2.0**-60], np.float32), [0]).storage == "bfloat16"
    # with 11 significant bits BF16 is out; one shift per tensor is right
    wide = np.array([(1 + 2.0**-10) * 2.0**60, (1 + 2.0**-10) * 2.0**-60], np.float32)
    packed = comes_back(wide, [0, 1])
    assert packed.storage == "float16"
    assert len(packed.shift) == 2
    assert comes_back(wide, [0]).storage == "float32"


def test_the_extremes_of_float32_come_back():
    tiny = np.array([0x00000001, 0x80000001, 0x007FFFFF, 0x7F7FFFFF, 0x80000000], np.uint32)
    comes_back(tiny.view(np.float32), [0])
    comes_back(tiny[:1].view(np.float32), [0])
    comes_back(np.zeros(0, np.float32), [0])
    comes_back(np.array([-0.0, 0.0], np.float32), [0])


def test_float32_denormals_with_few_bits_take_16_bits():
    # 1023, 1 and 2 times 2**-149: an FP16 vector with its exponents far below FP16's
    bits = np.array([1023, 1, 2], np.uint32)
    assert comes_back(bits.view(np.float32), [0]).storage == "float16"


def test_infinities_and_nans_are_kept_as_they_are():
    vector = np.array([0x7FC00001, 0xFF800000, 0x3F800000], np.uint32).view(np.float32)
    assert comes_back(vector, [0]).storage == "float32"


@pytest.mark.parametrize(
    "packed",
    [
        Packed("int8", (0,), np.zeros(2, np.int8)),
        Packed("float16", (400,), np.zeros(2, np.float16)),
        Packed("float16", (1, 2, 3), np.zeros(2, np.float16)),
    ],
)
def test_unpacking_something_else_is_refused(packed):
    with pytest.raises(TraceError):
        unpack(packed, [0])


@pytest.mark.parametrize(
    ("scale", "shift"), [(1.0, 0), (65536.0, 16), (0.25, -2), (1000.0, 0), (3.0, 0)]
)
def test_only_a_power_of_two_is_a_shift(scale, shift):
    assert scale_shift(scale) == shift
