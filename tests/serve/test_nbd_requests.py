"""Requests and replies of NBD as bytes, on a drive in memory: each kind, each flag, each error, in
any pieces, against what the protocol says about them."""

import socket
import struct
import threading

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ondie.emu.nvme.status import Status
from ondie.emu.serve.memory_drive import MemoryDrive
from ondie.emu.serve.nbd_request import NbdError, error_of, extents
from ondie.emu.serve.nbd_session import Session
from ondie.emu.serve.nbd_wire import Handshake
from tests.serve import nbd_client as nbd
from tests.state.test_service import SMALL
from tests.state.written import config

BLOCK, UNIT, TRANSFER, LARGEST = 512, 4096, 32 << 10, 1 << 20
SIZE = MemoryDrive(config(**SMALL), BLOCK).capacity


def shaken(drive: MemoryDrive, structured: bool, allocation: bool) -> Handshake:
    """A handshake that has negotiated these."""
    made = Handshake(drive.export, lambda: "", lambda: None)
    options = b""
    if structured:
        options += nbd.option(nbd.OPT_STRUCTURED)
        options += nbd.meta_option(nbd.OPT_SET_META, b"base:allocation") if allocation else b""
    made.feed(struct.pack(">I", 3) + options + nbd.option(nbd.OPT_EXPORT_NAME))
    assert (made.structured, made.allocation) == (structured, structured and allocation)
    return made


def exchanged(
    pieces: list[bytes], structured: bool = True, allocation: bool = True,
    drive: MemoryDrive | None = None,
) -> bytes:  # fmt: skip
    """What a session replies to ``pieces``, sent one by one, and then to the end of the client."""
    drive = drive or MemoryDrive(config(**SMALL), BLOCK)
    ours, its = socket.socketpair()
    with ours, its:
        ours.settimeout(nbd.SECONDS)
        session = Session(its, drive, shaken(drive, structured, allocation))

        def serve() -> None:
            session.run()
            its.shutdown(socket.SHUT_WR)
            while its.recv(1 << 16):  # what a session leaves would reset the connection
                pass

        def send() -> None:
            for each in pieces:
                try:
                    ours.sendall(each)
                except OSError:  # the server has disconnected
                    return
            ours.shutdown(socket.SHUT_WR)

        threads = [threading.Thread(target=each) for each in (serve, send)]
        for each in threads:
            each.start()
        found = bytearray()
        while part := ours.recv(1 << 16):
            found += part
        for each in threads:
            each.join(nbd.SECONDS)
            assert not each.is_alive()
        return bytes(found)


class Model:
    """What the protocol says of a drive of SIZE bytes, one request after the other."""

    def __init__(self, structured: bool, allocation: bool) -> None:
        self.structured, self.allocation = structured, structured and allocation
        self.bytes = bytearray(SIZE)
        self.held = [False] * (SIZE // UNIT)

    def error(self, kind: int, flags: int, offset: int, length: int) -> int:
        known = nbd.FUA
        known |= nbd.DF if kind == nbd.READ and self.structured else 0
        known |= nbd.NO_HOLE | nbd.FAST_ZERO if kind == nbd.WRITE_ZEROES else 0
        known |= nbd.REQ_ONE if kind == nbd.BLOCK_STATUS else 0
        if flags & ~known or kind > 7:
            return nbd.EINVAL
        if kind == nbd.FLUSH:
            return nbd.EINVAL if offset or length else 0
        if kind == nbd.BLOCK_STATUS and not self.allocation:
            return nbd.EINVAL
        if not length or offset % BLOCK or length % BLOCK:
            return nbd.EINVAL
        if offset + length > SIZE:
            return nbd.ENOSPC if kind in (nbd.WRITE, nbd.WRITE_ZEROES) else nbd.EINVAL
        if kind in (nbd.READ, nbd.WRITE) and length > LARGEST:
            return nbd.EINVAL
        if kind == nbd.CACHE and length > LARGEST:
            return nbd.EOVERFLOW
        first, last = -(-offset // UNIT), (offset + length) // UNIT
        if flags & nbd.FAST_ZERO and (flags & nbd.NO_HOLE or first >= last):
            return nbd.ENOTSUP
        return 0

    def reply(self, kind: int, flags: int, cookie: int, offset: int, length: int,
              data: bytes) -> bytes:  # fmt: skip
        """The reply to a request, which takes effect."""
        error = self.error(kind, flags, offset, length)
        end = offset + length
        if error and self.structured and kind in (nbd.READ, nbd.BLOCK_STATUS):
            return nbd.error_chunk(cookie, error)
        if error:
            return nbd.simple(cookie, error)
        if kind == nbd.READ:
            data = bytes(self.bytes[offset:end])
            return nbd.data_chunk(cookie, offset, data) if self.structured else nbd.simple(
                cookie, 0, data
            )  # fmt: skip
        if kind == nbd.BLOCK_STATUS:
            found = [(size, 0 if held else 3) for size, held in self.runs(offset, end)]
            some = found[:1] if flags & nbd.REQ_ONE else found
            packed = b"".join(struct.pack(">II", *each) for each in some)
            return nbd.chunk(cookie, 5, struct.pack(">I", 1) + packed)
        if kind == nbd.WRITE:
            self.bytes[offset:end] = data
            self.hold(offset, end)
        elif kind == nbd.WRITE_ZEROES or kind == nbd.TRIM:
            self.bytes[offset:end] = bytes(length)
            first, last = -(-offset // UNIT) * UNIT, end // UNIT * UNIT
            if kind == nbd.WRITE_ZEROES and (flags & nbd.NO_HOLE or first >= last):
                self.hold(offset, end)
            else:
                if kind == nbd.WRITE_ZEROES:
                    self.hold(offset, end)
                self.held[first // UNIT : max(last, first) // UNIT] = [False] * max(
                    (last - first) // UNIT, 0
                )
        return nbd.simple(cookie)

    def hold(self, begin: int, end: int) -> None:
        for unit in range(begin // UNIT, -(-end // UNIT)):
            self.held[unit] = True

    def runs(self, begin: int, end: int) -> list[tuple[int, bool]]:
        """(bytes, held) of each run from ``begin`` to ``end``."""
        out: list[tuple[int, bool]] = []
        for unit in range(begin // UNIT, -(-end // UNIT)):
            size = min((unit + 1) * UNIT, end) - max(unit * UNIT, begin)
            if out and out[-1][1] == self.held[unit]:
                out[-1] = out[-1][0] + size, out[-1][1]
            else:
                out.append((size, self.held[unit]))
        return out


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        # READ, offset 4096, 8 bytes short of a block: EINVAL; as a simple reply
        ("25609513 0000 0000 0102030405060708 0000000000001000 000001f8",
         "67446698 00000016 0102030405060708"),
        # FLUSH
        ("25609513 0000 0003 ffffffffffffffff 0000000000000000 00000000",
         "67446698 00000000 ffffffffffffffff"),
        # TRIM past the end: EINVAL. WRITE_ZEROES past the end: ENOSPC
        ("25609513 0000 0004 0000000000000001 7fffffffffffe000 00001000",
         "67446698 00000016 0000000000000001"),
        ("25609513 0001 0006 0000000000000002 ffffffffffffe000 ffffe000",
         "67446698 0000001c 0000000000000002"),
        # an unknown command, and an unknown flag
        ("25609513 0000 0008 0000000000000003 0000000000000000 00000200",
         "67446698 00000016 0000000000000003"),
        ("25609513 0020 0004 0000000000000003 0000000000000000 00000200",
         "67446698 00000016 0000000000000003"),
        # CACHE
        ("25609513 0000 0005 0000000000000004 0000000000000000 00001000",
         "67446698 00000000 0000000000000004"),
    ],
)  # fmt: skip
def test_requests_byte_for_byte(sent, reply):
    assert exchanged([bytes.fromhex(sent)], structured=False) == bytes.fromhex(reply)


def test_structured_replies_byte_for_byte():
    """A read in one chunk with its offset, an error, and the state of blocks: a unit of data and
    two of zeros."""
    write = nbd.request(nbd.WRITE, 4096, 512, cookie=1, data=b"\xa5" * 512)
    read = bytes.fromhex("25609513 0004 0000 0000000000000002 0000000000001000 00000200")
    wrong = bytes.fromhex("25609513 0000 0000 0000000000000003 0000000000001000 00000000")
    status = bytes.fromhex("25609513 0000 0007 0000000000000004 0000000000001000 00003000")
    drive = MemoryDrive(config(**SMALL), BLOCK)
    assert exchanged([write], drive=drive) == bytes.fromhex("67446698 00000000 0000000000000001")
    assert exchanged([read, wrong, status], drive=drive) == (
        bytes.fromhex("668e33ef 0001 0001 0000000000000002 00000208 0000000000001000")
        + b"\xa5" * 512
        + bytes.fromhex("668e33ef 0001 8001 0000000000000003 00000006 00000016 0000")
        + bytes.fromhex("668e33ef 0001 0005 0000000000000004 00000014 00000001"
                        "00001000 00000000 00002000 00000003")
    )  # fmt: skip


def test_a_disconnect_has_no_reply_and_what_was_asked_before_has():
    sent = nbd.request(nbd.FLUSH, cookie=1) + nbd.request(nbd.DISC) + nbd.request(nbd.FLUSH)
    assert exchanged([sent]) == nbd.simple(1)


@pytest.mark.parametrize("magic", [b"\x25\x60\x95\x14", bytes(4), b"\x12\x56\x09\x53"])
def test_what_is_no_request_ends_the_connection(magic):
    sent = nbd.request(nbd.FLUSH, cookie=1) + magic + bytes(24) + nbd.request(nbd.FLUSH)
    assert exchanged([sent]) == nbd.simple(1)


@pytest.mark.parametrize("length", [LARGEST + 512, 5 << 20])
def test_data_of_a_refused_write_are_skipped(length):
    """In pieces, and with memory that is not as large."""
    write = nbd.request(nbd.WRITE, 0, length, cookie=1)
    data = b"\x25\x60\x95\x13" * (length // 4)
    pieces = [write + data[:100], data[100 : 1 << 20], data[1 << 20 :] + nbd.request(nbd.FLUSH)]
    assert exchanged(pieces) == nbd.simple(1, nbd.ENOSPC if length > SIZE else nbd.EINVAL) + (
        nbd.simple(0)
    )


def test_a_write_that_does_not_arrive_has_no_effect():
    """The client ends in its middle; what was written before is there."""
    drive = MemoryDrive(config(**SMALL), BLOCK)
    first = nbd.request(nbd.WRITE, 0, 1024, data=b"a" * 1024)
    torn = nbd.request(nbd.WRITE, 512, 1 << 17, data=b"b" * (1 << 16))
    assert exchanged([first, torn], drive=drive) == nbd.simple(0)
    found = exchanged([nbd.request(nbd.READ, 0, 2048)], structured=False, drive=drive)
    assert found[16:] == b"a" * 1024 + bytes(1024)


def test_a_large_request_is_several_commands():
    """1 MiB - 512 bytes from an odd offset, with transfers of 32 KiB."""
    data = np.random.default_rng(0).bytes(LARGEST - 512)
    drive = MemoryDrive(config(**{**SMALL, "flash__blocks_per_plane": 64}), BLOCK)
    assert drive.transfer == TRANSFER and drive.capacity > 2 << 20
    write = nbd.request(nbd.WRITE, 1536, len(data), data=data)
    read = nbd.request(nbd.READ, 1536, len(data))
    assert exchanged([write], drive=drive) == nbd.simple(0)
    assert exchanged([read], drive=drive) == nbd.data_chunk(0, 1536, data)


def test_writes_to_a_read_only_export():
    drive = MemoryDrive(config(**SMALL), BLOCK)
    closed = type("ReadOnly", (MemoryDrive,), {"read_only": True})(config(**SMALL), BLOCK)
    sent = [
        nbd.request(nbd.WRITE, 0, 512, cookie=1, data=bytes(512)),
        nbd.request(nbd.TRIM, 0, 512, cookie=2),
        nbd.request(nbd.WRITE_ZEROES, SIZE, 512, cookie=3),
        nbd.request(nbd.FLUSH, cookie=4),
    ]
    assert exchanged([b"".join(sent)], drive=closed) == b"".join(
        nbd.simple(cookie, nbd.EPERM if cookie < 4 else 0) for cookie in (1, 2, 3, 4)
    )
    assert not drive.read_only


def test_errors_of_statuses():
    """Every status has an error, unknown ones too."""
    assert error_of(Status.SUCCESS) == 0
    assert error_of(Status.NAMESPACE_WRITE_PROTECTED) == nbd.EPERM
    assert error_of(Status.CAPACITY_EXCEEDED) == nbd.ENOSPC
    for status in (Status.UNRECOVERED_READ_ERROR, Status.WRITE_FAULT, 0x7FF, -1):
        assert error_of(status) == NbdError.EIO


@given(
    st.lists(st.booleans(), min_size=1, max_size=12),
    st.integers(0, 7),
    st.integers(0, 7),
    st.integers(1, 12),
)
def test_extents_cover_the_range(mapped, before, behind, most):
    """``before``, ``behind``: sectors of the first and last unit outside the range."""
    offset = 5 * UNIT + before * BLOCK
    end = (5 + len(mapped)) * UNIT - behind * BLOCK
    if end <= offset:
        return
    found = list(struct.iter_unpack(">II", extents(np.array(mapped), UNIT, offset, end - offset,
                                                   most)))  # fmt: skip
    assert 1 <= len(found) <= most
    at = offset
    for (size, flags), following in zip(found, [*found[1:], (0, -1)], strict=True):
        assert size and flags != following[1]
        units = mapped[at // UNIT - 5 : -(-(at + size) // UNIT) - 5]
        assert all(each == (flags == 0) for each in units)
        at += size
    assert at == end or (at < end and len(found) == most)


# --- any requests in any pieces

PLACES = st.one_of(
    st.integers(0, SIZE // BLOCK).map(lambda sector: sector * BLOCK),
    st.sampled_from([1, SIZE - BLOCK, SIZE, (1 << 63) - BLOCK, 1 << 63, (1 << 64) - BLOCK]),
)
LENGTHS = st.one_of(
    st.integers(0, 40).map(lambda sectors: sectors * BLOCK),
    st.sampled_from([1, 511, 513, SIZE, LARGEST, LARGEST + BLOCK, (1 << 32) - BLOCK]),
)
KINDS = st.sampled_from([0, 0, 1, 1, 1, 3, 4, 5, 6, 6, 7, 7, 8, 200, 0xFFFF])
FLAGS = st.one_of(st.just(0), st.integers(0, 31), st.sampled_from([1 << 15, 32]))
REQUESTS = st.tuples(KINDS, FLAGS, st.integers(0, (1 << 64) - 1), PLACES, LENGTHS,
                     st.integers(0, 255))  # fmt: skip


def check_exchange(
    requests: list[tuple[int, ...]], cuts: list[int], structured: bool, allocation: bool
) -> None:
    """One request after the other: each is sent when the one before it was answered, if they
    depend on each other; here, in batches of requests that touch different sectors."""
    drive, model = MemoryDrive(config(**SMALL), BLOCK), Model(structured, allocation)
    sent, expected = b"", b""
    touched: list[tuple[int, int]] = []
    batches: list[tuple[bytes, bytes]] = []
    for kind, flags, cookie, offset, length, fill in requests:
        if kind == nbd.WRITE and length > 6 << 20:
            length = LARGEST + BLOCK
        begin, end = offset // UNIT * UNIT, -(-(offset + length) // UNIT) * UNIT
        if any(begin < last and first < end for first, last in touched):
            batches.append((sent, expected))
            sent, expected, touched = b"", b"", []
        touched.append((begin, end))
        data = bytes([fill]) * length if kind == nbd.WRITE else b""
        sent += nbd.request(kind, offset, length, flags, cookie, data)
        expected += model.reply(kind, flags, cookie, offset, length, data)
    for data, right in [*batches, (sent, expected)]:
        edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
        pieces = [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]
        assert exchanged(pieces, structured, allocation, drive) == right


@given(st.lists(REQUESTS, max_size=12), st.lists(st.integers(0, 1 << 20), max_size=5),
       st.booleans(), st.booleans())  # fmt: skip
@example([(6, nbd.NO_HOLE, 1, 512, 8192, 0), (7, 0, 2, 0, SIZE, 0)], [], True, True)
@example([(1, 0, 1, 0, 8192, 5), (4, 0, 2, 512, 7680, 0), (7, 0, 3, 0, 8192, 0)], [], True, True)
@example([(1, 0, 1, 0, 8192, 5), (4, 0, 2, 0, 7680, 0), (7, 0, 3, 0, 8192, 0)], [], True, True)
@example([(1, 0, 1, 0, LARGEST + BLOCK, 0), (3, 0, 2, 0, 0, 0)], [27, 28, 29, 600], False, False)
def test_any_requests_in_any_pieces(requests, cuts, structured, allocation):
    check_exchange(requests, cuts, structured, allocation)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_any_bytes(data, cuts):
    """Nothing but replies comes back, and the session ends."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    head = nbd.request(nbd.FLUSH, cookie=7)
    pieces = [head, *(data[a:b] for a, b in zip(edges, edges[1:], strict=False))]
    found = exchanged(pieces)
    assert found.startswith(nbd.simple(7)) and found[16:20] in (b"", b"\x67\x44\x66\x98",
                                                               b"\x66\x8e\x33\xef")  # fmt: skip
