"""Lines of text as columns: token search and decoding of numbers and words on whole arrays.

This module owns Table (the rows and tokens of one piece of a file), Column, and the one-line error
with file, line, column, value and valid values. It does not own formats.
Source: eight digits at a time in a 64-bit word, D. Lemire, "Quickly parsing eight digits" (2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ondie.traces.errors import TraceError
from ondie.traces.textfile import AFTER, BEFORE, U8

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

INT64_MAX = 2**63 - 1
MOST_DIGITS = 19  # digits of 2**63 - 1
MOST_NAME = 4096  # bytes; the longest path on Linux

_NEWLINE, _RETURN, _SPACE, _COMMA, _POINT = 10, 13, 32, 44, 46
# For a word whose last d bytes belong to the token: the bits to keep, and '0' for the others.
_KEEP = np.array([(2**64 - 1) >> (8 * (8 - d)) << (8 * (8 - d)) for d in range(9)], np.uint64)
_FILL = ~_KEEP & np.uint64(0x3030303030303030)
# For a word whose first d bytes belong to the token: the bits to keep.
_FIRST = np.array([(1 << (8 * d)) - 1 for d in range(9)], np.uint64)


class Table:
    """The lines of one piece of a text file, split into tokens.

    text: bytes with their padding (textfile.pieces). line: number of the first line. Tokens are
    separated by runs of blanks or, if `comma` is True, by single commas. Row i is a line with the
    tokens first[i] to first[i] + count[i] - 1. start and end (int64) are the offsets of each token
    in text.
    """

    def __init__(self, source: str, line: int, text: U8, comma: bool = False) -> None:
        self.source, self.line, self.text = source, line, text
        #: Unaligned 8-byte words, one starting at each byte.
        self.words: U64 = np.ndarray((len(text) - 7,), "<u8", text.data, strides=(1,))
        body = text[:-AFTER]
        newlines = np.flatnonzero(body[BEFORE:] == _NEWLINE) + BEFORE
        if comma:
            self.end: I64 = np.flatnonzero((body == _NEWLINE) | (body == _COMMA))[BEFORE - 1 :]
            self.start: I64 = self.end[:-1] + 1
            self.end = self.end[1:]
            last = np.searchsorted(self.end, newlines)
            self.end[last] -= text[self.end[last] - 1] == _RETURN
        else:
            blank = body <= _SPACE
            edges = np.flatnonzero(blank[1:] != blank[:-1]) + 1
            self.start, self.end = edges[0::2], edges[1::2]
            last = np.searchsorted(self.start, newlines) - 1
        #: Number of tokens up to the end of each row.
        after = last + 1
        self.first: I64 = np.concatenate(([0], after[:-1])).astype(np.int64)
        self.count: I64 = after - self.first
        self.rows = len(newlines)

    def skip(self, rows: int) -> None:
        """Drop the first ``rows`` rows (lines) of the table."""
        self.line += rows
        self.rows -= rows
        self.first, self.count = self.first[rows:], self.count[rows:]

    def lines(self, rows: I64 | None = None) -> I64:
        """Return the line numbers of ``rows`` (default: all rows) in the file."""
        return self.line + (np.arange(self.rows) if rows is None else rows)

    def shown(self, row: int) -> str:
        """Return the text of a row, with single blanks between its tokens."""
        at = int(self.first[row])
        tokens = range(at, at + int(self.count[row]))
        return " ".join(self.token(i) for i in tokens)

    def token(self, i: int) -> str:
        """Return token ``i`` as text."""
        return bytes(self.text[self.start[i] : self.end[i]]).decode("utf-8", "replace")

    def bad(self, row: int, what: str) -> TraceError:
        """Return a TraceError with file and line, followed by ``what``, the text of the error."""
        return TraceError(f"{self.source}: line {self.line + int(row)}: {what}")

    def expect(self, columns: Sequence[str]) -> None:
        """Raise TraceError unless each row has one token for each of the named columns."""
        wrong = self.count != len(columns)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            shown = self.shown(row)
            have = f"{_short(shown)} has {self.count[row]} columns" if shown else "is empty"
            raise self.bad(row, f"{have}; must have {len(columns)}: {' '.join(columns)}")

    def column(self, name: str, at: int, rows: I64 | None = None) -> Column:
        """Return the column of the tokens at position `at` in each of the rows (default: all rows).

        Each of these rows must have more than `at` tokens.
        """
        tokens = (self.first if rows is None else self.first[rows]) + at
        return Column(self, name, rows, self.start[tokens], self.end[tokens])


@dataclass(frozen=True)
class Column:
    """The tokens of one column in selected rows of a table.

    name: name of the column in errors. rows: numbers of the rows, None for all. start, end: offsets
    of the tokens in the text.
    """

    table: Table
    name: str
    rows: I64 | None
    start: I64
    end: I64

    def bad(self, i: int, right: str) -> TraceError:
        """Return a TraceError that names file, line, column, the value of entry `i` and valid
        values.

        right: phrase with the valid values.
        """
        row = i if self.rows is None else int(self.rows[i])
        return self.table.bad(row, f"{self.name} is {_short(self.text(i))}: {right}")

    def text(self, i: int) -> str:
        """Return entry `i` as text."""
        return bytes(self.table.text[self.start[i] : self.end[i]]).decode("utf-8", "replace")

    def integers(self, least: int = 0, most: int = INT64_MAX) -> I64:
        """Convert tokens of decimal digits to int64.

        Raises TraceError for other tokens, and for numbers outside `least` .. `most`.
        """
        length = self.end - self.start
        bad = (length < 1) | (length > MOST_DIGITS)
        longest = min(int(length.max(initial=0)), MOST_DIGITS)
        total = np.zeros(len(length), np.uint64)
        for done in range(0, longest, 8):
            digits = np.clip(length - done, 0, 8)
            word = self.table.words[self.end - (done + 8)]
            word &= _KEEP[digits]
            word |= _FILL[digits]
            value, wrong = _eight_digits(word)
            bad |= wrong
            total += value * np.uint64(10**done)
        bad |= (total > most) | (total < least)
        if bad.any():
            raise self.bad(int(np.flatnonzero(bad)[0]), "must be a whole number from "
                           f"{least} to {most}")  # fmt: skip
        return total.view(np.int64)

    def decimals(self, digits: int) -> I64:
        """Convert tokens with exactly `digits` decimals to int64 in units of 10**-digits.

        With two digits, 1.25 becomes 125. Raises TraceError for other tokens.
        """
        point = self.end - digits - 1
        bad = (point <= self.start) | (self.table.text[np.maximum(point, 0)] != _POINT)
        if bad.any():
            raise self.bad(int(np.flatnonzero(bad)[0]), f"must have exactly {digits} decimals")
        most = INT64_MAX // 10**digits - 1
        whole = Column(self.table, self.name, self.rows, self.start, point).integers(most=most)
        part = Column(self.table, self.name, self.rows, point + 1, self.end).integers()
        return whole * 10**digits + part

    def words(self, known: Mapping[str, int]) -> npt.NDArray[np.int8]:
        """Convert each token (a word) to its code in `known`, int8.

        The words in `known` have at most 8 bytes. Raises TraceError for a token that is not in
        `known`.
        """
        codes = np.full(len(self.start), -1, np.int8)
        for word, code in known.items():
            codes[self.equal(word)] = code
        if (codes < 0).any():
            *most, last = map(repr, known)
            raise self.bad(int(np.argmax(codes < 0)), f"must be {', '.join(most)} or {last}")
        return codes

    def equal(self, word: str) -> npt.NDArray[np.bool_]:
        """Return for each entry whether its token equals `word`, which has at most 8 bytes."""
        raw = word.encode()
        key = self.table.words[self.start] & _FIRST[len(raw)]
        return (key == int.from_bytes(raw, "little")) & (self.end - self.start == len(raw))

    def kinds(self) -> tuple[list[str], I64]:
        """Return the distinct tokens, and for each entry the index of its token in the list of
        distinct tokens.

        Raises TraceError for a token of more than 8 bytes.
        """
        length = self.end - self.start
        key = self.table.words[self.start] & _FIRST[np.minimum(length, 8)]
        if (length > 8).any():
            raise self.bad(int(np.argmax(length > 8)), "must have at most 8 characters")
        found, first, codes = np.unique(key, return_index=True, return_inverse=True)
        return [self.text(int(i)) for i in first], codes.astype(np.int64)

    def names(self, known: dict[str, int]) -> npt.NDArray[np.int32]:
        """Convert each token (a name) to its number in `known`, int32.

        A new name is added to `known` with the next number. Raises TraceError for an invalid name.
        """
        length = self.end - self.start
        if (length > MOST_NAME).any() or (length < 1).any():
            wrong = (length > MOST_NAME) | (length < 1)
            raise self.bad(int(np.argmax(wrong)), f"must be a name of 1 to {MOST_NAME} bytes")
        parts = [length.view(np.uint64)]
        for done in range(0, int(length.max(initial=0)), 8):
            digits = np.clip(length - done, 0, 8)
            at = np.minimum(self.start + done, len(self.table.words) - 1)
            parts.append(self.table.words[at] & _FIRST[digits])
        ids = np.zeros(len(length), np.int64)
        for part in parts:
            if (part == part[:1]).all():
                continue
            values, inverse = np.unique(part, return_inverse=True)
            ids = np.unique(ids * len(values) + inverse, return_inverse=True)[1]
        _, first = np.unique(ids, return_index=True)
        codes = np.zeros(len(first), np.int32)
        for i in np.argsort(first):
            try:
                name = bytes(self.table.text[self.start[first[i]] : self.end[first[i]]]).decode()
            except UnicodeDecodeError:
                raise self.bad(int(first[i]), "must be a name in UTF-8") from None
            codes[i] = known.setdefault(name, len(known))
        return codes[ids]


def _eight_digits(word: U64) -> tuple[U64, npt.NDArray[np.bool_]]:
    """Convert 8-byte words of decimal digits to numbers.

    The first character is in the lowest byte. Returns the numbers, and a mask of words with other
    characters.
    """
    high = np.uint64(0xF0F0F0F0F0F0F0F0)
    over = (word + np.uint64(0x0606060606060606)) & high  # ':' to '?' change the high nibble 3
    wrong = ((word & high) | (over >> np.uint64(4))) != np.uint64(0x3333333333333333)
    pairs = (word & np.uint64(0x0F0F0F0F0F0F0F0F)) * np.uint64(10 << 8 | 1)
    pairs = (pairs >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)  # two digits in each 16 bits
    fours = (pairs * np.uint64(100 << 16 | 1)) >> np.uint64(16)
    fours &= np.uint64(0x0000FFFF0000FFFF)  # four digits in each 32 bits
    return (fours * np.uint64(10000 << 32 | 1)) >> np.uint64(32), wrong


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
