"""A host of NVMe/TCP over a socket: words of its own, one command after the other, and wrong ones.

Written from the specification, not with the program's own words, so that both must agree.
"""

import socket
import struct

from ondie.emu.serve.nvme_tcp_wire import Framing, PduType

_TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    _TABLE.append(_byte)


def crc(data: bytes) -> bytes:
    """CRC-32C, little-endian."""
    found = 0xFFFFFFFF
    for byte in data:
        found = found >> 8 ^ _TABLE[(found ^ byte) & 255]
    return (found ^ 0xFFFFFFFF).to_bytes(4, "little")


def icreq(header: bool = False, data: bool = False, alignment: int = 0, most_r2t: int = 0) -> bytes:
    fields = struct.pack("<HBBI112x", 0, alignment, header | data << 1, most_r2t)
    return struct.pack("<BBBBI", 0, 0, 128, 0, 128) + fields


def host_pdu(
    kind: int, fields: bytes, data: bytes, framing: Framing, padding: int = 0, flags: int = 0
) -> bytes:
    """PDU of a host. ``padding``: bytes between header and data."""
    head = 8 + len(fields)
    digests = kind != PduType.H2C_TERM_REQ
    offset = head + (4 if digests and framing.header_digest else 0)
    tail = 4 if digests and framing.data_digest and data else 0
    if data:
        offset += padding
    if digests:
        flags |= framing.header_digest | (2 if tail else 0)
    size = offset + len(data) + tail
    out = struct.pack("<BBBBI", kind, flags, head, offset if data and digests else 0, size) + fields
    if digests and framing.header_digest:
        out += crc(out)
    return out.ljust(offset, b"\0") + data + (crc(data) if tail else b"")


NAMED = "nqn.2014-08.org.nvmexpress:uuid:4b64e5a5-30f5-4b3a-9f5a-b6a1c1a5b0c7"
"""NQN of this host."""
CAPSULE_RESP, C2H_DATA, C2H_TERM_REQ, R2T = 5, 7, 3, 9
IN_CAPSULE, TRANSPORT = 0x01, 0x5A
"""Descriptors: a data block at an offset in the capsule; data in PDUs of their own."""
TIMEOUT_S = 20


class Terminated(Exception):
    """The controller has sent a termination request: (status, byte)."""


class Queue:
    """One connection of a host to ``address``, with one queue after :meth:`connect`."""

    def __init__(self, address: tuple[str, int], header: bool = False, data: bool = False) -> None:
        self.socket = socket.create_connection(address, TIMEOUT_S)
        self.framing = Framing(header, data)
        self.cid = 0
        self.socket.sendall(icreq(header, data))
        kind, _, fields, _ = self.pdu(Framing())
        assert kind == PduType.ICRESP
        _, _, digests, self.most_data = struct.unpack_from("<HBBI", fields)
        assert digests == header | data << 1

    def close(self) -> None:
        self.socket.close()

    # --- PDUs

    def receive(self, size: int) -> bytes:
        out = b""
        while len(out) < size:
            part = self.socket.recv(size - len(out))
            if not part:
                raise ConnectionError(f"the controller has closed after {len(out)} of {size} bytes")
            out += part
        return out

    def pdu(self, framing: Framing | None = None) -> tuple[int, int, bytes, bytes]:
        """Type, flags, fields and data of the next PDU; all digests are checked."""
        framing = framing or self.framing
        common = self.receive(8)
        kind, flags, head, offset, size = struct.unpack("<BBBBI", common)
        rest = self.receive(size - 8)
        if kind == C2H_TERM_REQ:
            raise Terminated(*struct.unpack_from("<HI", rest))
        whole, digests = common + rest, kind != PduType.ICRESP
        end = size
        if digests and framing.header_digest:
            assert flags & 1 and whole[head : head + 4] == crc(whole[:head])
        if kind == C2H_DATA and framing.data_digest:
            assert flags & 2
            end -= 4
            assert whole[end:] == crc(whole[offset:end])
        return kind, flags, whole[8:head], whole[offset:end] if kind == C2H_DATA else b""

    def send(self, kind: int, fields: bytes, data: bytes = b"", flags: int = 0) -> None:
        self.socket.sendall(host_pdu(kind, fields, data, self.framing, flags=flags))

    # --- commands

    def capsule(self, opcode: int, nsid: int = 0, words: bytes = b"", data: bytes = b"",
                descriptor: bytes | None = None, fctype: int = 0,
                flags: int = 0x40) -> int:  # fmt: skip
        """Send a command capsule with ``data``; return its identifier. ``words``: dwords 10 to 15.
        ``descriptor``: bytes 24 to 39; None: that of ``data``."""
        self.cid = (self.cid + 1) & 0xFFFF
        if descriptor is None:
            descriptor = sgl(IN_CAPSULE, len(data)) if data else bytes(16)
        head = struct.pack("<BBHI16x", opcode, flags, self.cid, nsid or fctype)
        self.send(PduType.CAPSULE_CMD, head + descriptor + words.ljust(24, b"\0"), data)
        return self.cid

    def answer(self, payload: bytes = b"", cid: int | None = None) -> tuple[int, int, bytes]:
        """Wait for the completion of a command: status field, dwords 0 and 1, data. ``payload``:
        data for its R2T."""
        cid = self.cid if cid is None else cid
        out = b""
        while True:
            kind, flags, fields, data = self.pdu()
            if kind == CAPSULE_RESP:
                words, self.head, self.sqid, done, status = struct.unpack("<QHHHH", fields)
                assert done == cid
                return status >> 1, words, out
            got, tag, offset, size = struct.unpack_from("<HHII", fields)
            assert got == cid
            if kind == R2T:
                self.push(cid, tag, payload[offset : offset + size], offset)
            else:
                assert kind == C2H_DATA and offset == len(out) and size == len(data) and flags & 4
                out += data
                if flags & 8:
                    return 0, 0, out

    def push(self, cid: int, tag: int, data: bytes, first: int = 0) -> None:
        """Send data that an R2T has asked for."""
        for at in range(0, len(data), self.most_data):
            part = data[at : at + self.most_data]
            last = 4 if at + len(part) == len(data) else 0
            fields = struct.pack("<HHII4x", cid, tag, first + at, len(part))
            self.send(PduType.H2C_DATA, fields, part, last)

    def connect(self, subsystem: str, qid: int = 0, cntlid: int = 0xFFFF, entries: int = 64,
                keep_alive: int = 0, host: str = NAMED,
                attributes: int = 0) -> tuple[int, int]:  # fmt: skip
        """Send Connect; return its status field and dword 0."""
        words = struct.pack("<HHHBxI", 0, qid, entries - 1, attributes, keep_alive)
        data = struct.pack("<16sH", b"host" * 4, cntlid).ljust(256, b"\0")
        data += subsystem.encode().ljust(256, b"\0") + host.encode().ljust(512, b"\0")
        self.capsule(0x7F, fctype=1, words=words, data=data)
        return self.answer()[:2]

    def get_property(self, offset: int, size: int = 4) -> tuple[int, int]:
        self.capsule(0x7F, fctype=4, words=struct.pack("<BxxxI", size == 8, offset))
        return self.answer()[:2]

    def set_property(self, offset: int, value: int) -> int:
        self.capsule(0x7F, fctype=0, words=struct.pack("<BxxxIQ", 0, offset, value))
        return self.answer()[0]

    def enable(self) -> None:
        assert self.set_property(0x14, 4 << 20 | 6 << 16 | 1) == 0
        assert self.get_property(0x1C) == (0, 1)

    def get(self, opcode: int, size: int, nsid: int = 0, **words: int) -> tuple[int, bytes]:
        """Status field and data of a command that returns ``size`` bytes."""
        dwords = struct.pack("<6I", *(words.get(f"cdw{at}", 0) for at in range(10, 16)))
        self.capsule(opcode, nsid, dwords, descriptor=sgl(TRANSPORT, size))
        status, _, data = self.answer()
        return status, data

    def run(self, opcode: int, data: bytes = b"", nsid: int = 0, **words: int) -> tuple[int, int]:
        """Status field and dword 0 of a command with ``data`` in its capsule, or for its R2T if
        they are more than 8 KiB."""
        dwords = struct.pack("<6I", *(words.get(f"cdw{at}", 0) for at in range(10, 16)))
        if len(data) > 8192:
            self.capsule(opcode, nsid, dwords, descriptor=sgl(TRANSPORT, len(data)))
        else:
            self.capsule(opcode, nsid, dwords, data)
        status, words_out, _ = self.answer(data)
        return status, words_out & 0xFFFFFFFF

    # --- blocks

    def read(self, first: int, blocks: int, block: int) -> bytes:
        status, data = self.get(2, blocks * block, 1, cdw10=first, cdw12=blocks - 1)
        assert status == 0
        return data

    def write(self, first: int, data: bytes, block: int) -> int:
        return self.run(1, data, 1, cdw10=first, cdw12=len(data) // block - 1)[0]


def sgl(kind: int, size: int, address: int = 0) -> bytes:
    """SGL descriptor."""
    return struct.pack("<QI3xB", address, size, kind)
