"""Owns: what must hold of NVMe/TCP for any bytes of a host: the handshake with Connect, and the
PDUs of an admin, I/O or discovery queue. Does not own: the meaning of commands, or the drive
(fuzz_drive.py). Source: own.
"""

import dataclasses
import struct

from ondie.emu.controller.admin import Controller
from ondie.emu.controller.discovery import DISCOVERY_NAME, DiscoveryController, Port
from ondie.emu.controller.fabrics import Association, Connect, ConnectRefused, Subsystem
from ondie.emu.nvme.wire import Cqe
from ondie.emu.serve.handshakes import Phase
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.nvme_tcp import CAPSULE_BYTES
from ondie.emu.serve.nvme_tcp_handshake import Handshake
from ondie.emu.serve.nvme_tcp_session import Session
from ondie.emu.serve.nvme_tcp_wire import DIGEST_BYTES, Framing, PduType, digest
from tests.protocol.nvme_tcp_client import IN_CAPSULE, host_pdu, icreq, sgl
from tests.serve.fuzz_drive import as_new, await_computation, check_status

NAME = "nqn.2014-08.org.nvmexpress:uuid:4b64e5a5-30f5-4b3a-9f5a-b6a1c1a5b0c7"
MOST_REST = 72 + 8192 + 256
"""Bytes of a handshake that may wait for more."""
HEAD = struct.Struct("<BBBBI")
IO, HEADER_DIGEST, DATA_DIGEST, NO_FLOW, DISCOVERY, RAW, PIECES, COMPUTE = (
    1 << at for at in range(8)
)
"""Bits of the first byte of an input of queue(): the queue, what was agreed on, whether digests
and their flags are as the input has them, whether bytes arrive one by one, and whether the drive
holds states."""


class Hosts:
    """The subsystem of ``drive`` without sockets, as a session needs it."""

    def __init__(self, drive: NvmeDrive) -> None:
        self.drive = drive
        self.port = Port("127.0.0.1", 4420, drive.capabilities.subsystem_name)
        self.subsystem = Subsystem(self.port.subsystem, None, self._make, self._discovery)
        self.session: Session | None = None

    def _make(self, cntlid: int) -> Controller:
        def post(entries: tuple[Cqe, ...]) -> None:
            if self.session is not None:
                self.session.post(entries)

        return self.drive.controller(
            post, controller_id=cntlid, several_controllers=True, capsule_bytes=CAPSULE_BYTES
        )

    def _discovery(self, cntlid: int, port: Port) -> DiscoveryController:
        return DiscoveryController(
            dataclasses.replace(self.drive.capabilities, controller_id=cntlid), port
        )

    def admit(self, asked: Connect) -> Association:
        return self.subsystem.connect(asked, self.port)

    def leave(self, association: Association, qid: int) -> None:
        self.subsystem.disconnect(association, qid)
        if qid == 0 and isinstance(association.controller, Controller):
            self.drive.remove(association.controller)

    def end(self) -> None:
        """All hosts have gone."""
        for each in self.subsystem.associations:
            self.leave(each, 0)

    def end_io_queues(self, association: Association) -> None:
        association.controller.queues.submission.clear()

    def reset_subsystem(self) -> None:
        if self.session is not None:
            self.session.close()

    def alive(self, association: Association) -> None:
        assert association in self.subsystem.associations


class Wire:
    """A socket whose host has sent ``data`` and then closed its side; what is sent is kept."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data, self._step, self._at = data, step, 0
        self.sent = bytearray()
        self._shut = False

    def recv_into(self, view: memoryview) -> int:
        size = min(self._step, len(view), len(self._data) - self._at)
        view[:size] = self._data[self._at : self._at + size]
        self._at += size
        return size

    def sendall(self, data: bytes) -> None:
        self.send(data)

    def send(self, data: bytes, flags: int = 0) -> int:
        if self._shut:
            raise BrokenPipeError
        self.sent += data
        return len(data)

    def shutdown(self, how: int) -> None:
        self._at, self._shut = len(self._data), True

    def settimeout(self, limit: float) -> None:
        assert limit > 0


def connect_capsule(name: str, qid: int, cntlid: int, no_flow: bool, framing: Framing) -> bytes:
    """The Connect command of the host."""
    words = struct.pack("<HHHBxI12x", 0, qid, 31, 4 if no_flow else 0, 0)
    entry = struct.pack("<BBHB19x", 0x7F, 0x40, 7, 1) + sgl(IN_CAPSULE, 1024) + words
    data = struct.pack("<16sH", b"host" * 4, cntlid).ljust(256, b"\0")
    data += name.encode().ljust(256, b"\0") + NAME.encode().ljust(512, b"\0")
    return host_pdu(PduType.CAPSULE_CMD, entry, data, framing)


def with_digests(data: bytes, framing: Framing) -> bytes:
    """PDUs, which are written without digests, with those that were agreed on; from the first wrong
    length on, bytes as they are."""
    out, at = bytearray(), 0
    while at + HEAD.size <= len(data):
        kind, flags, head, offset, size = HEAD.unpack_from(data, at)
        if not HEAD.size <= head <= size <= len(data) - at:
            break
        fields, body = data[at + HEAD.size : at + head], data[at + head : at + size]
        at += size
        if kind not in (PduType.CAPSULE_CMD, PduType.H2C_DATA):
            out += data[at - size : at]
            continue
        tail = DIGEST_BYTES if framing.data_digest and body else 0
        before = DIGEST_BYTES if framing.header_digest else 0
        flags = flags & ~3 | framing.header_digest | (2 if tail else 0)
        header = HEAD.pack(kind, flags, head, offset + before if body else offset,
                           size + before + tail) + fields  # fmt: skip
        out += header + (digest(header) if before else b"") + body
        out += digest(body[max(offset - head, 0) :]) if tail else b""
    return bytes(out + data[at:])


def check_answers(sent: bytes, framing: Framing, most: int) -> None:
    """Whole PDUs, known statuses, at most ``most`` completions, and nothing after a termination."""
    at, completions = 0, 0
    while at < len(sent):
        kind, flags, head, offset, size = HEAD.unpack_from(sent, at)
        assert HEAD.size <= head <= size <= len(sent) - at
        if kind == PduType.C2H_TERM_REQ:
            assert at + size == len(sent) and sent[at + 8] in range(1, 7)
        elif kind == PduType.CAPSULE_RESP:
            completions += 1
            check_status(struct.unpack_from("<H", sent, at + 22)[0] >> 1)
        elif kind == PduType.C2H_DATA:
            completions += bool(flags & 8)
            (length,) = struct.unpack_from("<I", sent, at + 16)
            assert size == offset + length + (DIGEST_BYTES if framing.data_digest else 0)
        else:
            assert kind == PduType.R2T
        at += size
    assert completions <= most


def without_header(answers: bytes) -> bytes:
    """Answers to a handshake without the header that a termination request repeats as far as it has
    arrived, and the length that follows from it."""
    at = 128 if answers[:1] == bytes([PduType.ICRESP]) else 0
    if answers[at : at + 1] != bytes([PduType.C2H_TERM_REQ]):
        return answers
    return answers[: at + 4] + answers[at + HEAD.size : at + 24]


def handshake(data: bytes) -> None:
    """Pieces do not matter, memory and answers are bounded, and who is not admitted is not there.

    The first byte: size of the pieces, and whether the host begins as it should.
    """
    mode, sent = (data[0], data[1:]) if data else (0, b"")
    if mode & 0x80:
        sent = icreq(bool(mode & 0x40)) + sent
    said = []
    with as_new() as drive:
        for step in (4 * (mode & 63) + 1, len(sent) or 1):
            hosts = Hosts(drive)

            def admit(asked: Connect, hosts: Hosts = hosts) -> Association:
                try:
                    return hosts.admit(asked)
                except ConnectRefused as refused:
                    check_status(refused.entry(0).status)
                    raise

            shake = Handshake(admit, hosts.leave)
            out = b""
            for at in range(0, len(sent), step):
                if shake.phase is not Phase.OPEN:
                    break
                out += shake.feed(sent[at : at + step])
                assert shake.phase is not Phase.OPEN or len(shake.rest) < MOST_REST
            assert len(hosts.subsystem.associations) == (shake.phase is Phase.SERVED)
            said.append((without_header(out), shake.phase))
            if shake.phase is Phase.SERVED:
                shake.drop()
            assert not hosts.subsystem.associations
    assert said[0] == said[1]
    assert len(out) <= 128 + 24 + 128
    if out.startswith(b"\x01"):
        check_answers(out[128:], Framing(), 1)


def queue(data: bytes) -> None:
    """A queue ends without an exception, and its answers are words of the protocol. The first byte
    has the bits above; the others are PDUs without digests, unless RAW."""
    mode, sent = (data[0], data[1:]) if data else (0, b"")
    discovery, qid = bool(mode & DISCOVERY), int(bool(mode & IO) and not mode & DISCOVERY)
    with as_new(bool(mode & COMPUTE)) as drive:
        hosts = Hosts(drive)
        name = DISCOVERY_NAME if discovery else hosts.port.subsystem
        for number in range(qid + 1):
            cntlid = hosts.subsystem.associations[0].cntlid if number else 0xFFFF
            shake = Handshake(hosts.admit, hosts.leave)
            shake.feed(icreq(bool(mode & HEADER_DIGEST), bool(mode & DATA_DIGEST)))
            framing = shake.framing
            shake.feed(connect_capsule(name, number, cntlid, bool(mode & NO_FLOW), framing))
            assert shake.phase is Phase.SERVED and not shake.rest
            controller = shake.association.controller
            if number < qid:
                controller.registers.write(0x14, 4, 4 << 20 | 6 << 16 | 1)
                drive.enabled(controller)
        words = sent if mode & RAW else with_digests(sent, framing)
        wire = Wire(words, 1 if mode & PIECES else 1 << 20)
        hosts.session = Session(wire, shake, hosts)
        hosts.session.run()
        await_computation()  # their completions come to a session that has ended
        drive.close()  # a sanitize operation may still report its end
        hosts.session = None
        hosts.leave(shake.association, shake.connect.qid)
        hosts.end()
    check_answers(bytes(wire.sent), framing, 2 + len(words) // 72)


TARGETS = {"handshake": handshake, "queue": queue}
