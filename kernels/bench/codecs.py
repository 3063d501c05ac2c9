"""Contenders of `ondie bench kernels --op bch` and `--op ldpc`: error-correcting codes.

This module owns the selection of the measured codes, the test words and the measured calls. It does
not own the timing (run.py) or the codes (kernels/bch.py, kernels/ldpc.py).
Source: this project; bchlib 2.1, the BCH code of the Linux kernel with a Python interface that
processes one word per call.

BCH decoding corrects words in place, in this project and in bchlib. Each call therefore works on
copies of the same words, and its time includes the copying. This project's BCH words have a CRC
only if the name of the contender contains "CRC". LDPC words always have a CRC. LDPC decoding
returns new words and does not change its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np

from ondie.kernels import backends, isas
from ondie.kernels.bch import Bch, get
from ondie.kernels.crc import crc32c
from ondie.kernels.ldpc import MOST, Ldpc
from ondie.kernels.ldpc_code import code

OTHER = "bchlib"
WORDS = 256
"""Number of BCH code words per timed call; their data and tables fit into the second-level
cache."""
LDPC_WORDS = 32
"""Number of LDPC code words per timed call, fewer than WORDS because an LDPC word is longer."""
CHECKSUM = "crc-32c"
"""Name of the contender that only computes the CRC-32C of the data of all words. It is the anchor
of LDPC decoding with one call per word."""
Call = Callable[[], object]


class CodeCase(Protocol):
    """Interface of an error-correcting code that the bench measures, with its timed operations."""

    @property
    def words_per_call(self) -> int:
        """Number of code words that one timed call processes."""

    @property
    def name(self) -> str:
        """Name of the code in the result rows of the bench."""

    def operations(self) -> Iterator[tuple[str, dict[str, Call]]]:
        """Yield the name of each timed operation and its contenders by name."""


@dataclass(frozen=True)
class BchCase:
    """A BCH code that the bench measures, with its timed operations."""

    m: int
    t: int
    data_bytes: int
    words_per_call: int = WORDS

    @property
    def name(self) -> str:
        """Name of the code in the result rows of the bench."""
        return f"bch m={self.m} t={self.t} {self.data_bytes} B"

    @property
    def wrong(self) -> tuple[int, ...]:
        """Numbers of bit errors per word for which decoding is measured."""
        return tuple(sorted({1, min(8, self.t), self.t}))

    def codes(self) -> dict[str, Bch]:
        """Return the code by contender name: with CRC on the backend "c", and without CRC on the
        backend "c" with each instruction set, widest instruction set first, and on "numba"."""
        shape = (self.m, self.t, self.data_bytes)
        found = {}
        if "c" in backends():
            found["c, with CRC"] = get(*shape, True, "c")
        for isa in reversed(isas()):
            found[f"c, {isa}"] = get(*shape, False, "c", isa)
        found["numba"] = get(*shape, False, "numba")
        return found

    @cached_property
    def words(self) -> np.ndarray:
        """Random data of the WORDS code words, uint8[WORDS, data_bytes]."""
        return np.random.default_rng(0).integers(0, 256, (WORDS, self.data_bytes), np.uint8)

    def damaged(self, wrong: int) -> np.ndarray:
        """Return the data of all words with ``wrong`` bits of each word inverted."""
        rng, data = np.random.default_rng(wrong), self.words.copy()
        for row in data:
            places = rng.choice(8 * self.data_bytes, wrong, replace=False)
            np.bitwise_xor.at(row, places // 8, (1 << places % 8).astype(np.uint8))
        return data

    def operations(self) -> Iterator[tuple[str, dict[str, Call]]]:
        """Yield each operation's name and its contenders by name; a call processes WORDS words."""
        codes = self.codes()
        other = self._other()
        checks = {name: code.encode(self.words) for name, code in codes.items()}
        encode = {name: self._encode(code) for name, code in codes.items()}
        clean = {
            name: lambda code=code, name=name: code.check(self.words, checks[name])
            for name, code in codes.items()
        }
        yield "encode", encode | ({} if other is None else {OTHER: other.encode})
        yield "clean check", clean | ({} if other is None else {OTHER: other.check})
        for wrong in self.wrong:
            data = self.damaged(wrong)
            calls = {name: self._decode(code, data, checks[name]) for name, code in codes.items()}
            more = {} if other is None else {OTHER: other.decode(data)}
            yield f"decode {wrong} wrong bit{'s' * (wrong > 1)}", calls | more

    def _encode(self, code: Bch) -> Call:
        """Return a function that encodes all words with ``code``."""
        check = np.empty((WORDS, code.check_bytes), np.uint8)
        return lambda: code.encode(self.words, check)

    def _decode(self, code: Bch, data: np.ndarray, check: np.ndarray) -> Call:
        """Return a function that corrects copies of ``data`` and ``check``. The function returns
        the results of `Bch.decode`."""
        work, work_check = data.copy(), check.copy()

        def decode() -> np.ndarray:
            work[:] = data
            work_check[:] = check
            return code.decode(work, work_check)

        return decode

    def _other(self) -> _Bchlib | None:
        """Return bchlib's implementation of the code, or None if bchlib is not installed."""
        return _Bchlib(self) if find_spec(OTHER) is not None else None


class _Bchlib:
    """The timed operations of bchlib for a BCH code."""

    def __init__(self, case: BchCase) -> None:
        self._code: Any = import_module(OTHER).BCH(case.t, m=case.m)
        self._data = [row.tobytes() for row in case.words]
        self._check = [bytes(self._code.encode(row)) for row in self._data]

    def encode(self) -> None:
        """Encode the data of all words with bchlib."""
        for row in self._data:
            self._code.encode(row)

    def check(self) -> None:
        """Check all words, which have no bit errors, with bchlib's decoder."""
        for row, check in zip(self._data, self._check, strict=True):
            self._code.decode(row, check)

    def decode(self, data: np.ndarray) -> Call:
        """Return a function that corrects copies of ``data`` with bchlib and returns bchlib's
        results."""
        rows = [row.tobytes() for row in data]

        def decode() -> list[int]:
            results = []
            for row, check in zip(rows, self._check, strict=True):
                work, work_check = bytearray(row), bytearray(check)
                results.append(self._code.decode(work, work_check))
                self._code.correct(work, work_check)
            return results

        return decode


@dataclass(frozen=True)
class LdpcCase:
    """An LDPC code that the bench measures, with its timed operations."""

    data_bytes: int
    circulant: int
    hard: tuple[float, ...]
    """Raw bit error rates at which hard-input decoding (one read) is timed."""
    soft: tuple[float, ...]
    """Raw bit error rates at which soft-input decoding (three reads) is timed."""
    words_per_call: int = LDPC_WORDS
    alone: tuple[float, ...] = ()
    """Raw bit error rates at which hard-input decoding with one call per word is timed."""

    @property
    def name(self) -> str:
        """Name of the code in the result rows of the bench."""
        found = code(self.data_bytes, self.circulant)
        return f"ldpc {self.data_bytes} B rate {found.rate:.3f} girth {found.girth}"

    def codes(self) -> dict[str, Ldpc]:
        """Return one implementation of the code for each contender, by name: backend "c" with each
        instruction set, starting with the widest, then backend "numba"."""
        shape = code(self.data_bytes, self.circulant)
        found = {f"c, {isa}": Ldpc("c", isa, shape) for isa in reversed(isas())}
        return found | {"numba": Ldpc("numba", None, shape)}

    @cached_property
    def words(self) -> np.ndarray:
        """Code words of random data, uint8[words_per_call, word_bytes]."""
        size = (self.words_per_call, self.data_bytes)
        data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
        return Ldpc(of=code(self.data_bytes, self.circulant)).encode(data)

    def damaged(self, rate: float) -> np.ndarray:
        """Return the words with each bit inverted with probability ``rate``."""
        rng = np.random.default_rng(int(rate * 1e6))
        wrong = rng.random((*self.words.shape[:-1], 8 * self.words.shape[-1])) < rate
        return self.words ^ np.packbits(wrong, axis=-1, bitorder="little")

    def messages(self, rate: float) -> np.ndarray:
        """Return the messages of three noisy reads of the words, int8[words_per_call, bits].

        The cell levels are +1 for bit 0 and -1 for bit 1, with normal noise. The read at level 0
        has the raw bit error rate ``rate``. The other two reads are at levels -d and d. The level
        of a cell with bit 0 is below -d with probability ``rate`` / 3. A cell with a level below -d
        or above d gets a stronger message.
        """
        rng, mean = np.random.default_rng(int(rate * 1e6)), -NormalDist().inv_cdf(rate)
        distance = -NormalDist(mean).inv_cdf(rate / 3)
        level = np.where(np.unpackbits(self.words, axis=1, bitorder="little") == 1, -mean, mean)
        level += rng.standard_normal(level.shape)
        strong, weak = MOST // 2, MOST // 8
        return np.where(np.abs(level) > distance, strong, weak).astype(np.int8) * np.where(
            level < 0, np.int8(-1), np.int8(1)
        )

    def operations(self) -> Iterator[tuple[str, dict[str, Call]]]:
        """Yield the name of each timed operation and its contenders by name. Each call processes
        words_per_call words.

        Calls return the code words or a `kernels.ldpc.Decoded`. In the operations "decode alone", a
        call decodes its words one by one and returns a list of `Decoded`. The times of these
        operations are compared with the contender CHECKSUM (CRC-32C of the data). Its time does not
        depend on the code.
        """
        codes, data = self.codes(), np.ascontiguousarray(self.words[:, : self.data_bytes])

        def encode(kernel: Ldpc) -> Call:
            return lambda: kernel.encode(data)

        def hard(kernel: Ldpc, words: np.ndarray) -> Call:
            return lambda: kernel.decode(words)

        def soft(kernel: Ldpc, messages: np.ndarray) -> Call:
            return lambda: kernel.decode_soft(messages)

        def alone(kernel: Ldpc, words: np.ndarray) -> Call:
            return lambda: [kernel.decode(word) for word in words]

        yield "encode", {name: encode(kernel) for name, kernel in codes.items()}
        for rate in self.hard:
            read = self.damaged(rate)
            what = f"decode at RBER {rate:g}" if rate else "clean check"
            yield what, {name: hard(kernel, read) for name, kernel in codes.items()}
        for rate in self.soft:
            messages = self.messages(rate)
            yield (
                f"decode three reads at RBER {rate:g}",
                {name: soft(kernel, messages) for name, kernel in codes.items()},
            )
        for rate in self.alone:
            read = self.damaged(rate)
            calls = {name: alone(kernel, read) for name, kernel in codes.items()}
            anchor: dict[str, Call] = {CHECKSUM: lambda: crc32c(data.reshape(-1))}
            yield f"decode alone at RBER {rate:g}", anchor | calls


CASES: dict[str, tuple[CodeCase, ...]] = {
    "bch": (BchCase(14, 40, 1024), BchCase(14, 60, 1024), BchCase(13, 8, 512)),
    "ldpc": (LdpcCase(4096, 1024, (0.0, 1e-3, 4e-3, 7e-3), (1e-2,), alone=(4e-3,)),),
}
"""Codes that `ondie bench kernels` measures for --op bch and for --op ldpc."""
UNIT = "us/word"
