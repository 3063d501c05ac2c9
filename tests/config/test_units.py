"""Do quantities survive the edge exactly, and is every bad one refused in one helpful line?"""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.units import (
    INT64_MAX,
    KINDS,
    InputError,
    exact,
    fmt_bytes,
    fmt_energy,
    fmt_rate,
    fmt_time,
    fmt_update_rate,
    kind_of,
    nearest,
    parse,
    parse_count,
    parse_ratio,
)

UNITS = [(kind.suffix, unit) for kind in KINDS.values() for unit in kind.units]


@pytest.mark.parametrize(
    ("suffix", "text", "value"),
    [
        ("ps", "45 us", 45_000_000),
        ("ps", "100ns", 100_000),
        ("ps", " 0.1 us ", 100_000),
        ("ps", "1e-3 s", 10**9),
        ("ps", "2.5\u00b5s", 2_500_000),
        ("ps", "0", 0),
        ("bytes", "16 KiB", 16384),
        ("bytes", "16 KB", 16000),
        ("bytes", "32 TB", 32 * 10**12),
        ("bytes", "0.5 KiB", 512),
        ("bytes_per_s", "7.3 GB/s", 7_300_000_000),
        ("bytes_per_s", "800 MT/s", 800_000_000),  # a byte per transfer: ONFI buses are 8 bits wide
        ("bytes_per_s", "10 Gbit/s", 1_250_000_000),
        ("bytes_per_s", "1.0000000006 GB/s", 1_000_000_001),  # 1000000000.6: rates round to nearest
        ("hz", "1.0 GHz", 10**9),
        ("params_per_s", "4 Gparam/s", 4 * 10**9),
        ("mw", "328.5 W", 328_500),
        ("fj_per_bit", "5.8 pJ/bit", 5800),
        ("fj", "3.7 pJ", 3700),
    ],
)
def test_parse(suffix, text, value):
    assert parse(text, KINDS[suffix], "key") == value


@given(st.sampled_from(sorted(KINDS)), st.integers(0, INT64_MAX))
def test_exact_text_parses_back(suffix, value):
    assert parse(exact(value, KINDS[suffix]), KINDS[suffix], "key") == value


@given(st.sampled_from(UNITS), st.integers(0, 10**6), st.integers(0, 3))
def test_every_unit_is_its_factor(pair, digits, places):
    """digits / 10**places in each unit is digits * factor / 10**places, or refused as a fraction"""
    kind = KINDS[pair[0]]
    value = Fraction(digits, 10**places) * kind.units[pair[1]]
    text = f"{digits // 10**places}.{digits % 10**places:0{places}d}" if places else str(digits)
    if value.denominator == 1 and value <= INT64_MAX:
        assert parse(f"{text} {pair[1]}", kind, "key") == value
    elif value <= INT64_MAX and not kind.rounds:
        with pytest.raises(InputError, match="not a whole number of"):
            parse(f"{text} {pair[1]}", kind, "key")


@pytest.mark.parametrize(
    ("suffix", "text", "words"),
    [
        ("ps", "45", ["has no unit", '"45 us"']),
        ("ps", "45 uss", ["unknown unit", "nearest: us"]),
        ("ps", "45 US", ["unknown unit", "nearest: us"]),
        ("ps", "45 KiB", ["is a size, not a time"]),
        ("ps", "-1 us", ["is too small"]),
        ("ps", "nan", ["is not a time", '"45 us"']),
        ("ps", "inf s", ["is not a time"]),
        ("ps", "", ["is not a time"]),
        ("ps", "us", ["is not a time"]),
        ("ps", "1,5 us", ["unknown unit"]),
        ("ps", "0.5 ps", ["not a whole number of ps", "nearest: 1 ps"]),
        ("ps", "1.0000004 us", ["not a whole number of ps", "nearest: 1 us"]),
        ("ps", "1e8 s", ["is too large", "9223372.036854775807 s (106 d)"]),
        ("ps", "107 d", ["is too large", "9223372.036854775807 s (106 d)"]),
        ("ps", "30 days", ["unknown unit", "nearest: d", "s, h, d"]),
        ("ps", "30 D", ["unknown unit", "nearest: d"]),
        ("ps", "1e999999999 s", ["is too large"]),
        ("ps", "1e-999999999 s", ["too small"]),
        ("bytes", "1 kb", ["unknown unit", "nearest: "]),
        ("bytes", "10 PiB.", ["unknown unit", "nearest: PiB"]),
        ("bytes", "8193 PiB", ["is too large"]),
        ("bytes_per_s", "3 Gb/s", ["GB/s for bytes, Gbit/s for bits"]),
        ("bytes_per_s", "0.1 B/s", ["rounds to 0"]),
        ("fj_per_bit", "5.8 pJ", ["is an energy, not an energy per bit"]),
        ("fj_per_bit", "5.8005 pJ/bit", ["not a whole number of fJ/bit"]),
        ("mw", "0.5 mW", ["not a whole number of mW"]),
        ("hz", "1 Ghz", ["nearest: GHz"]),
    ],
)
def test_bad_quantities(suffix, text, words):
    with pytest.raises(InputError) as caught:
        parse(text, KINDS[suffix], "flash.t_read")
    message = str(caught.value)
    assert message.startswith("flash.t_read: ") and "\n" not in message
    assert text in message
    for word in words:
        assert word in message


@given(st.sampled_from(sorted(KINDS)), st.text(max_size=12))
def test_any_text_is_a_number_or_one_line(suffix, text):
    try:
        assert 0 <= parse(text, KINDS[suffix], "key") <= INT64_MAX
    except InputError as error:
        assert str(error).startswith("key: ") and len(str(error).splitlines()) == 1


def test_hours_and_days():
    """Configurations have them, and print them; figures of reports are in seconds."""
    kind = KINDS["ps"]
    assert parse("30 d", kind, "key") == 30 * 86_400 * 10**12
    assert parse("1.5 h", kind, "key") == 5400 * 10**12
    assert exact(30 * 86_400 * 10**12, kind) == "30 d" and exact(600 * 10**12, kind) == "600 s"
    assert fmt_time(2 * 86_400 * 10**12) == "173000 s"


@pytest.mark.parametrize(("text", "value"), [("24", 24), ("1e9", 10**9), ("1_000", 1000), ("0", 0)])
def test_counts(text, value):
    assert parse_count(text, "key") == value


@pytest.mark.parametrize("text", ["-1", "1.5", "1e30", "1e-50", "eight", "8 x", "", "nan"])
def test_bad_counts(text):
    with pytest.raises(InputError, match="key: "):
        parse_count(text, "key")


def test_ratios():
    assert parse_ratio("0.07", "key") == 0.07
    assert parse_ratio("3.08/32.3", "key") == float(Fraction(308, 3230))
    for text in ("1/0", "-0.1", "nan", "1/2/3", "7 %", "1e99", ""):
        with pytest.raises(InputError, match="key: "):
            parse_ratio(text, "key")


@pytest.mark.parametrize(
    ("formatted", "text"),
    [
        (fmt_time(45_600_000), "45.6 us"),
        (fmt_time(999_400), "999 ns"),
        (fmt_time(999_500), "1.00 us"),  # 999.5 ns rounds up and moves to the next unit
        (fmt_time(9_995_000), "10.0 us"),
        (fmt_time(12_345 * 10**12), "12300 s"),
        (fmt_time(0), "0 ps"),
        (fmt_time(-45_600_000), "-45.6 us"),
        (fmt_bytes(1_230_000), "1.23 MB"),
        (fmt_bytes(16384, binary=True), "16.0 KiB"),
        (fmt_bytes(1), "1.00 B"),
        (fmt_rate(7_300_000_000), "7.30 GB/s"),
        (fmt_rate(0.5), "0.5 B/s"),
        (fmt_energy(2_475_000_000), "2.48 uJ"),  # 2.475, half to even
        (fmt_update_rate(498_200_000), "498 Mparam/s"),
    ],
)
def test_report_formats(formatted, text):
    assert formatted == text


@given(st.integers(1, INT64_MAX))
def test_report_formats_lose_at_most_half_a_third_digit(value):
    digits, unit = fmt_time(value).split()
    shown = Fraction(digits) * KINDS["ps"].units[unit]
    assert abs(shown - value) <= Fraction(5, 1000) * value
    assert len(digits.replace(".", "").strip("0")) <= 3


def test_kinds_of_attributes():
    assert kind_of("nand_read_fj_per_bit").name == "energy per bit"
    assert kind_of("pe_add_fj").name == "energy"
    assert kind_of("bus_bytes_per_s").name == "rate"
    assert kind_of("bytes_per_s").name == "rate"
    assert kind_of("page_bytes").name == "size"
    assert kind_of("channels") is None
    assert kind_of("cps") is None  # a suffix is a whole word


def test_nearest():
    assert nearest("newprot", ["newport", "laguna"]) == "newport"
    assert nearest("TLC", ["tlc"]) == "tlc"
    assert nearest("zzz", ["newport"]) is None
