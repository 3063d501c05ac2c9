"""PDUs of NVMe/TCP: bytes as the specification has them, and what is refused.

Source: NVM Express TCP Transport Specification 1.0, section 3.6; RFC 3720, appendix B.4.
"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.serve import nvme_tcp_wire as wire
from ondie.emu.serve.nvme_tcp_wire import AFTER_IC, BEFORE_IC, Fatal, FatalStatus, Framing, PduType
from tests.protocol.nvme_tcp_client import crc, host_pdu, icreq

PLAIN = Framing()
FRAMINGS = [Framing(header, data) for header in (False, True) for data in (False, True)]
ENTRY = bytes(range(64))
TRANSFER = struct.pack("<HHII4x", 3, 5, 4096, 8)


def parse(data: bytes, framing: Framing = PLAIN, expected=AFTER_IC):
    return wire.parse(memoryview(data), framing, expected)


def fatal(data: bytes, framing: Framing = PLAIN, expected=AFTER_IC) -> tuple[int, int]:
    """Status and byte of the fatal error that ``data`` cause."""
    with pytest.raises(Fatal) as found:
        parse(data, framing, expected)
    return found.value.status, found.value.where


def changed(data: bytes, at: int, value: int, size: int = 1) -> bytes:
    return data[:at] + value.to_bytes(size, "little") + data[at + size :]


def test_digest():
    assert crc(b"123456789") == bytes.fromhex("839206e3")
    assert wire.digest(b"123456789") == crc(b"123456789")
    assert wire.digest(bytes(32)) == bytes.fromhex("aa36918a")


def test_initialize_connection():
    pdu = parse(icreq(header=True, data=True, alignment=3, most_r2t=4), expected=BEFORE_IC)
    agreed, most_r2t = wire.negotiate(pdu, PLAIN)
    assert agreed == Framing(True, True, 16) and most_r2t == 5
    response = wire.icresp(agreed)
    assert response[:8] == bytes([1, 0, 128, 0, 128, 0, 0, 0]) and len(response) == 128
    assert struct.unpack_from("<HBBI", response, 8) == (0, 0, 3, 1 << 18)
    assert response[16:] == bytes(112)


def test_wrong_initialize_connection():
    good = icreq()
    for size in range(8, 128):
        assert parse(good[:size], expected=BEFORE_IC) is None
    assert fatal(good) == (FatalStatus.SEQUENCE_ERROR, 0)
    assert fatal(changed(good, 2, 127), expected=BEFORE_IC) == (1, 2)
    for size in (0, 127, 129, 2**31, 2**32 - 1):
        assert fatal(changed(good, 4, size, 4), expected=BEFORE_IC) == (1, 4)
    for at, value, why in ((8, 1, (6, 8)), (9, 1, (6, 8)), (10, 32, (1, 10))):
        pdu = parse(changed(good, at, value), expected=BEFORE_IC)
        with pytest.raises(Fatal) as found:
            wire.negotiate(pdu, PLAIN)
        assert (found.value.status, found.value.where) == why


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("data", [b"", b"a", bytes(range(256)) * 32])
def test_command_capsules(framing, data):
    sent = host_pdu(PduType.CAPSULE_CMD, ENTRY, data, framing)
    pdu = parse(sent, framing)
    assert pdu.kind is PduType.CAPSULE_CMD and pdu.header[8:] == ENTRY
    assert bytes(pdu.data) == data and pdu.intact and pdu.size == len(sent)
    assert parse(sent[:-1], framing) is None
    padded = host_pdu(PduType.CAPSULE_CMD, ENTRY, data, framing, padding=16)
    assert bytes(parse(padded, framing).data) == data
    if framing.header_digest:
        assert fatal(changed(sent, 9, 0), framing) == (FatalStatus.HEADER_DIGEST_ERROR, 0)
    if framing.data_digest and data:
        assert not parse(changed(sent, len(sent) - 5, 0x77), framing).intact
        assert not parse(changed(sent, len(sent) - 1, sent[-1] ^ 1), framing).intact


@pytest.mark.parametrize("framing", FRAMINGS)
def test_data(framing):
    pdu = parse(host_pdu(PduType.H2C_DATA, TRANSFER, b"12345678", framing), framing)
    assert wire.transfer_of(pdu) == (3, 5, 4096, 8) and bytes(pdu.data) == b"12345678"
    short = parse(host_pdu(PduType.H2C_DATA, TRANSFER, b"1234", framing), framing)
    with pytest.raises(Fatal) as found:
        wire.transfer_of(short)
    assert (found.value.status, found.value.where) == (1, wire.DATAL_BYTE)


def test_lengths_are_refused_before_the_bytes_arrive():
    capsule = host_pdu(PduType.CAPSULE_CMD, ENTRY, bytes(8192), PLAIN)[:8]
    assert parse(capsule) is None
    for size in (0, 1, 71, 72 + 8193, 72 + 8192 + 125, 1 << 20, 2**32 - 1):
        assert fatal(changed(capsule, 4, size, 4)) == (1, wire.PLEN_BYTE), size
    assert fatal(changed(capsule, 3, 71)) == (1, wire.PDO_BYTE)
    assert fatal(changed(capsule, 3, 74)) == (1, wire.PDO_BYTE)
    assert fatal(changed(capsule, 3, 0)) == (1, wire.PDO_BYTE)
    data = host_pdu(PduType.H2C_DATA, TRANSFER, bytes(1 << 18), PLAIN)[:8]
    assert parse(data) is None
    for size in (0, 24, 24 + (1 << 18) + 1, 2**32 - 1):
        assert fatal(changed(data, 4, size, 4)) == (1, wire.PLEN_BYTE), size
    assert fatal(changed(capsule, 4, 80, 4)[:3] + bytes([80]) + (80).to_bytes(4, "little")) == (
        1,
        4,
    )
    term = struct.pack("<BBBBI", 2, 0, 24, 0, 24 + 129)
    assert fatal(term) == (1, wire.PLEN_BYTE)


def test_types_and_flags():
    for kind in (1, 3, 5, 7, 8, 9, 10, 255):
        assert fatal(bytes([kind, 0, 24, 0, 24, 0, 0, 0])) == (1, 0)
    good = host_pdu(PduType.CAPSULE_CMD, ENTRY, b"1234", PLAIN)
    for flags in (1, 2, 3):
        assert fatal(changed(good, 1, flags)) == (1, wire.FLAGS_BYTE)
    assert parse(changed(good, 1, 0xFC)) is not None
    both = host_pdu(PduType.CAPSULE_CMD, ENTRY, b"1234", FRAMINGS[3])
    for flags in (0, 1, 2):
        assert fatal(changed(both, 1, flags), FRAMINGS[3]) == (1, wire.FLAGS_BYTE)
    assert fatal(good, expected=BEFORE_IC) == (FatalStatus.SEQUENCE_ERROR, 0)


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("alignment", [4, 16, 128])
def test_data_to_the_host(framing, alignment):
    framing = framing._replace(host_alignment=alignment)
    for success in (False, True):
        sent = b"".join(wire.c2h_data(7, b"abcde", framing, success))
        kind, flags, head, offset, size = struct.unpack_from("<BBBBI", sent)
        wanted = framing.header_digest | framing.data_digest << 1 | 4 | success << 3
        assert (kind, flags, head, size) == (7, wanted, 24, len(sent))
        assert offset % alignment == 0 and sent[offset : offset + 5] == b"abcde"
        assert struct.unpack_from("<HHII", sent, 8) == (7, 0, 0, 5)
        if framing.header_digest:
            assert sent[24:28] == crc(sent[:24])
        assert sent[offset + 5 :] == (crc(b"abcde") if framing.data_digest else b"")


def test_other_pdus_of_the_controller():
    digests = FRAMINGS[3]
    sent = wire.capsule_resp(bytes(range(16)), digests)
    assert sent[:8] == bytes([5, 1, 24, 0, 28, 0, 0, 0]) and sent[8:24] == bytes(range(16))
    assert sent[24:] == crc(sent[:24])
    sent = wire.r2t(1, 2, 3, 4, PLAIN)
    assert sent == bytes([9, 0, 24, 0, 24, 0, 0, 0]) + struct.pack("<HHII4x", 1, 2, 3, 4)
    sent = wire.c2h_term_req(Fatal(FatalStatus.INVALID_HEADER_FIELD, 4, b"x" * 200))
    assert sent[:14] == bytes([3, 0, 24, 0, 152, 0, 0, 0, 1, 0, 4, 0, 0, 0])
    assert sent[24:] == b"x" * 128
    assert wire.c2h_term_req(Fatal(FatalStatus.SEQUENCE_ERROR, 4))[10:14] == bytes(4)


@given(st.data())
def test_no_bytes_are_a_defect(data):
    """Random changes of PDUs, at any cut: a PDU of these bytes, a wait, or a fatal error."""
    framing = data.draw(st.sampled_from(FRAMINGS))
    kind, fields = data.draw(
        st.sampled_from(
            [
                (PduType.CAPSULE_CMD, ENTRY),
                (PduType.H2C_DATA, TRANSFER),
                (PduType.H2C_TERM_REQ, bytes(16)),
            ]
        )
    )
    payload = data.draw(st.binary(max_size=200))
    raw = bytearray(host_pdu(kind, fields, payload, framing))
    for at, value in data.draw(
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 255)), max_size=4)
    ):
        raw[at] = value
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    expected = data.draw(st.sampled_from([BEFORE_IC, AFTER_IC]))
    try:
        pdu = parse(bytes(raw), framing, expected)
    except Fatal as error:
        sent = wire.c2h_term_req(error)
        assert 24 <= len(sent) <= 152 and int.from_bytes(sent[4:8], "little") == len(sent)
        return
    if pdu is None:
        size = int.from_bytes(raw[4:8], "little")
        assert len(raw) < 8 or len(raw) < size <= wire.most_bytes(framing)
    else:
        assert pdu.size <= len(raw) and len(pdu.data) < pdu.size and pdu.kind in expected
