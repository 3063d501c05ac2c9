"""Do BCH codes correct what they promise, equally in NumPy, Numba and C, and refuse the rest?"""

from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from ondie.kernels import KernelError, bch, get, native
from ondie.kernels.crc import crc32c
from tests.numerics.harness import GUARD, OFFSETS, compiled, placed

SHAPES = [
    # m, t, data_bytes, crc
    (10, 1, 1, False),
    (10, 3, 61, True),
    (10, 100, 10, False),  # 100 errors in 105 bytes
    (11, 17, 63, True),
    (12, 31, 333, True),
    (13, 8, 512, True),
    (13, 16, 1, True),
    (14, 40, 1024, True),
    (14, 60, 1001, False),
    (15, 5, 4081, True),  # a word of 2^15 - 8 bits
    (15, 100, 3000, True),
]
PLAIN, CLMUL = ("plain", frozenset[str]()), ("clmul", frozenset({"pclmulqdq"}))
FORMS = {
    "base": (PLAIN,),
    "avx2": (CLMUL, PLAIN),
    "avx512": (("gfni", frozenset({"gfni", "vpclmulqdq"})), CLMUL, PLAIN),
}
"""Forms of the C functions by instruction set, best first, and what the processor must have."""
PRESETS = [(13, 8, 512), (14, 40, 1024), (14, 50, 1024), (14, 60, 1024), (14, 72, 1024)]


def codes(shape, backends=None):
    """A code on each backend and instruction set but NumPy."""
    m, t, size, crc = shape
    return [bch.get(m, t, size, crc, *which) for which in backends or compiled()]


def flipped(data, check, places):
    """Copies of words with the bits ``places[i]`` of word i inverted; check bytes come first."""
    word = np.concatenate((check, data), axis=1)
    for row, each in zip(word, places, strict=True):
        for place in each:
            row[place // 8] ^= 1 << place % 8
    size = check.shape[1]
    return np.ascontiguousarray(word[:, size:]), np.ascontiguousarray(word[:, :size])


def drawn(rng, code, counts):
    """Random data and its check bytes, and both with counts[i] wrong bits in word i."""
    data = rng.integers(0, 256, (len(counts), code.code.data_bytes), np.uint8)
    check = code.encode(data)
    places = [rng.choice(code.code.bits, count, replace=False) for count in counts]
    return data, check, *flipped(data, check, places)


# --- the code


@pytest.mark.parametrize("m", bch.PRIMITIVE)
def test_the_polynomial_is_the_least_primitive_one(m):
    """a has order 2^m - 1, and no smaller polynomial of the degree has such a root."""

    def order(polynomial):
        element, steps = 1, 0
        while True:
            element <<= 1
            element ^= polynomial if element >> m else 0
            steps += 1
            if element == 1 or steps == 1 << m or not element:
                return steps

    assert order(bch.PRIMITIVE[m]) == (1 << m) - 1
    smaller = range((1 << m) + 1, bch.PRIMITIVE[m], 2)
    assert all(order(polynomial) != (1 << m) - 1 for polynomial in smaller)


@pytest.mark.parametrize("shape", SHAPES)
def test_words_are_multiples_with_the_roots(shape, rng):
    """By the definition of the code: the word is 0 at a, a^2, ..., a^(2 t), and has the CRC."""
    code = bch.get(*shape, backend="numpy")
    data = rng.integers(0, 256, (1, shape[2]), np.uint8)
    check = code.encode(data)
    word = np.concatenate((check[0], data[0]))
    places = np.flatnonzero(np.unpackbits(word, bitorder="little"))
    for power in range(1, 2 * shape[1] + 1):
        values = code.code.field.exp[power * places % code.code.field.n]
        assert np.bitwise_xor.reduce(values) == 0, power
    if shape[3]:
        parity = code.code.parity_bytes
        assert int.from_bytes(check[0, parity:].tobytes(), "little") == crc32c(data)


@pytest.mark.parametrize(
    "m, t, degree", [(10, 1, 10), (13, 8, 104), (14, 40, 560), (15, 100, 1500)]
)
def test_the_degree_of_the_generator(m, t, degree):
    """The degrees of the usual codes are m t; few roots coincide at small t."""
    assert bch.generator(m, t).bit_length() - 1 == degree


def test_short_generators_have_each_factor_once():
    """m = 10: a^33 has a conjugate below, 31 of its powers form a subfield with 5 conjugates."""
    degree = bch.generator(10, 17).bit_length() - 1  # a, a^3, ..., a^33
    assert degree == 10 * 16 + 5
    seen = set()
    for odd in range(1, 201, 2):
        seen |= {odd * 2**k % 1023 for k in range(10)}
    assert bch.generator(10, 100).bit_length() - 1 == len(seen)


# --- correction


@pytest.mark.parametrize("t, size", [(1, 4), (2, 1), (3, 1), (4, 1)])
def test_all_patterns_on_small_codes(t, size, counts):
    """Every pattern of up to t wrong bits, on each backend; at small counts of up to 3."""
    shape = (10, t, size, False)
    for code in codes(shape):
        data = np.full((1, size), 0x5B, np.uint8)
        check = code.encode(data)
        for wrong in range(counts(min(t, 3), t) + 1):
            places = np.array(list(combinations(range(code.code.bits), wrong)), np.int64)
            places = places.reshape(comb(code.code.bits, wrong), wrong)
            many = np.tile(np.concatenate((check, data), axis=1), (len(places), 1))
            for column in places.T:
                many[np.arange(len(many)), column // 8] ^= (1 << column % 8).astype(np.uint8)
            read = np.ascontiguousarray(many[:, check.shape[1] :])
            read_check = np.ascontiguousarray(many[:, : check.shape[1]])
            assert (code.decode(read, read_check) == wrong).all()
            assert (read == data).all() and (read_check == check).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_backends_agree(shape, rng, counts):
    """Check bytes, verdicts, results and corrected bytes, from no wrong bit to more than t."""
    t, words = shape[1], counts(10, 60)
    numpy = bch.get(*shape, backend="numpy")
    most = min(t + 3, numpy.code.bits)
    wrong = [0, 1, t, t + 1, *rng.integers(0, most + 1, words)]
    data, check, bad, bad_check = drawn(rng, numpy, wrong)
    want = bad.copy(), bad_check.copy()
    result = numpy.decode(*want)
    clean = numpy.check(bad, bad_check)
    assert (result[np.array(wrong) <= t] == np.array(wrong)[np.array(wrong) <= t]).all()
    assert (want[0][result >= 0][:3] == data[result >= 0][:3]).all()
    for code in codes(shape):
        assert (code.encode(data) == check).all(), code
        assert (code.check(data, check)).all(), code
        assert (code.check(bad, bad_check) == clean).all(), code
        found = bad.copy(), bad_check.copy()
        assert (code.decode(*found) == result).all(), code
        assert all((a == b).all() for a, b in zip(found, want, strict=True)), code


@pytest.mark.parametrize("shape", PRESETS)
def test_drawn_patterns_up_to_t(shape, rng, counts):
    """Random words with 0 to t wrong bits are restored, check bytes included."""
    words = counts(300, 100_000)
    code = bch.get(*shape)
    for _ in range(0, words, 1000):
        wrong = rng.integers(0, shape[1] + 1, min(words, 1000))
        data, check, bad, bad_check = drawn(rng, code, wrong)
        assert (code.check(bad, bad_check) == (wrong == 0)).all()
        assert (code.decode(bad, bad_check) == wrong).all()
        assert (bad == data).all() and (bad_check == check).all()


def test_bursts_and_both_ends(rng):
    """Neighbouring bits, the first and the last bits of a word, and all of them in check bytes."""
    for shape in ((14, 40, 1024, True), (13, 8, 509, True)):
        t, numpy = shape[1], bch.get(*shape, backend="numpy")
        last = numpy.code.bits
        places = [range(t), range(last - t, last), [0, last - 1], range(400, 400 + t), [last - 1]]
        data = rng.integers(0, 256, (len(places), shape[2]), np.uint8)
        check = numpy.encode(data)
        for code in codes(shape):
            bad, bad_check = flipped(data, check, places)
            assert code.decode(bad, bad_check).tolist() == [len(each) for each in places], code
            assert (bad == data).all() and (bad_check == check).all()


# --- beyond the limit


def one_error_more(code, words, rng):
    """Words of zeros with t + 1 wrong bits each, up to 10,000 at a time: (data, check)."""
    t, bits = code.code.t, code.code.bits
    while words:
        places = rng.integers(0, bits, (min(words, 10_000), t + 1))
        ordered = np.sort(places, axis=1)
        places = places[(ordered[:, 1:] != ordered[:, :-1]).all(axis=1)]
        words -= len(places)
        check = np.zeros((len(places), code.check_bytes), np.uint8)
        check[:] = code.encode(np.zeros(code.code.data_bytes, np.uint8))
        data = np.zeros((len(places), code.code.data_bytes), np.uint8)
        word = np.concatenate((check, data), axis=1)
        for column in places.T:
            word[np.arange(len(word)), column // 8] ^= (1 << column % 8).astype(np.uint8)
        size = code.check_bytes
        yield np.ascontiguousarray(word[:, size:]), np.ascontiguousarray(word[:, :size])


FULL_WORDS = {2: 50_000, 3: 100_000, 4: 100_000, 5: 200_000, 6: 500_000}


def test_one_error_more_without_a_crc(rng, counts):
    """t + 1 wrong bits are taken for t others in about C(n - t - 1, t) / 2^r of cases, n the bits
    of the word and r the degree of the generator: so many of the 2^r remainders belong to t wrong
    bits at other positions. (At m = 10 and t = 3 the share is 4 % larger: the remainders of few
    wrong bits are not spread evenly over so small a code.)"""
    for t in range(2, counts(3, 6) + 1):
        size = bch.most_data(13, t, crc=False)
        code = bch.get(13, t, size, crc=False)
        words = counts(20_000, FULL_WORDS[t])
        wrong = total = 0
        for data, check in one_error_more(code, words, rng):
            result = code.decode(data, check)
            assert np.isin(result, (t, bch.UNCORRECTABLE)).all()  # the distance is 2 t + 1
            taken = result == t
            assert data[taken].any(axis=1).all() or check[taken].any(axis=1).all()
            wrong, total = wrong + int(taken.sum()), total + taken.size
        expected = comb(code.code.bits - t - 1, t) / 2**code.code.degree
        interval = binomtest(wrong, total).proportion_ci(0.999)
        assert interval.low <= expected <= interval.high, (t, wrong, total, expected)


@pytest.mark.parametrize("backend, isa", compiled())
def test_none_is_silent_with_the_crc(backend, isa, rng, counts):
    """What the CRC refuses stays as it was; without its check it would have been accepted."""
    for t in (2, 3):
        code = bch.get(10, t, bch.most_data(10, t), backend=backend, isa=isa)
        refused = 0
        for data, check in one_error_more(code, counts(2_000, 200_000), rng):
            before = data.copy(), check.copy()
            result = code.decode(data, check)
            assert (result < 0).all()
            assert (data == before[0]).all() and (check == before[1]).all()
            accepted = code.decode(data, check, verify=False) == t
            assert (accepted == (result == bch.MISCORRECTED)).all()
            assert (data[accepted] != before[0][accepted]).any()
            assert code.check(data, check, verify=False)[accepted].all()
            assert not code.check(data, check)[accepted].any()
            refused += accepted.sum()
        assert refused > 0


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("t", [2, 3])
def test_backends_agree_past_the_limit(t, crc, rng, counts):
    """With few errors many words past the limit are near another word: every verdict occurs."""
    shape = (10, t, bch.most_data(10, t, crc), crc)
    numpy = bch.get(*shape, backend="numpy")
    wrong = [t + 1 + i % 3 for i in range(counts(300, 3000))]
    _, _, bad, bad_check = drawn(rng, numpy, wrong)
    want = bad.copy(), bad_check.copy()
    result = numpy.decode(*want)
    verdicts = {bch.UNCORRECTABLE, bch.MISCORRECTED if crc else t}
    assert verdicts <= set(result.tolist()) <= verdicts | set(range(1, t))
    for code in codes(shape):
        found = bad.copy(), bad_check.copy()
        assert (code.decode(*found) == result).all(), code
        assert all((a == b).all() for a, b in zip(found, want, strict=True)), code


def test_a_locator_of_too_high_a_degree_is_refused(rng):
    """Three wrong bits a third of n apart have the sum 0, as none has; their locator polynomial,
    1 + s x^3, is found from 4 syndromes and has three roots, but t is 2."""
    shape = (10, 2, bch.most_data(10, 2, crc=False), False)
    for code in [*codes(shape), bch.get(*shape, backend="numpy")]:
        data = rng.integers(0, 256, (3, shape[2]), np.uint8)
        places = [[i, i + 341, i + 682] for i in (0, 5, 333)]
        bad, bad_check = flipped(data, code.encode(data), places)
        assert (code.decode(bad, bad_check) == bch.UNCORRECTABLE).all(), code


# --- other programs


def bits_of(polynomial):
    """A number as bits, the highest power first."""
    return [int(bit) for bit in bin(polynomial)[2:]]


@pytest.mark.one_in(12)
@pytest.mark.parametrize("m, t", [(10, 4), (11, 7), (12, 9), (13, 8), (14, 12), (15, 3)])
def test_galois_has_the_same_words(m, t, rng, counts):
    """Its message is ours, shifted by the bits between the degree and whole bytes of parity."""
    galois = pytest.importorskip("galois", reason="galois is not installed")
    code = bch.get(m, t, 40, crc=False)
    polynomial = galois.Poly(bits_of(bch.PRIMITIVE[m]))
    mode = counts("python-calculate", "auto")  # its compiled field takes 6 s to compile
    gf = galois.GF(2**m, irreducible_poly=polynomial, primitive_element=2, repr="int", compile=mode)
    n = (1 << m) - 1
    theirs = galois.BCH(n, n - code.code.degree, extension_field=gf, alpha=2)
    assert int(theirs.generator_poly) == bch.generator(m, t)
    assert theirs.t >= t
    words = counts(20, 1000)
    data = rng.integers(0, 256, (words, 40), np.uint8)
    check = code.encode(data)
    free = 8 * code.check_bytes - code.code.degree
    message = np.unpackbits(data, axis=1, bitorder="little")[:, ::-1]
    message = np.concatenate((message, np.zeros((words, free), np.uint8)), axis=1)
    parity = np.asarray(theirs.encode(galois.GF2(message), output="parity"))
    ours = np.unpackbits(check, axis=1, bitorder="little")[:, : code.code.degree]
    assert (parity == ours[:, ::-1]).all()


@pytest.mark.parametrize("m, t", [(13, 8), (14, 40), (14, 60)])
def test_bchlib_has_the_same_words(m, t, rng, counts):
    """Its first byte, and each byte's highest bit, is the highest power."""
    bchlib = pytest.importorskip("bchlib", reason="bchlib is not installed")
    theirs = bchlib.BCH(t, prim_poly=bch.PRIMITIVE[m])
    code = bch.get(m, t, 512, crc=False)
    for data in rng.integers(0, 256, (counts(20, 1000), 512), np.uint8):
        check = code.encode(data)
        assert bytes(theirs.encode(data[::-1].tobytes())) == check[::-1].tobytes()
        wrong = int(rng.integers(0, t + 3))
        bad, bad_check = data.copy(), check.copy()
        for at in rng.choice(8 * 512 + code.code.degree, wrong, replace=False).tolist():
            place, bit = divmod(at, 8)
            (bad if place < 512 else bad_check)[place % 512] ^= 1 << bit
        their_data, their_check = bytearray(bad[::-1]), bytearray(bad_check[::-1])
        found = theirs.decode(bytes(their_data), bytes(their_check))
        assert code.decode(bad, bad_check)[0] == (found if found >= 0 else bch.UNCORRECTABLE)
        if found > 0:
            theirs.correct(their_data, their_check)
        assert bytes(their_data) == bad[::-1].tobytes()
        assert bytes(their_check) == bad_check[::-1].tobytes()


# --- calls


@pytest.mark.parametrize("shape", [(14, 40, 1000, True), (10, 3, 1, False)])
def test_nothing_is_written_outside_of_the_arrays(shape, rng):
    numpy = bch.get(*shape, backend="numpy")
    wrong = [0, shape[1], shape[1] + 2]
    data, check, bad, bad_check = drawn(rng, numpy, wrong)
    for code in codes(shape):
        for offset in OFFSETS:
            views = [placed(array.reshape(-1), offset) for array in (bad, bad_check, check)]
            rows = [view.reshape(len(wrong), -1) for view, _ in views]
            code.encode(data, rows[2])
            result = code.decode(rows[0], rows[1])
            assert result[:2].tolist() == wrong[:2] and (rows[0][:2] == data[:2]).all()
            assert (rows[2] == check).all()
            for view, buffer in views:
                start = view.ctypes.data - buffer.ctypes.data
                ends = buffer[start - GUARD : start], buffer[start + view.size :][:GUARD]
                assert all((end == 0xA5).all() for end in ends), code


def features():
    """What Linux says that the processor has."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def test_get(rng):
    code = get("bch", m=13, t=8, data_bytes=512)
    assert isinstance(code, bch.Bch) and code.check_bytes == 17
    assert code.backend == ("c" if native.lib is not None else "numba")
    data = rng.integers(0, 256, 512, np.uint8)  # one word, flat
    check = code.encode(data)
    assert check.shape == (17,) and code.check(data, check).tolist() == [True]
    data[7] ^= 16
    assert code.decode(data, check).tolist() == [1] and code.check(data, check).all()
    assert get("bch", m=13, t=8, data_bytes=512, crc=False).check_bytes == 13
    assert "m=13, t=8, data_bytes=512, crc=True" in repr(code)
    numbers = get("bch", m=np.int64(13), t=np.uint8(8), data_bytes=np.int32(512))
    assert repr(numbers) == repr(code)
    for isa in native.isas():
        form = get("bch", isa=isa, m=13, t=8, data_bytes=512).form
        assert form == next(form for form, needed in FORMS[isa] if needed <= features())
    with pytest.raises(KernelError, match="data is list, expected an array of uint8"):
        code.encode([0] * 512)
    assert get("bch", "numpy", m=10, t=1, data_bytes=1).form is None
    empty = np.empty((0, 512), np.uint8), np.empty((0, 17), np.uint8)
    assert code.decode(*empty).size == code.check(*empty).size == 0


@pytest.mark.parametrize(
    "shape, words",
    [
        ({"t": 0}, "t = 0; must be from 1 to 100"),
        ({"t": 101}, "t = 101; must be from 1 to 100"),
        ({"t": 8.0}, "t = 8.0; must be a whole number"),
        ({"m": [13]}, r"m = \[13\]; must be a whole number"),
        ({"crc": "no"}, "crc = 'no'; must be True or False"),
        ({"m": 9}, "m = 9; must be from 10 to 15"),
        ({"m": 16}, "m = 16; must be from 10 to 15"),
        ({"data_bytes": 0}, "data_bytes = 0 .* must be from 1 to 1006"),
        ({"data_bytes": 1007}, "data_bytes = 1007 .* from 1 to 1006, .* 8191 bits; m = 14 fits"),
        ({"data_bytes": 5000}, "data_bytes = 5000 .*; no m fits"),
        ({"data_bytes": "512"}, "data_bytes = '512'; must be a whole number"),
        ({"m": 10, "t": 100}, "data_bytes = 512 with m = 10, t = 100 .* must be from 1 to"),
        ({"crc": True, "form": "torch"}, "form = 'torch': does not apply to this code"),
        ({"format": "bf16"}, "format = 'bf16': does not apply to this code"),
        ({"bits": 3}, "unknown argument of 'bch' 'bits'"),
        ({"backend": "cuda"}, "unknown backend 'cuda'"),
        ({"isa": "sse9"}, "unknown isa 'sse9'"),
    ],
)
def test_bad_codes(shape, words):
    with pytest.raises(KernelError, match=words) as caught:
        get("bch", **({"m": 13, "t": 8, "data_bytes": 512} | shape))
    assert "\n" not in str(caught.value)


def test_the_largest_word_that_is_named_fits(rng):
    for m, t in ((10, 2), (13, 8), (15, 100)):
        most = bch.most_data(m, t)
        code = bch.get(m, t, most)
        data, _, bad, bad_check = drawn(rng, code, [t])
        assert code.decode(bad, bad_check).tolist() == [t] and (bad == data).all()
        with pytest.raises(KernelError, match=f"from 1 to {most}"):
            bch.get(m, t, most + 1)


def test_missing_and_foreign_arguments():
    with pytest.raises(KernelError, match="bch: t, data_bytes must be given"):
        get("bch", m=13)
    wrong = "adam: m: unknown; the only arguments of adam are backend, form, isa and format"
    with pytest.raises(KernelError, match=wrong):
        get("adam", m=13)


@pytest.mark.parametrize(
    "data, check, words",
    [
        (np.zeros((2, 511), np.uint8), np.zeros((2, 17), np.uint8), r"data is uint8 \(2, 511\)"),
        (np.zeros((2, 512), np.int8), np.zeros((2, 17), np.uint8), "data is int8"),
        (np.zeros((4, 512), np.uint8)[::2], np.zeros((2, 17), np.uint8), "data .*strided"),
        (np.zeros((2, 512), np.uint8), np.zeros((2, 16), np.uint8), r"check is .* \(n, 17\)"),
        (np.zeros((2, 512), np.uint8), np.zeros((3, 17), np.uint8), "data has 2 rows, check has 3"),
        (np.zeros((1, 2, 512), np.uint8), np.zeros((2, 17), np.uint8), "data is"),
    ],
)
def test_bad_arrays(data, check, words):
    code = get("bch", m=13, t=8, data_bytes=512)
    for call in (code.encode, code.check, code.decode):
        with pytest.raises(KernelError, match=words):
            call(data, check)


def test_arrays_that_must_be_written_or_apart():
    code = get("bch", m=13, t=8, data_bytes=512)
    both = np.zeros(529, np.uint8)
    with pytest.raises(KernelError, match="share memory"):
        code.decode(both[:512], both[500:517])
    data, check = np.zeros(512, np.uint8), np.zeros(17, np.uint8)
    check.flags.writeable = False
    assert code.check(data, check).shape == (1,)
    for call in (code.encode, code.decode):
        with pytest.raises(KernelError, match="check is read-only"):
            call(data, check)
