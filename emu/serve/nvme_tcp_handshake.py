"""Handshake of an NVMe/TCP connection (ICReq, then the Connect command) as a state machine without
I/O.

Owns the order of these messages, and the errors that end the connection. Does not own the layout of
PDUs (nvme_tcp_wire.py), the rules of admission (controller/fabrics.py) or the commands after
Connect (nvme_tcp_session.py).
Source: NVM Express TCP Transport Specification 1.0, sections 3.2 (connection establishment) and 3.3
(error handling).
"""

from __future__ import annotations

from collections.abc import Callable

from ondie.emu.controller import fabrics
from ondie.emu.controller.fabrics import (
    Association,
    Connect,
    ConnectRefused,
    FabricsCode,
    FabricsType,
)
from ondie.emu.controller.prp import Memory
from ondie.emu.controller.sgl import Place, walk
from ondie.emu.controller.status_code import Code, Refused, status_field
from ondie.emu.nvme.wire import Cqe, Sqe
from ondie.emu.serve.handshakes import Phase
from ondie.emu.serve.nvme_tcp_wire import (
    BEFORE_IC,
    COMMON,
    Fatal,
    Framing,
    Pdu,
    PduType,
    c2h_term_req,
    capsule_resp,
    icresp,
    negotiate,
    parse,
)

FOR_CONNECT = frozenset({PduType.CAPSULE_CMD, PduType.H2C_TERM_REQ})
SGL_BYTES = slice(24, 40)


class NoMemory(Memory):
    """Host memory without any accessible byte: with this transport, PDUs carry all data, and the
    controller cannot access host memory."""

    def read(self, address: int, size: int) -> bytes | None:
        return None

    def holds(self, address: int, size: int) -> bool:
        return False


def in_capsule(entry: bytes, size: int, capsule: int) -> slice | None:
    """Return the position of the ``size`` data bytes of a command in the data of its capsule, or
    None if other PDUs carry the data. ``entry``: submission queue entry, bytes[64]. ``capsule``:
    size of the data in the capsule, bytes. Raises Refused if the type of the SGL descriptor is not
    supported, if the descriptor describes fewer than ``size`` bytes, or if the position exceeds the
    capsule."""
    kind = entry[39] >> 4
    if kind in (0x2, 0x3):  # segments are in memory
        raise Refused(Code.SGL_TYPE_INVALID, 39)
    piece = walk(entry[SGL_BYTES], size, NoMemory(), capsule)[0]
    if piece.place is not Place.CAPSULE:
        return None
    return slice(piece.address, piece.address + piece.size)


class Handshake:
    """Handshake of one client.

    When :attr:`phase` is SERVED, :attr:`association` and :attr:`connect` describe the admitted
    queue, and :attr:`rest` contains the bytes that arrived after the Connect command. ``admit``:
    function that returns the association for a Connect command, or raises ConnectRefused.
    ``leave``: function that removes the admitted queue from its association if the client
    disconnects before it is served. Its arguments are the association and the queue identifier.
    """

    def __init__(
        self,
        admit: Callable[[Connect], Association],
        leave: Callable[[Association, int], None],
    ) -> None:
        self.phase = Phase.OPEN
        self.framing = Framing()
        self.association: Association
        self.connect: Connect
        self.cid = 0
        """Command identifier of the Connect command. The session completes this command."""
        self.rest = b""
        self._admit, self._leave = admit, leave
        self._initialized = False

    def greeting(self) -> bytes:
        """Return no bytes, because the host sends the first message."""
        return b""

    def drop(self) -> bytes:
        """Remove the admitted queue of a client that has disconnected or cannot be served. Return
        the response to its Connect command, with the status Controller Busy."""
        self._leave(self.association, self.connect.qid)
        busy = ConnectRefused(FabricsCode.CONTROLLER_BUSY)
        return capsule_resp(busy.entry(self.cid).pack(), self.framing)

    def feed(self, data: bytes) -> bytes:
        """Process ``data`` from the host; return the bytes to send."""
        self.rest += data
        out = b""
        try:
            while self.phase is Phase.OPEN:
                expected = FOR_CONNECT if self._initialized else BEFORE_IC
                pdu = parse(memoryview(self.rest), self.framing, expected)
                if pdu is None:
                    break
                out += self._answer(pdu)
                self.rest = self.rest[pdu.size :]
        except Fatal as fatal:
            self.phase = Phase.ENDED
            out += c2h_term_req(fatal)
        return out

    def _answer(self, pdu: Pdu) -> bytes:
        """Process a PDU; return the bytes to send. Raises Fatal if the PDU is invalid."""
        if pdu.kind is PduType.ICREQ:
            self.framing, _ = negotiate(pdu, self.framing)
            self._initialized = True
            return icresp(self.framing)
        if pdu.kind is PduType.H2C_TERM_REQ:
            self.phase = Phase.ENDED
            return b""
        entry = pdu.header[COMMON.size :]
        self.cid = Sqe.unpack(entry).cid
        try:
            self.connect = self._connect(entry, pdu)
            self.association = self._admit(self.connect)
        except ConnectRefused as refused:
            found = refused.entry(self.cid)
        except Refused as refused:
            found = Cqe(self.cid, status_field(refused.code))
        else:
            self.phase = Phase.SERVED
            return b""
        self.phase = Phase.ENDED
        return capsule_resp(found.pack(), self.framing)

    def _connect(self, entry: bytes, pdu: Pdu) -> Connect:
        """Return the Connect command in a capsule. Raises ConnectRefused if a field is invalid.
        Raises Refused if the capsule contains another command, if its data digest is incorrect, or
        if the SGL descriptor is invalid."""
        if entry[0] != fabrics.OPCODE or entry[fabrics.FCTYPE_BYTE] != FabricsType.CONNECT:
            raise Refused(Code.SEQUENCE_ERROR)
        if not pdu.intact:
            raise Refused(Code.TRANSIENT_TRANSPORT)
        place = in_capsule(entry, fabrics.CONNECT_BYTES, len(pdu.data))
        if place is None:
            raise Refused(Code.SGL_TYPE_INVALID, 39)
        return Connect.unpack(entry, bytes(pdu.data[place]))
