"""Contenders of `ondie bench kernels --op bch`: error correcting codes, word by word or in batches.

This module owns the codes that are measured, the words and the calls. It does not own the timing
(run.py) or the codes (kernels/bch.py).
Source: this project. bchlib 2.1 is the BCH code of the Linux kernel with a Python interface of one
word at a time.

Every call works on copies of the same words, so the time includes a copy of a word. Both programs
correct the data. This project's words have no CRC unless the contender says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from ondie.kernels import backends, isas
from ondie.kernels.bch import Bch, get

OTHER = "bchlib"
WORDS = 256
"""Words of a call: their data and tables fit into the second-level cache."""
Call = Callable[[], object]


@dataclass(frozen=True)
class CodeCase:
    """A code, and what is measured on it."""

    m: int
    t: int
    data_bytes: int

    @property
    def name(self) -> str:
        """Name of the case in rows."""
        return f"bch m={self.m} t={self.t} {self.data_bytes} B"

    @property
    def wrong(self) -> tuple[int, ...]:
        """Numbers of wrong bits of the words to decode."""
        return tuple(sorted({1, min(8, self.t), self.t}))

    def codes(self) -> dict[str, Bch]:
        """Return the codes by the name of the contender, the widest instruction set first."""
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
        """Data of the words, uint8[WORDS, data_bytes]."""
        return np.random.default_rng(0).integers(0, 256, (WORDS, self.data_bytes), np.uint8)

    def damaged(self, wrong: int) -> np.ndarray:
        """Return the data of the words with ``wrong`` bits inverted in each."""
        rng, data = np.random.default_rng(wrong), self.words.copy()
        for row in data:
            places = rng.choice(8 * self.data_bytes, wrong, replace=False)
            np.bitwise_xor.at(row, places // 8, (1 << places % 8).astype(np.uint8))
        return data

    def operations(self) -> Iterator[tuple[str, dict[str, Call]]]:
        """Yield each operation and its contenders by name; a call processes WORDS words."""
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
        """Return a function that encodes all words."""
        check = np.empty((WORDS, code.check_bytes), np.uint8)
        return lambda: code.encode(self.words, check)

    def _decode(self, code: Bch, data: np.ndarray, check: np.ndarray) -> Call:
        """Return a function that corrects copies of all words, and returns the results."""
        work, work_check = data.copy(), check.copy()

        def decode() -> np.ndarray:
            work[:] = data
            work_check[:] = check
            return code.decode(work, work_check)

        return decode

    def _other(self) -> _Bchlib | None:
        """Return bchlib's code, or None if it is not installed."""
        return _Bchlib(self) if find_spec(OTHER) is not None else None


class _Bchlib:
    """The calls of bchlib for a case."""

    def __init__(self, case: CodeCase) -> None:
        self._code: Any = import_module(OTHER).BCH(case.t, m=case.m)
        self._data = [row.tobytes() for row in case.words]
        self._check = [bytes(self._code.encode(row)) for row in self._data]

    def encode(self) -> None:
        """Encode all words."""
        for row in self._data:
            self._code.encode(row)

    def check(self) -> None:
        """Check all words."""
        for row, check in zip(self._data, self._check, strict=True):
            self._code.decode(row, check)

    def decode(self, data: np.ndarray) -> Call:
        """Return a function that corrects copies of ``data``, and returns the results."""
        rows = [row.tobytes() for row in data]

        def decode() -> list[int]:
            results = []
            for row, check in zip(rows, self._check, strict=True):
                work, work_check = bytearray(row), bytearray(check)
                results.append(self._code.decode(work, work_check))
                self._code.correct(work, work_check)
            return results

        return decode


CASES = {"bch": (CodeCase(14, 40, 1024), CodeCase(14, 60, 1024), CodeCase(13, 8, 512))}
"""Cases of each code."""
UNIT = "us/word"
