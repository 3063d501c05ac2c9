"""Handshake of NBD as bytes: every option and reply as the protocol spells it, in any pieces."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.serve import nbd_wire as wire
from ondie.emu.serve.handshakes import Phase
from ondie.emu.serve.nbd_wire import Export, Handshake
from tests.serve import nbd_client as nbd

EXPORT = Export(size=3 << 20, block=512, preferred=4096, largest=1 << 20, description="a drive")
GREETING = bytes.fromhex("4e42444d41474943 49484156454f5054 0003")
FLAGS = struct.pack(">I", 3)
FLUSH_FUA_TRIM_ZEROES_FAST = 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 11
PLAIN = 1 | 1 << 8 | 1 << 10 | FLUSH_FUA_TRIM_ZEROES_FAST
"""Has flags, multi-conn, cache, and what a drive that can be written has."""
DF = 1 << 7
SIZES = b"\0\3" + struct.pack(">III", 512, 4096, 1 << 20)


def shake(*pieces: bytes, export: Export = EXPORT, admit: Any = lambda: "") -> tuple[bytes, Any]:
    """(bytes for the client, handshake) after the flags and ``pieces``."""
    made = Handshake(export, admit, lambda: None)
    assert made.greeting() == GREETING
    return b"".join(made.feed(each) for each in (FLAGS, *pieces)), made


def infos(number: int, flags: int = PLAIN, *more: bytes) -> bytes:
    export = b"\0\0" + struct.pack(">QH", 3 << 20, flags)
    parts = [nbd.option_reply(number, nbd.INFO, each) for each in (export, SIZES, *more)]
    return b"".join(parts) + nbd.option_reply(number, nbd.ACK)


def test_go_byte_for_byte():
    """The same bytes as a dump of a client would show them."""
    sent = bytes.fromhex("49484156454f5054 00000007 00000006 00000000 0000")
    out, made = shake(sent)
    assert out == bytes.fromhex(
        "0003e889045565a9 00000007 00000003 0000000c 0000 0000000000300000 0d6d"
        "0003e889045565a9 00000007 00000003 0000000e 0003 00000200 00001000 00100000"
        "0003e889045565a9 00000007 00000001 00000000"
    )
    assert made.phase is Phase.SERVED and not made.structured and not made.allocation


@pytest.mark.parametrize(("flags", "zeroes"), [(3, 0), (1, 124), (2, 0), (0, 124)])
@pytest.mark.parametrize("name", [b"", b"drive"])
def test_export_name(flags, zeroes, name):
    """Without the flag of fixed newstyle too, where it is the only option."""
    made = Handshake(EXPORT, lambda: "", lambda: None)
    assert made.feed(struct.pack(">I", flags)) == b""
    out = made.feed(nbd.option(nbd.OPT_EXPORT_NAME, name) + b"rest")
    assert out == struct.pack(">QH", 3 << 20, PLAIN) + bytes(zeroes)
    assert made.phase is Phase.SERVED and made.rest == b"rest"


@pytest.mark.parametrize("flags", [4, 1 << 31, 7])
def test_unknown_flags_end_the_connection(flags):
    made = Handshake(EXPORT, lambda: "", lambda: None)
    assert made.feed(struct.pack(">I", flags) + nbd.option(nbd.OPT_LIST)) == b""
    assert made.phase is Phase.ENDED and not made.rest


def test_without_fixed_newstyle_another_option_ends_the_connection():
    made = Handshake(EXPORT, lambda: "", lambda: None)
    assert made.feed(bytes(4) + nbd.option(nbd.OPT_LIST)) == b"" and made.phase is Phase.ENDED


@pytest.mark.parametrize(
    "sent",
    [
        nbd.option(nbd.OPT_EXPORT_NAME, b"other"),
        nbd.option(nbd.OPT_EXPORT_NAME, b"drive\0"),
        nbd.option(nbd.OPT_EXPORT_NAME, bytes(5000)),
        nbd.IHAVEOPT + struct.pack(">II", nbd.OPT_EXPORT_NAME, (1 << 32) - 1),
        b"IHAVEOPS" + struct.pack(">II", nbd.OPT_LIST, 0),
    ],
)
def test_what_ends_the_connection(sent):
    out, made = shake(sent)
    assert out == b"" and made.phase is Phase.ENDED and not made.rest


def test_abort_is_answered_and_its_data_ignored():
    for data in (b"", b"why", bytes(wire.MOST_OPTION_BYTES + 1)):
        out, made = shake(nbd.option(nbd.OPT_ABORT, data))
        assert out == nbd.option_reply(nbd.OPT_ABORT, nbd.ACK) and made.phase is Phase.ENDED


def test_list():
    out, _ = shake(nbd.option(nbd.OPT_LIST))
    server = struct.pack(">I", 5) + b"drive"
    assert out == nbd.option_reply(3, nbd.SERVER, server) + nbd.option_reply(3, nbd.ACK)


ALLOCATION = b"base:allocation"
META_0 = struct.pack(">I", 0) + ALLOCATION
META_1 = struct.pack(">I", 1) + ALLOCATION
SET, LIST = nbd.OPT_SET_META, nbd.OPT_LIST_META


def kinds(out: bytes) -> list[tuple[int, int]]:
    """(option, kind) of each reply of ``out``, which are whole ones."""
    found, at = [], 0
    while at < len(out):
        magic, number, kind, size = struct.unpack_from(">QIII", out, at)
        assert magic == 0x3E889045565A9
        found.append((number, kind))
        at += 20 + size
    assert at == len(out)
    return found


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (nbd.option(nbd.OPT_LIST, b"x"), nbd.ERR_INVALID),
        (nbd.option(nbd.OPT_STRUCTURED, b"x"), nbd.ERR_INVALID),
        (nbd.option(nbd.OPT_STARTTLS), nbd.ERR_POLICY),
        (nbd.option(4), nbd.ERR_UNSUP),
        (nbd.option(11, b"extended headers"), nbd.ERR_UNSUP),
        (nbd.option(99, bytes(9000)), nbd.ERR_UNSUP),
        (nbd.option(nbd.OPT_INFO, bytes(9000)), nbd.ERR_TOO_BIG),
        (nbd.option(nbd.OPT_GO, b""), nbd.ERR_INVALID),
        (nbd.option(nbd.OPT_GO, struct.pack(">I", 1 << 31) + b"ab"), nbd.ERR_INVALID),
        (nbd.option(nbd.OPT_GO, bytes(5)), nbd.ERR_INVALID),
        (nbd.option(nbd.OPT_GO, bytes(4) + b"\0\2\0\3"), nbd.ERR_INVALID),
        (nbd.option(nbd.OPT_INFO, bytes(4) + b"\0\0\0\3"), nbd.ERR_INVALID),
        (nbd.export_option(nbd.OPT_GO, b"other"), nbd.ERR_UNKNOWN),
        (nbd.meta_option(SET, ALLOCATION), nbd.ERR_INVALID),  # no structured replies yet
        (nbd.meta_option(LIST), nbd.ERR_INVALID),
    ],
)
def test_errors_of_options(sent, kind):
    """The connection goes on, and the next option is answered."""
    out, made = shake(sent + nbd.option(nbd.OPT_LIST))
    number = struct.unpack(">I", sent[8:12])[0]
    assert kinds(out) == [(number, kind), (3, nbd.SERVER), (3, nbd.ACK)]
    assert made.phase is Phase.OPEN


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (nbd.meta_option(LIST), [META_0]),
        (nbd.meta_option(LIST, b"base:"), [META_0]),
        (nbd.meta_option(LIST, b"x-other:y", ALLOCATION), [META_0]),
        (nbd.meta_option(LIST, b"qemu:dirty-bitmap:x"), []),
        (nbd.meta_option(SET), []),
        (nbd.meta_option(SET, b"base:"), []),
        (nbd.meta_option(SET, b"base:other", b"nothing"), []),
        (nbd.meta_option(SET, ALLOCATION), [META_1]),
        (nbd.meta_option(SET, ALLOCATION, ALLOCATION, name=b"drive"), [META_1]),
        (nbd.meta_option(SET, ALLOCATION, name=b"other"), nbd.ERR_UNKNOWN),
        (nbd.meta_option(SET, *[b"a:"] * 65), nbd.ERR_TOO_BIG),
        (nbd.option(SET, bytes(4) + struct.pack(">II", 1, 50) + ALLOCATION), nbd.ERR_INVALID),
        (nbd.option(SET, bytes(4) + struct.pack(">I", 0) + b"x"), nbd.ERR_INVALID),
        (nbd.option(SET, bytes(7)), nbd.ERR_INVALID),
    ],
)
def test_metadata_contexts(sent, found):
    structured = nbd.option(nbd.OPT_STRUCTURED)
    out, _ = shake(structured + sent)
    out = out[len(nbd.option_reply(nbd.OPT_STRUCTURED, nbd.ACK)) :]
    number = struct.unpack(">I", sent[8:12])[0]
    if isinstance(found, int):
        assert kinds(out) == [(number, found)]
        return
    parts = [nbd.option_reply(number, nbd.META, each) for each in found]
    assert out == b"".join(parts) + nbd.option_reply(number, nbd.ACK)


@pytest.mark.parametrize(
    ("sent", "selected"),
    [
        ((nbd.meta_option(SET, ALLOCATION),), True),
        ((nbd.meta_option(SET, ALLOCATION, name=b"drive"),), False),  # GO has the other name
        ((nbd.meta_option(SET, ALLOCATION), nbd.meta_option(SET, b"base:x")), False),
        ((nbd.meta_option(SET, ALLOCATION), nbd.option(SET, b"?")), False),
        ((nbd.meta_option(SET, ALLOCATION), nbd.option(SET, bytes(9000))), False),
        ((nbd.meta_option(SET, ALLOCATION), nbd.meta_option(LIST)), True),
    ],
)
def test_the_last_selection_counts(sent, selected):
    _, made = shake(nbd.option(nbd.OPT_STRUCTURED), *sent, nbd.export_option(nbd.OPT_GO))
    assert made.phase is Phase.SERVED and made.structured and made.allocation is selected


def test_info_has_what_go_has():
    """Structured replies add the flag of reads in one piece. Unknown kinds are ignored."""
    name, text = b"\0\1drive", b"\0\2a drive"
    for number in (nbd.OPT_INFO, nbd.OPT_GO):
        asked = nbd.export_option(number, b"drive", (1, 2, 3, 77))
        assert shake(asked)[0] == infos(number, PLAIN, name, text)
        out, made = shake(nbd.option(nbd.OPT_STRUCTURED), asked)
        assert out.endswith(infos(number, PLAIN | DF, name, text))
        assert (made.phase is Phase.SERVED) == (number == nbd.OPT_GO)


def test_a_read_only_export():
    export = Export(3 << 20, 512, 4096, 1 << 20, "a drive", read_only=True)
    out, _ = shake(nbd.export_option(nbd.OPT_GO), export=export)
    assert out == infos(nbd.OPT_GO, 1 | 2 | 1 << 8 | 1 << 10)


def test_no_place():
    """GO says why, EXPORT_NAME cannot. A later GO may find one."""
    full = ["full", ""]
    out, made = shake(nbd.export_option(nbd.OPT_GO), admit=lambda: full[0])
    assert out == nbd.option_reply(nbd.OPT_GO, nbd.ERR_POLICY, b"full")
    assert made.phase is Phase.OPEN
    out, named = shake(nbd.option(nbd.OPT_EXPORT_NAME), admit=lambda: full[0])
    assert out == b"" and named.phase is Phase.ENDED
    del full[0]
    assert made.feed(nbd.export_option(nbd.OPT_GO)) == infos(nbd.OPT_GO)


def test_options_are_bounded():
    """256 options are answered; the next one ends the connection."""
    out, made = shake(nbd.option(50) * 256)
    assert len(kinds(out)) == 256 and made.phase is Phase.OPEN
    assert made.feed(nbd.option(50)) == b"" and made.phase is Phase.ENDED


# --- fuzz

STRINGS = st.sampled_from([b"", b"drive", b"base:", ALLOCATION, b"x", b"y" * 5000])
OPTIONS = st.one_of(
    st.builds(nbd.option, st.integers(1, 12), st.binary(max_size=40)),
    st.builds(nbd.export_option, st.sampled_from([6, 7]), STRINGS,
              st.lists(st.integers(0, 5), max_size=4).map(tuple)),
    st.builds(lambda number, name, queries: nbd.meta_option(number, *queries, name=name),
              st.sampled_from([9, 10]), STRINGS, st.lists(STRINGS, max_size=3)),
    st.builds(lambda number, size: nbd.IHAVEOPT + struct.pack(">II", number, size),
              st.integers(1, 12), st.sampled_from([8192, 8193, 1 << 31, (1 << 32) - 1])),
    st.just(nbd.option(nbd.OPT_STRUCTURED)),
    st.binary(max_size=60),
)  # fmt: skip


def fed(data: bytes, cuts: list[int]) -> tuple[bytes, Any]:
    """The result of ``data`` in pieces. Memory stays bounded."""
    made = Handshake(EXPORT, lambda: "", lambda: None)
    out = b""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for begin, end in zip(edges, edges[1:], strict=False):
        if made.phase is not Phase.OPEN:
            break  # the caller feeds no more
        out += made.feed(data[begin:end])
        if made.phase is Phase.OPEN:
            assert len(made.rest) < wire.OPTION.size + wire.MOST_OPTION_BYTES
    return out, made


@given(st.lists(OPTIONS, max_size=12), st.lists(st.integers(0, 1 << 16), max_size=8),
       st.integers(0, 3))  # fmt: skip
def test_any_options_in_any_pieces(options, cuts, flags):
    """Pieces do not matter. Each option that is whole has one final reply, in order, unless the
    connection has ended or gone on."""
    data = struct.pack(">I", flags) + b"".join(options)
    whole, first = fed(data, [])
    out, made = fed(data, cuts)
    assert (out, made.phase, made.structured, made.allocation) == (
        whole, first.phase, first.structured, first.allocation,
    )  # fmt: skip
    if first.phase is not Phase.SERVED:
        finals = [kind for kind in kinds(whole) if kind[1] == nbd.ACK or kind[1] >> 31]
        assert [number for number, _ in finals] == options_of(data)[: len(finals)]


def options_of(data: bytes) -> list[int]:
    """Numbers of the options of ``data`` that are whole, up to the first wrong magic."""
    found, at = [], 4
    while data[at : at + 8] == nbd.IHAVEOPT and at + 16 <= len(data):
        number, size = struct.unpack_from(">II", data, at + 8)
        at += 16 + size
        if at > len(data):
            break
        found.append(number)
    return found
