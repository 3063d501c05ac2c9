"""NVMe/TCP target under random bytes: no crash, no hang, no growth, and hosts that keep the rules
are not disturbed."""

import contextlib
import socket
import struct
import threading

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ondie.emu.controller.fabrics import Association, ConnectRefused, FabricsCode
from ondie.emu.serve.handshakes import Phase, raise_file_limit
from ondie.emu.serve.nvme_tcp_handshake import Handshake
from tests.protocol.controller_host import Host
from tests.protocol.nvme_tcp_client import IN_CAPSULE, TRANSPORT, host_pdu, icreq, sgl
from tests.protocol.test_nvme_fabrics import connect_data, connect_entry
from tests.protocol.test_nvme_tcp import BLOCK, FRAMING, Target, target, text, wait_for
from tests.serve.fuzz_nvme_tcp import without_header

__all__ = ["target"]  # the fixture

BYTES = st.tuples(st.integers(0, 1200), st.integers(0, 255))


def entry(opcode: int, cid: int, descriptor: bytes, *words: int) -> bytes:
    head = struct.pack("<BBHI16x", opcode, 0x40, cid, 1)
    return head + descriptor + struct.pack("<6I", *words, *[0] * (6 - len(words)))


def handshake(refuse: bool) -> tuple[Handshake, list]:
    left = []

    def admit(asked):
        if refuse:
            raise ConnectRefused(FabricsCode.INVALID_HOST)
        return Association(1, asked.host, asked.host_id, Host().controller, 0)

    return Handshake(admit, lambda association, qid: left.append(qid)), left


@given(st.data())
def test_handshakes_of_any_bytes(data):
    """The answer to changed words does not depend on how they arrive, and memory is bounded."""
    capsule = connect_entry()[:24] + sgl(IN_CAPSULE, 1024) + connect_entry()[40:]
    header, digests, refuse = (data.draw(st.booleans()) for _ in range(3))
    framing = FRAMING._replace(header_digest=header, data_digest=digests)
    raw = bytearray(icreq(header, digests) + host_pdu(4, capsule, connect_data(), framing))
    for at, value in data.draw(st.lists(BYTES, max_size=3)):
        raw[at] = value
    raw += data.draw(st.binary(max_size=40))
    whole, _ = handshake(refuse)
    said = whole.feed(bytes(raw))
    pieces, left = handshake(refuse)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    got = b""
    for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        if pieces.phase is Phase.OPEN:
            got += pieces.feed(bytes(raw[begin:end]))
            assert len(pieces.rest) <= 128 + 8192 + 256
    assert (without_header(got), pieces.phase) == (without_header(said), whole.phase)
    kinds = []
    while said:
        kinds.append(said[0])
        said = said[int.from_bytes(said[4:8], "little") :]
    if whole.phase is Phase.SERVED:
        assert kinds == [1] and not refuse
        pieces.drop()
        assert left == [pieces.connect.qid]
    elif whole.phase is Phase.OPEN:
        assert kinds in ([], [1])
    else:  # a termination, a status, or the host has ended it
        assert kinds in ([3], [1, 3], [1, 5], [1])
        assert kinds != [1] or raw[128] == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_queues_of_any_bytes(target: Target, data):
    """Changed commands and data end with a status, a termination, or a wait for more."""
    admin, io = target.host()
    words = [
        entry(1, 1, sgl(IN_CAPSULE, BLOCK), 3, 0, 0),
        entry(1, 2, sgl(TRANSPORT, 32 * BLOCK), 8, 0, 31),
        entry(2, 3, sgl(TRANSPORT, BLOCK), 3, 0, 0),
        entry(9, 4, sgl(IN_CAPSULE, 16), 0, 4),
        struct.pack("<HHII4x", 2, 0, 0, 512),
    ]
    for _ in range(data.draw(st.integers(1, 5))):
        word = data.draw(st.sampled_from(words))
        size = 512 if len(word) == 16 else data.draw(st.sampled_from([0, 16, BLOCK]))
        raw = bytearray(host_pdu(6 if len(word) == 16 else 4, word, bytes(size), FRAMING))
        for at, value in data.draw(st.lists(BYTES, max_size=2)):
            raw[at % len(raw)] = value
        with contextlib.suppress(ConnectionError):  # it may have closed
            io.socket.sendall(bytes(raw))
    try:
        with contextlib.suppress(ConnectionError):
            io.socket.shutdown(socket.SHUT_WR)
            while io.socket.recv(1 << 16):  # the target closes, whatever it was
                pass
        assert admin.run(0x18) == (0, 0)
    finally:
        target.forget()


def test_half_open_connections(target, counts):
    """Connections that say nothing cost neither threads nor others' service."""
    count = min(counts(300, 10_000), raise_file_limit() // 3)
    before = threading.active_count()
    accepted = target.server.handshakes.accepted
    silent = []
    try:
        for at in range(count):
            silent.append(socket.create_connection(target.address))
            if at % 3 == 0:
                silent[-1].sendall(icreq()[: at % 127])
        wait_for(lambda: target.server.handshakes.accepted >= accepted + count)
        assert threading.active_count() == before
        admin, io = target.host()
        assert io.write(0, text(3, BLOCK), BLOCK) == 0 and io.read(0, 1, BLOCK) == text(3, BLOCK)
    finally:
        for each in silent:
            each.close()
        target.forget()
