"""vfio-user server for the PCIe function; the server has one client at a time.

Owns the socket, the file descriptors that arrive with messages, the interrupts of the client, and
the thread of the server. Does not own the layout of messages (vfio_wire.py), guest memory
(guest_memory.py) or the device (pcie_function.py). File descriptors belong to the last message of
the bytes that one recvmsg returns (SCM_RIGHTS).
Source: vfio-user Protocol Specification; Linux, unix(7), eventfd(2).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable

from ondie.emu.serve import vfio_wire as wire
from ondie.emu.serve.address import Listener
from ondie.emu.serve.defects import show_exception
from ondie.emu.serve.handshakes import NO_FILES_S
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.pci_space import BAR0_BYTES, CONFIG_BYTES
from ondie.emu.serve.pcie_function import PcieFunction
from ondie.emu.serve.vfio_wire import Broken, Header, Irq, Message, Refused, Region

HANDSHAKE_S = 10.0
"""Time limit for a client to negotiate the protocol version, s."""
SHADOW_S = 0.1
"""Maximum duration of a sleep of the server's thread if the client uses shadow doorbells, s."""
SEND_S = 10.0
"""Time limit for a client to receive a reply, s."""
RECEIVE_BYTES = 1 << 16
ANCILLARY_BYTES = socket.CMSG_LEN(wire.MOST_FDS * 4)
REGION_BYTES = {Region.BAR0: BAR0_BYTES, Region.CONFIG: CONFIG_BYTES}
"""Size of each region that the device has, bytes."""
ONE = (1).to_bytes(8, "little")
MOST_SELECTED = 1024
"""Limit of select(2), which supports only file descriptors below this number."""


class Interrupts:
    """Event descriptors (eventfd) through which a client receives interrupts. ``vectors``: number
    of MSI-X vectors."""

    def __init__(self, vectors: int) -> None:
        self.counts = tuple({Irq.MSIX: vectors, Irq.REQ: 1}.get(Irq(at), 0) for at in range(5))
        self._events: dict[tuple[int, int], int] = {}
        self._masked: set[tuple[int, int]] = set()
        self._pending: set[tuple[int, int]] = set()

    def set(self, asked: wire.IrqSet, fds: list[int]) -> None:
        """Execute SET_IRQS. ``fds``: file descriptors of the message; those that are kept are
        removed from the list. Raises Refused if the action, a descriptor or the number of
        descriptors is invalid."""
        kind, index = asked.flags & 0b111, asked.irq
        if asked.number == 0:
            for key in [key for key in self._events if key[0] == index]:
                self._forget(key)
            return
        keys = [(index, asked.first + at) for at in range(asked.number)]
        if kind == wire.DATA_EVENTFD:
            if not asked.flags & wire.ACTION_TRIGGER or len(fds) not in (0, asked.number):
                raise Refused(errno.EINVAL)
            if not all(is_event(fd) for fd in fds):  # a write to another file may wait for ever
                raise Refused(errno.EINVAL)
            for key in keys:
                waits = key in self._pending
                self._forget(key)
                if fds:
                    self._events[key] = fds.pop(0)
                    if waits:
                        self.send(*key)
            return
        chosen = [key for at, key in enumerate(keys) if kind == wire.DATA_NONE or asked.values[at]]
        for key in chosen:
            if asked.flags & wire.ACTION_MASK:
                self._masked.add(key)
            elif asked.flags & wire.ACTION_UNMASK:
                self._masked.discard(key)
                if key in self._pending:
                    self.send(*key)
            else:
                self.send(*key)

    def _forget(self, key: tuple[int, int]) -> None:
        self._pending.discard(key)
        fd = self._events.pop(key, None)
        if fd is not None:
            os.close(fd)

    def send(self, index: int, number: int) -> bool:
        """Send interrupt ``number`` of type ``index`` (see Irq), and return True. If the interrupt
        is masked or has no event descriptor, mark it as pending and return False."""
        key = (index, number)
        event = self._events.get(key)
        if event is None or key in self._masked:
            self._pending.add(key)
            return False
        self._pending.discard(key)
        os.set_blocking(event, False)  # the client shares this setting, and may have changed it
        with contextlib.suppress(BlockingIOError):  # the count is full: the host will see it
            os.write(event, ONE)
        return True

    def close(self) -> None:
        """Close all event descriptors."""
        for key in list(self._events):
            self._forget(key)


class Session:
    """Session of one client of ``drive``. :meth:`run` returns when the client has disconnected."""

    def __init__(self, sock: socket.socket, drive: NvmeDrive) -> None:
        self._socket = sock
        sock.setblocking(False)
        self.interrupts = Interrupts(drive.capabilities.vectors)
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waking = threading.Lock()
        """Lock of ``_woken``, which is -1 after the end of the session."""
        self.function = PcieFunction(
            drive, lambda vector: self.interrupts.send(Irq.MSIX, vector), self.wake
        )
        self.memory = self.function.memory
        self._data = bytearray()
        self._fds: list[tuple[int, list[int]]] = []
        """(End in ``_data`` of the bytes with which descriptors arrived, file descriptors)."""
        self._agreed = False
        self._unplug = threading.Event()
        self.why = ""
        """Reason why the session has ended."""

    def wake(self) -> None:
        """Wake the thread of the session. Any thread may call this method, even after the end of
        the session."""
        with self._waking, contextlib.suppress(BlockingIOError):
            if self._woken >= 0:
                os.write(self._woken, ONE)

    def unplug(self) -> None:
        """Ask the client to release the device. Any thread may call this method."""
        self._unplug.set()
        self.wake()

    def run(self) -> None:
        """Execute messages until the client disconnects or violates the protocol."""
        try:
            self._loop()
        except Broken as error:
            self.why = str(error)
        except OSError as error:
            self.why = error.strerror or str(error)
        finally:
            self.function.close()
            self.memory.clear()
            self.interrupts.close()
            for _, fds in self._fds:
                close_all(fds)
            with self._waking:  # a file that is opened next may get the number
                os.close(self._woken)
                self._woken = -1

    def _loop(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        deadline = time.monotonic() + HANDSHAKE_S
        while True:
            if not self._receive():
                return
            self._take_messages()
            more = self.function.work()
            if self._unplug.is_set():
                self._unplug.clear()
                self.interrupts.send(Irq.REQ, 0)
            interrupt_s = self.function.send_waiting()
            if more or not self.function.may_sleep():
                continue
            if interrupt_s is not None:
                self._sleep_exactly(interrupt_s)
                continue
            wait = None if self._agreed else deadline - time.monotonic()
            if wait is not None and wait <= 0:
                raise Broken(f"the client has not negotiated a version within {HANDSHAKE_S:g} s")
            if wait is None and self.function.has_shadow:
                wait = SHADOW_S
            ready = poll.poll(None if wait is None else wait * 1e3)
            if not ready:
                self.function.look_late()
            for fd, _ in ready:
                if fd == self._woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._woken, 8)

    def _sleep_exactly(self, seconds: float) -> None:
        """Sleep until the client sends bytes or :meth:`wake` is called, but at most ``seconds``.
        Use select(2), or poll(2), whose resolution is 1 ms, if a descriptor is too large for
        select(2)."""
        fds = [self._socket.fileno(), self._woken]
        if max(fds) < MOST_SELECTED:
            ready = select.select(fds, [], [], seconds)[0]
        else:
            poll = select.poll()
            for fd in fds:
                poll.register(fd, select.POLLIN)
            ready = [fd for fd, _ in poll.poll(1e3 * seconds)]
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 8)

    def _receive(self) -> bool:
        """Receive bytes and descriptors; return False if the client has disconnected. Raises Broken
        if too many descriptors arrive."""
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                RECEIVE_BYTES, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return True
        fds: list[int] = []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) // 4 * 4
                fds += memoryview(content[:whole]).cast("i").tolist()
        self._data += data
        if fds:
            self._fds.append((len(self._data), fds))
        if flags & socket.MSG_CTRUNC or sum(len(some) for _, some in self._fds) > wire.MOST_FDS:
            raise Broken(f"a message has more than {wire.MOST_FDS} file descriptors")
        return bool(data)

    # --- messages

    def _take_messages(self) -> None:
        """Execute all messages that have arrived completely, and reply to them."""
        at, held = 0, len(self._data)
        try:
            while held - at >= wire.HEADER_BYTES:
                if held - at >= wire.POST_BYTES and self._agreed and not self._fds:
                    value = wire.posted_word(self._data, at)
                    if value is not None:
                        self.function.write_word(*value)
                        at += wire.POST_BYTES
                        continue
                header = wire.parse_header(self._data, at)
                if held - at < header.size:
                    return
                end = at + header.size
                payload = bytes(self._data[at + wire.HEADER_BYTES : end])
                at = end
                self._answer(header, payload, self._descriptors(end))
        finally:
            del self._data[:at]
            self._fds = [(end - at, fds) for end, fds in self._fds]

    def _descriptors(self, end: int) -> list[int]:
        """Return the file descriptors of the message that ends at position ``end``."""
        found: list[int] = []
        while self._fds and self._fds[0][0] <= end:
            found += self._fds.pop(0)[1]
        return found

    def _answer(self, header: Header, payload: bytes, fds: list[int]) -> None:
        try:
            answer = wire.reply(header, self._execute(header, payload, fds))
        except Refused as refused:
            answer = wire.refusal(header, refused.number)
        finally:
            close_all(fds)
        if header.wants_reply:
            self._send(answer)

    def _send(self, data: bytes) -> None:
        """Send ``data``. Raises OSError if the client has disconnected, and Broken if the client
        receives no bytes for SEND_S seconds."""
        sent = 0
        while sent < len(data):
            try:
                sent += self._socket.send(memoryview(data)[sent:])
            except BlockingIOError:
                if not select.select([], [self._socket], [], SEND_S)[1]:
                    raise Broken(f"the client has not received a reply for {SEND_S:g} s") from None

    def _execute(self, header: Header, payload: bytes, fds: list[int]) -> bytes:
        """Execute a message; return the payload of the reply. Raises Refused if the message is
        invalid, and Broken if it is not VERSION and no version was negotiated."""
        if not self._agreed and header.command != Message.VERSION:
            raise Broken("the first message must be VERSION")
        do = MESSAGES.get(header.command)
        if do is None:
            raise Refused(errno.EOPNOTSUPP)
        return do(self, payload, fds)

    def _version(self, payload: bytes, fds: list[int]) -> bytes:
        major, minor, _ = wire.parse_version(payload)
        if self._agreed or major != wire.MAJOR:
            raise Refused(errno.EINVAL)
        self._agreed = True
        return wire.version_payload(minor)

    def _dma_map(self, payload: bytes, fds: list[int]) -> bytes:
        _, flags, offset, address, size = wire.unpack(wire.MAP, payload)
        if len(fds) > 1:
            raise Refused(errno.EINVAL)
        self.memory.map(address, size, flags, fds[0] if fds else None, offset)
        return b""

    def _dma_unmap(self, payload: bytes, fds: list[int]) -> bytes:
        _, flags, address, size = wire.unpack(wire.UNMAP, payload)
        if flags & ~wire.UNMAP_ALL:
            raise Refused(errno.EINVAL)
        if flags & wire.UNMAP_ALL:
            if address or size:
                raise Refused(errno.EINVAL)
            self.memory.clear()
        else:
            self.memory.unmap(address, size)
        return payload

    def _get_info(self, payload: bytes, fds: list[int]) -> bytes:
        (argsz, *_) = wire.unpack(wire.INFO, payload)
        if argsz < wire.INFO.size:
            raise Refused(errno.EINVAL)
        flags = wire.INFO_RESET | wire.INFO_PCI
        return wire.INFO.pack(wire.INFO.size, flags, wire.REGIONS, wire.IRQS)

    def _get_region_info(self, payload: bytes, fds: list[int]) -> bytes:
        argsz, _, index, *_ = wire.unpack(wire.REGION_INFO, payload)
        if argsz < wire.REGION_INFO.size or index >= wire.REGIONS:
            raise Refused(errno.EINVAL)
        size = region_bytes(index)
        flags = wire.REGION_READABLE | wire.REGION_WRITABLE if size else 0
        return wire.REGION_INFO.pack(wire.REGION_INFO.size, flags, index, 0, size, 0)

    def _get_region_io_fds(self, payload: bytes, fds: list[int]) -> bytes:
        argsz, flags, index, count = wire.unpack(wire.IO_FDS, payload)
        if argsz < wire.IO_FDS.size or flags or count or index >= wire.REGIONS:
            raise Refused(errno.EINVAL)
        return wire.IO_FDS.pack(wire.IO_FDS.size, 0, index, 0)

    def _get_irq_info(self, payload: bytes, fds: list[int]) -> bytes:
        argsz, _, index, _ = wire.unpack(wire.IRQ_INFO, payload)
        if argsz < wire.IRQ_INFO.size or index >= wire.IRQS:
            raise Refused(errno.EINVAL)
        count = self.interrupts.counts[index]
        flags = wire.IRQ_EVENTFD | wire.IRQ_NORESIZE if count else 0
        return wire.IRQ_INFO.pack(wire.IRQ_INFO.size, flags, index, count)

    def _set_irqs(self, payload: bytes, fds: list[int]) -> bytes:
        self.interrupts.set(wire.parse_irq_set(payload, self.interrupts.counts), fds)
        return b""

    def _region_read(self, payload: bytes, fds: list[int]) -> bytes:
        offset, region, count = wire.unpack(wire.ACCESS, payload)
        check_access(region, offset, count)
        read = self.function.read if region == Region.BAR0 else self.function.space.read
        return payload + read(offset, count)

    def _region_write(self, payload: bytes, fds: list[int]) -> bytes:
        offset, region, count = wire.unpack(wire.ACCESS, payload, exact=False)
        if len(payload) != wire.ACCESS.size + count:
            raise Refused(errno.EINVAL)
        self._write(region, offset, payload[wire.ACCESS.size :])
        return payload[: wire.ACCESS.size]

    def _region_write_multi(self, payload: bytes, fds: list[int]) -> bytes:
        writes = wire.parse_writes(payload)
        for region, offset, data in writes:
            check_access(region, offset, len(data))
        for region, offset, data in writes:
            self._write(region, offset, data)
        return wire.MULTI.pack(len(writes))

    def _write(self, region: int, offset: int, data: bytes) -> None:
        """Write ``data`` to a region at ``offset``. Raises Refused if the range exceeds the
        region."""
        check_access(region, offset, len(data))
        if region == Region.BAR0:
            self.function.write(offset, data)
        elif self.function.space.write(offset, data):
            self.function.reset()

    def _reset(self, payload: bytes, fds: list[int]) -> bytes:
        if payload:
            raise Refused(errno.EINVAL)
        self.function.reset()
        return b""


MESSAGES: dict[int, Callable[[Session, bytes, list[int]], bytes]] = {
    Message.VERSION: Session._version,
    Message.DMA_MAP: Session._dma_map,
    Message.DMA_UNMAP: Session._dma_unmap,
    Message.GET_INFO: Session._get_info,
    Message.GET_REGION_INFO: Session._get_region_info,
    Message.GET_REGION_IO_FDS: Session._get_region_io_fds,
    Message.GET_IRQ_INFO: Session._get_irq_info,
    Message.SET_IRQS: Session._set_irqs,
    Message.REGION_READ: Session._region_read,
    Message.REGION_WRITE: Session._region_write,
    Message.RESET: Session._reset,
    Message.RESET_0_9: Session._reset,
    Message.REGION_WRITE_MULTI: Session._region_write_multi,
}


def region_bytes(index: int) -> int:
    """Return the size of region ``index``, bytes, or 0 if the device does not have this region."""
    return next((size for region, size in REGION_BYTES.items() if region == index), 0)


def check_access(region: int, offset: int, count: int) -> None:
    """Raise Refused if ``count`` or ``offset`` is invalid for an access to ``region``."""
    if not 1 <= count <= wire.MOST_DATA or offset + count > region_bytes(region):
        raise Refused(errno.EINVAL)


def is_event(fd: int) -> bool:
    """Return True if ``fd`` is an eventfd."""
    return os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventfd]"


def close_all(fds: list[int]) -> None:
    """Close all file descriptors in ``fds``, and clear the list."""
    for fd in fds:
        os.close(fd)
    fds.clear()


class VfioUserServer:
    """vfio-user server of ``drive``. It serves one client at a time at ``listener`` until
    :meth:`close`."""

    def __init__(self, drive: NvmeDrive, listener: Listener) -> None:
        self.drive, self.listener = drive, listener
        self.sessions = 0
        self.session: Session | None = None
        self._socket: socket.socket | None = None
        self._closing = False
        self._lock = threading.Lock()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="ondie vfio-user", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Complete the commands in flight, disconnect the client, and stop the thread."""
        with self._lock:
            self._closing = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
        self._wake.send(b"x")
        self._thread.join()
        self._wake.close()
        self._woken.close()

    def unplug(self) -> bool:
        """Ask the client to release the device; return False if no client is connected."""
        with self._lock:
            if self.session is None:
                return False
            self.session.unplug()
            return True

    def _serve(self) -> None:
        try:
            while True:
                ready = select.select([self.listener.socket, self._woken], [], [])[0]
                if self._woken in ready:
                    return
                try:
                    sock = self.listener.socket.accept()[0]
                except OSError:  # the client has gone, or there are no more files
                    time.sleep(NO_FILES_S)
                    continue
                with contextlib.suppress(OSError):
                    self._serve_one(sock)
        finally:
            self.listener.close()

    def _serve_one(self, sock: socket.socket) -> None:
        with contextlib.closing(sock):
            with self._lock:
                if self._closing:
                    return
                session = Session(sock, self.drive)
                self.session, self._socket = session, sock
                self.sessions += 1
            try:
                session.run()
            except Exception:  # noqa: BLE001 - a defect ends the connection of one client
                show_exception("the client of vfio-user")
            finally:
                with self._lock:
                    self.session = self._socket = None
