"""Are the tokens, numbers and names of whole columns those that Python finds line by line?"""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.traces.columns import INT64_MAX, Table
from ondie.traces.errors import TraceError
from ondie.traces.textfile import _padded, pieces

TOKENS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"],
                               exclude_characters=","), max_size=25)  # fmt: skip


def table(lines: list[str], comma: bool = False) -> Table:
    text = "".join(f"{line}\n" for line in lines)
    return Table("file", 1, _padded(text.encode()), comma)


def tokens(t: Table) -> list[list[str]]:
    return [[t.token(int(t.first[i]) + j) for j in range(int(t.count[i]))] for i in range(t.rows)]


@given(st.lists(st.lists(TOKENS, max_size=6), max_size=8), st.sampled_from([" ", "\t", "  \t "]))
def test_tokens_between_blanks(rows, blank):
    lines = [blank.join(row) for row in rows]
    assert tokens(table(lines)) == [re.split(r"[ \t]+", x.strip(" \t")) if x.strip(" \t") else []
                                    for x in lines]  # fmt: skip


@given(st.lists(st.lists(TOKENS, min_size=1, max_size=6), max_size=8), st.booleans())
def test_tokens_between_commas(rows, windows):
    lines = [",".join(row) for row in rows]
    ends = [line + "\r" * windows for line in lines]
    assert tokens(table(ends, comma=True)) == [line.split(",") for line in lines]


DIGITS = st.integers(0, INT64_MAX).map(str) | st.from_regex(r"0{0,6}[0-9]{1,13}", fullmatch=True)


@given(st.lists(DIGITS, min_size=1))
def test_integers(numbers):
    column = table(numbers).column("number", 0)
    assert column.integers().tolist() == [int(x) for x in numbers]


@pytest.mark.parametrize("number", range(20))
def test_integers_of_each_length(number):
    text = "1234567890123456789"[:number] or "0"
    assert table([text]).column("n", 0).integers().tolist() == [int(text)]


BAD = ["-1", "+1", "1.5", "1e9", "0x10", "1_000", "12a", "a12", "1:3", "12/3", "\u0663", "1" * 20,
       str(2**63), str(2**64), "9" * 19, "123456789012345678a", "a234567890123456789"]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_integer_is_named_with_its_line(text):
    with pytest.raises(TraceError) as caught:
        table(["1", "22", text, "4"]).column("size", 0).integers()
    assert f"file: line 3: size is {text!r}: must be a whole number from 0 to" in str(caught.value)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=21))
def test_only_digits_are_integers(text):
    column = table([text]).column("n", 0)
    if re.fullmatch(r"[0-9]{1,19}", text) and int(text) <= INT64_MAX:
        assert column.integers().tolist() == [int(text)]
    else:
        with pytest.raises(TraceError):
            column.integers()


def test_least_and_most():
    column = table(["5", "9"]).column("n", 0)
    assert column.integers(5, 9).tolist() == [5, 9]
    with pytest.raises(TraceError, match=r"line 1: n is '5': must be a whole number from 6 to 9$"):
        column.integers(6, 9)
    with pytest.raises(TraceError, match=r"line 2: n is '9': must be a whole number from 5 to 8$"):
        column.integers(5, 8)


@given(st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1))
def test_decimals(whole, part):
    column = table([f"{whole}.{part:09d}"]).column("time", 0)
    assert column.decimals(9).tolist() == [whole * 10**9 + part]


@pytest.mark.parametrize("text", ["1.5", "1", ".000000001", "1,000000001", "1.0000000001", "-1.0",
                                  "1.00000000a", "99999999999.000000000"])  # fmt: skip
def test_what_has_no_nine_decimals(text):
    with pytest.raises(TraceError, match=r"line 2: time is '"):
        table(["0.000000000", text]).column("time", 0).decimals(9)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]),
                        min_size=1, max_size=40), min_size=1, max_size=40))  # fmt: skip
def test_names_are_numbered_in_order_of_appearance(names):
    known: dict[str, int] = {}
    codes = table(names).column("file", 0).names(known)
    assert list(known) == list(dict.fromkeys(names))
    assert [list(known)[c] for c in codes] == names


def test_names_keep_their_numbers_from_piece_to_piece():
    known = {"b": 0}
    assert table(["a", "b", "a"]).column("file", 0).names(known).tolist() == [1, 0, 1]


def test_names_that_share_their_first_bytes():
    names = ["/data/0000000001", "/data/0000000002", "/data/000000000", "/data/0000000001"]
    assert table(names).column("file", 0).names({}).tolist() == [0, 1, 2, 0]


def test_a_name_that_is_not_utf8():
    bad = Table("file", 1, _padded(b"a\n\xff\xfe\n"))
    with pytest.raises(TraceError, match=r"line 2: .*UTF-8"):
        bad.column("file", 0).names({})


def test_words():
    column = table(["read", "write", "datasync", "read"]).column("action", 0)
    known = {"read": 0, "write": 1, "datasync": 3}
    assert column.words(known).tolist() == [0, 1, 3, 0]
    for other in ("Read", "rea", "reads", "datasyncs", "data\u00e9"):
        with pytest.raises(TraceError, match=r"line 2: action is .*'read', 'write' or 'datasync'"):
            table(["read", other]).column("action", 0).words(known)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60), st.integers(1, 40))
def test_pieces_hold_each_line_once_with_its_number(tmp_path_factory, numbers, size):
    path = tmp_path_factory.getbasetemp() / "pieces.txt"
    path.write_text("".join(f"{x}\n" for x in numbers))
    found = []
    for line, text in pieces(path, max(size, 9)):
        t = Table(str(path), line, text)
        assert t.lines().tolist() == list(range(len(found) + 1, len(found) + 1 + t.rows))
        found += t.column("n", 0).integers().tolist()
    assert found == numbers


def test_rows_that_are_skipped_keep_the_numbers_of_the_rest():
    t = table(["head", "1", "x"])
    t.skip(1)
    with pytest.raises(TraceError, match=r"line 3: n is 'x'"):
        t.column("n", 0).integers()
    assert np.array_equal(t.lines(), [2, 3])
