"""Do the backends of the LDPC code give the same bits, and does the code do what it is for?"""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ondie.emu.nand.ecc import codeword_failure
from ondie.emu.units import InputError
from ondie.emu.validate.ecc import POINTS, limits
from ondie.emu.validate.ldpc_curve import frame_errors, interval, intervals
from ondie.kernels import KernelError, get, native
from ondie.kernels.ldpc import CORRECT, FAILED, WRONG_CRC, Ldpc, columns_of
from ondie.kernels.ldpc_code import Code, code

BACKENDS = [("numpy", None), ("numba", None), *(("c", isa) for isa in native.isas())]
PAGE = (4096, 1024, 1)
LONG = (252, 2048, 2)
CODES = [PAGE, (24, 64, 3), (60, 128, 1), (100, 256, 2), (124, 512, 1), (33, 4096, 5), LONG]


def matrix(of):
    """The parity-check matrix, uint8[rows, bits], built check by check."""
    size = of.circulant
    found = np.zeros((len(of.shifts) * size, of.columns * size), np.uint8)
    for row, line in enumerate(of.shifts):
        for column, shift in enumerate(line):
            if shift >= 0:
                i = np.arange(size)
                found[row * size + i, column * size + (i + shift) % size] = 1
    return found


def damaged(rng, words, rate):
    bits = rng.random((*words.shape[:-1], 8 * words.shape[-1])) < rate
    return words ^ np.packbits(bits, axis=-1, bitorder="little")


def messages_of(rng, words, noise):
    """Messages of +-12 with noise, limited to what is allowed."""
    bits = np.unpackbits(words, axis=1, bitorder="little")
    soft = np.where(bits == 1, -12, 12) + np.rint(rng.normal(0, noise, bits.shape))
    return np.clip(soft, -31, 31).astype(np.int8)


def assert_same(one, other, where):
    for field in ("iterations", "flips", "outcome", "words"):
        np.testing.assert_array_equal(
            getattr(one, field), getattr(other, field), f"{where} {field}"
        )


@pytest.mark.parametrize("of", CODES, ids=str)
def test_backends_agree(of, rng, counts):
    """Encoding, and decoding of words with no, few, many and too many errors, hard and soft."""
    page = of == PAGE
    count = counts(1, 6) if page else counts(6, 60)
    kernels = [Ldpc(backend, isa, code(*of)) for backend, isa in BACKENDS]
    data = rng.integers(0, 256, (count, of[0]), np.uint8)
    words = kernels[0].encode(data)
    for kernel in kernels[1:]:
        np.testing.assert_array_equal(kernel.encode(data), words, repr(kernel))
    outcomes = set()
    cases = [(0, 10, 20), (1e-3, 10, 20), (4e-3, 0, 20), (6e-3, 10, 20), (0.02, 10, 3),
             (0.02, 0, 1), (0.02, 0, 2)]  # fmt: skip
    for rate, flips, iterations in cases:
        read = damaged(rng, words, rate * (1 if page else 4))
        noise = 2 + 400 * rate
        soft = messages_of(rng, words, noise)
        hard = kernels[0].decode(read, iterations, flips)
        by_soft = kernels[0].decode_soft(soft, iterations, flips)
        outcomes |= {*hard.outcome, *by_soft.outcome}
        for kernel in kernels[1:]:
            assert_same(hard, kernel.decode(read, iterations, flips), f"{kernel} {rate}")
            assert_same(by_soft, kernel.decode_soft(soft, iterations, flips), f"{kernel} {rate}")
    assert {CORRECT, FAILED} <= outcomes


def test_any_messages_give_the_same_bits(rng, counts):
    """Random messages, which no code word explains: totals reach their limits."""
    kernels = [Ldpc(backend, isa, code(60, 128, 1)) for backend, isa in BACKENDS]
    for most in (0, 1, 31):
        size = (counts(3, 100), 8 * kernels[0].code.word_bytes)
        soft = rng.integers(-most, most + 1, size).astype(np.int8)
        want = kernels[0].decode_soft(soft, 7)
        for kernel in kernels[1:]:
            assert_same(want, kernel.decode_soft(soft, 7), f"{kernel} {most}")


@pytest.mark.parametrize("of", CODES[1:5], ids=str)
def test_words_satisfy_every_check(of, rng):
    """By the matrix itself, which has independent parity columns."""
    kernel = Ldpc(of=code(*of))
    words = kernel.encode(rng.integers(0, 256, (20, of[0]), np.uint8))
    checks, size = matrix(kernel.code), kernel.code.stored_bits
    bits = np.unpackbits(words, axis=1, bitorder="little")
    parity = 4 * kernel.code.circulant
    known = np.zeros((20, checks.shape[1] - size - parity), np.uint8)
    whole = np.concatenate([bits[:, :size], known, bits[:, size:]], axis=1)
    assert not (checks.astype(int) @ whole.T % 2).any()
    assert kernel.satisfied(words).all()
    words[:, 0] ^= 1
    assert not kernel.satisfied(words).any()
    assert rank(checks[:, -parity:]) == parity


def rank(square):
    """Rank modulo 2, by elimination on rows as integers."""
    rows = [int("".join(map(str, row)), 2) for row in square]
    found = 0
    while rows:
        if pivot := rows.pop():
            found += 1
            low = pivot & -pivot
            rows = [row ^ pivot if row & low else row for row in rows]
    return found


def test_the_page_code():
    """What is stated: 4096 bytes and a CRC in 4612, no cycle of four edges."""
    of = get("ldpc").code
    assert (of.data_bytes, of.word_bytes, of.columns, of.circulant) == (4096, 4612, 37, 1024)
    assert of.rate == pytest.approx(0.88812, abs=1e-5)
    assert of.girth == 6
    assert [sum(map(len, line)) for line in of.inverse] == [9, 9, 9, 9]
    assert "girth 6" in repr(get("ldpc"))
    assert of.shifts[:, 0].tolist() == code(*PAGE).shifts[:, 0].tolist()


@pytest.mark.parametrize("of", CODES[1:3], ids=str)
def test_girth_is_that_of_a_search_of_the_graph(of):
    """The shortest path between the ends of an edge that is taken away, for every bit."""
    given = code(*of)
    checks = matrix(given)
    bits = [set(np.flatnonzero(column).tolist()) for column in checks.T]
    rows = [set(np.flatnonzero(row).tolist()) for row in checks]
    shortest = 99
    for start in range(0, len(bits), given.circulant):
        for first in bits[start]:
            seen, edge, length = {first}, {first}, 1
            while length < shortest:
                near = {bit for check in edge for bit in rows[check]} - {start}
                if length > 1 and any(start in rows[check] for check in edge - {first}):
                    shortest = length + 1
                    break
                edge = {check for bit in near for check in bits[bit]} - seen
                seen |= edge
                length += 2
    assert given.girth == shortest


@pytest.mark.parametrize("backend, isa", BACKENDS)
def test_words_without_an_error_need_no_iteration(backend, isa, rng):
    kernel = Ldpc(backend, isa)
    words = kernel.encode(rng.integers(0, 256, (2, 4096), np.uint8))
    done = kernel.decode(words)
    assert (done.iterations == 0).all() and (done.flips == 0).all()
    assert (done.outcome == CORRECT).all() and (done.words == words).all()


def test_a_wrong_crc_is_not_silent(rng):
    """A code word whose data and CRC do not fit together: the parity is right, the word is not."""
    outcomes = []
    for backend, isa in BACKENDS:
        kernel = Ldpc(backend, isa, code(24, 64, 3))
        two = kernel.encode(np.array([[1] * 24, [2] * 24], np.uint8))
        zero = kernel.encode(np.zeros(24, np.uint8))
        linear = two[0] ^ two[1] ^ zero  # CRC-32C is affine: this one is right
        assert kernel.decode(linear).outcome[0] == CORRECT
        wrong = two[0] ^ two[1]  # of data 3, with the CRC of none
        done = kernel.decode(wrong)
        outcomes.append(int(done.outcome[0]))
        assert not kernel.satisfied(wrong).any()
    assert set(outcomes) == {WRONG_CRC}


def test_every_single_error_and_pair_is_corrected(rng, counts):
    """Of a small code: each bit, and random pairs."""
    kernel = Ldpc(of=code(100, 256, 2))
    word = kernel.encode(rng.integers(0, 256, 100, np.uint8))
    bits = 8 * word.size
    ones = np.packbits(np.eye(bits, dtype=np.uint8), axis=1, bitorder="little")
    assert (kernel.decode(word ^ ones).words == word).all()
    for flips in (0, 10):
        pick = rng.integers(0, bits, (2, counts(2000, 50_000)))
        done = kernel.decode(word ^ ones[pick[0]] ^ ones[pick[1]], flips=flips)
        assert (done.words == word).all()


@pytest.mark.timeout(1800)
def test_the_words_of_the_page_on_errors_fail(counts):
    """As many of a million as the page says, and with small counts none of a thousand."""
    text = (Path(__file__).parents[2] / "docs" / "errors.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "words = 1_000 " in block and "million\nrandom words at 6e-3 three failed" in text
    exec(block.replace("words = 1_000 ", f"words = {counts(1_000, 1_000_000)} "), {})


def test_frame_errors_of_hard_and_soft_input(counts):
    """Few fail where the code is good, most fail past it, and more reads help; the full counts
    resolve 1e-3. Fails if min-sum were not scaled: that fails at 7e-3."""
    kernel = get("ldpc")
    frames = counts(150, 4000)
    good = frame_errors(kernel, 7e-3, 1, frames, seed=1)
    assert good.high < counts(0.03, 2e-3) and good.silent == 0, good
    past = frame_errors(kernel, 1e-2, 1, counts(100, 400), seed=1)
    assert past.low > 0.5 and past.silent == 0, past
    two = frame_errors(kernel, 1e-2, 2, counts(100, 1000), seed=1)
    three = frame_errors(kernel, 1.2e-2, 3, counts(100, 1000), seed=1)
    assert two.high < 0.06 and three.high < 0.06, (two, three)
    assert 1 < good.iterations < past.iterations <= 20


def curve():
    """Rows of the curve in docs/kernels.md: reads, raw bit error rate, frames, failed, the rest."""
    text = (Path(__file__).parents[2] / "docs/kernels.md").read_text()
    table = text.split("<!-- ldpc curve -->\n")[1].split("<!-- end -->")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    return [
        (int(a), float(b), int(c.replace(",", "")), int(d.replace(",", "")), *rest)
        for a, b, c, d, *rest in rows
    ]


def test_the_page_has_the_points_that_validate_measures():
    assert [row[:3] for row in curve()] == list(POINTS)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("row", curve(), ids=lambda row: f"{row[0]}-{row[1]:g}")
def test_the_curve_of_the_page(row, scale):
    """Full counts decode all its frames again, down to a rate of 1e-4; small counts decode others,
    and both intervals have a rate in common."""
    reads, raw_ber, frames, failed, rate, bounds, iterations, *models = row
    now, before = limits().get(reads), {1: 278, 3: 417}.get(reads)
    for model, limit in zip(models, (now, before), strict=True):
        assert model == ("" if limit is None else f"{codeword_failure(32768, limit, raw_ber):.2e}")
    low, high = interval(failed, frames)
    assert (rate, bounds) == (f"{failed / frames:.2e}", f"{low:.1e} .. {high:.1e}")
    if scale == "full":
        again = frame_errors(get("ldpc"), raw_ber, reads, frames, seed=1)
        assert (again.failed, again.silent) == (failed, 0)
        assert f"{again.iterations:.2f}" == iterations
    else:
        few = frame_errors(get("ldpc"), raw_ber, reads, 100, seed=2)
        assert few.low <= high and low <= few.high and few.silent == 0, few
        assert few.iterations == pytest.approx(float(iterations), rel=0.15)


def test_intervals_between_reads():
    """Probabilities of one read are the raw bit error rate's; of more, they have its sum."""
    assert intervals(0.01, 1)[0].tolist() == [0.99, 0.01]
    zero, messages = intervals(0.01, 3)
    assert zero[2:].sum() == pytest.approx(0.01) and zero.sum() == pytest.approx(1)
    assert messages[0] == 16 == -messages[3] and 0 < messages[1] == -messages[2] < 8
    assert intervals(0.01, 2)[1].tolist() == [16, 0, -16]
    low, high = interval(0, 1000)
    assert low == 0 and high == pytest.approx(0.003682, abs=1e-5)
    assert interval(5, 1000) == pytest.approx((0.001625, 0.011630), abs=2e-5)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: code(circulant=1000), "circulant: 1000; must be one of 64,"),
        (lambda: code(0), "data_bytes: 0; must be from 1"),
        (lambda: code(seed=-1), "seed: -1; must be"),
        (lambda: Code(24, 64, np.zeros((4, 8), np.int32)), "parity columns is singular"),
        (lambda: Code(24, 64, np.zeros((3, 8), np.int32)), "must have 4 rows"),
        (lambda: Code(24, 64, np.full((4, 8), 64)), "64 to 64; must be from -1 to 63"),
        (lambda: Code(32, 64, code(24, 64, 3).shifts), "must be from 21 to 28 with 4 data"),
        (lambda: get("ldpc", form="torch"), "ldpc: form = 'torch': does not apply to this code"),
        (lambda: get("ldpc", circulants=64), "unknown argument of 'ldpc' 'circulants'; did you"),
        (lambda: get("ldpc", data_bytes=100, circulant=96), "circulant: 96; must be one of 64,"),
        (lambda: get("ldpc", circulant=64.0), "ldpc: circulant = 64.0; must be a whole number"),
        (lambda: get("ldpc", seed=[1]), "ldpc: seed = [1]; must be a whole number"),
        (lambda: get("ldpc", data_bytes=True), "ldpc: data_bytes = True; must be a whole number"),
        (lambda: get("ldpc").decode(np.zeros(4612, np.uint8), True), "iterations: True; must be"),
        (lambda: get("ldpc", backend="cuda"), "unknown backend 'cuda'"),
        (lambda: get("ldpc").encode(np.zeros(4095, np.uint8)), "shape (4095,); must be (n, 4096)"),
        (lambda: get("ldpc").decode(np.zeros(4096, np.uint8)), "shape (4096,); must be (n, 4612)"),
        (lambda: get("ldpc").decode(np.zeros(4612, np.int8)), "words: int8 (4612,); must be uint8"),
        (lambda: get("ldpc").decode(np.zeros(4612, np.uint8), 21), "iterations: 21; must be"),
        (lambda: get("ldpc").decode(np.zeros(4612, np.uint8), flips=-1), "flips: -1; must be"),
        (lambda: get("ldpc").decode_soft(np.full(36896, 40, np.int8)), "must be from -31 to 31"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, words):
    with pytest.raises(KernelError, match=re.escape(words)):
        call()


def test_get_has_the_code_that_it_is_asked_for():
    for backend, isa in BACKENDS:
        kernel = get("ldpc", backend, isa=isa, data_bytes=24, circulant=64, seed=3)
        assert kernel.code is code(24, 64, 3)
        assert (kernel.backend, kernel.isa) == (backend, isa)
    assert (code(24, 64, 3).shifts != code(24, 64, 4).shifts).any()


def test_a_column_without_circulants_is_named():
    shifts = code(24, 64, 3).shifts.copy()
    shifts[1, 2] = -1
    with pytest.raises(KernelError, match="column 2 has 3 shifts"):
        Code(24, 64, shifts)


def test_any_matrix_that_is_not_singular(rng, counts):
    """Parity columns of any shifts, three or four in each: a determinant of many terms."""
    regular = 0
    for _ in range(counts(8, 60)):
        shifts = rng.integers(0, 64, (4, 8))
        for column in rng.permutation(4)[: rng.integers(1, 4)]:
            shifts[rng.integers(0, 4), 4 + column] = -1
        full = matrix(SimpleNamespace(shifts=shifts, circulant=64, columns=8))
        if rank(full[:, 256:]) < 256:
            with pytest.raises(KernelError, match="parity columns is singular"):
                Ldpc(of=Code(24, 64, shifts))
            continue
        regular += 1
        of = Code(24, 64, shifts)
        data = rng.integers(0, 256, (3, 24), np.uint8)
        words = Ldpc("numpy", of=of).encode(data)
        for word in words:
            bits = columns_of(of, word).reshape(-1)
            assert not (matrix(of).astype(int) @ bits % 2).any()
        for backend, isa in BACKENDS:
            kernel = Ldpc(backend, isa, of)
            assert (kernel.encode(data) == words).all() and kernel.satisfied(words).all()
            assert not kernel.satisfied(words ^ np.eye(1, of.word_bytes, 5, dtype=np.uint8)).any()
    assert 0 < regular < counts(8, 60)


def test_bad_input_of_the_curve_is_named():
    wrong = [((0.6, 1, 9), "0.6"), ((0.1, 4, 9), "reads = 4"), ((0.1, 1, 0), "frames = 0")]
    for arguments, words in wrong:
        with pytest.raises(InputError, match=re.escape(words)):
            frame_errors(get("ldpc"), *arguments, seed=1)
