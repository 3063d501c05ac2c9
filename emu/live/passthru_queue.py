"""Admin queue of an NVMe controller behind the driver of Linux: passthrough of commands.

Owns the threads that wait in the driver, and a data buffer for each thread. Does not own the
meaning of commands (nvme/tunnel/) or the transport through vfio-user (admin_queue.py).
Source: Linux 6.1, include/uapi/linux/nvme_ioctl.h, drivers/nvme/host/ioctl.c and nvme.h.

The driver assigns an identifier to each command, and its call returns when the command has
completed. Every command in flight therefore needs a thread, even a receive command that the drive
holds. The hold time must be less than 60 s, because the driver considers a command lost after this
time. The driver's admin queue has room for 30 commands, including the commands of the driver
itself. This module does not import NumPy, because a virtual machine may contain little more than
Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import queue
import signal
import stat
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from ondie.emu.live.admin_queue import PAGE, data_bytes, received_bytes
from ondie.emu.nvme import wire
from ondie.emu.nvme.tunnel.framing import Data
from ondie.emu.nvme.wire import Command, Completion, Cqe, Sqe
from ondie.emu.units import InputError

PASSTHRU = struct.Struct("<BBHIIIQQII6IIIQ")
"""Format of struct nvme_passthru_cmd64: opcode, flags, reserved, nsid, cdw2, cdw3, metadata,
address, metadata bytes, data bytes, cdw10 to cdw15, timeout ms, reserved, result (dw0, dw1)."""
ADMIN64_CMD = 0xC0504E47
"""ioctl(2) request number NVME_IOCTL_ADMIN64_CMD: _IOWR('N', 0x47, struct nvme_passthru_cmd64)."""
RESULT = slice(72, 80)
STATUS_BITS = 0x7FF
MOST_THREADS = 28
"""Maximum number of threads of one queue, which is also the maximum number of the queue's commands
in the NVMe driver at a time."""
RESET_S, PAUSE_S = 20.0, 0.02
"""RESET_S: maximum time for which the driver may refuse all commands because its queue is disabled.
PAUSE_S: pause after a refused command. Both in seconds."""
Ioctl = Callable[[int, int, bytearray, bool], int]
"""Type of the function fcntl.ioctl, and of its replacement in tests."""


class PassthruQueue:
    """Admin queue of the controller with the character device ``path``, such as /dev/nvme0.

    ``payload``: maximum number of data bytes of a command. ``end_s``: time that :meth:`close` waits
    for each thread to complete its command. ``ioctl``: function that calls the driver. Raises
    InputError if the file cannot be opened or is not a character device.
    """

    def __init__(
        self, path: str, payload: int, end_s: float = 1.0, ioctl: Ioctl = fcntl.ioctl
    ) -> None:
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"--dev {path}: cannot be opened: {error.strerror}") from error
        if not stat.S_ISCHR(os.fstat(self._file).st_mode):
            os.close(self._file)
            raise InputError(f"--dev {path}: must be the character device of a controller, such "
                             "as /dev/nvme0")  # fmt: skip
        self._payload, self._end_s, self._ioctl = payload, end_s, ioctl
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._todo: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._done: deque[Completion] = deque()
        self._threads: list[threading.Thread] = []
        self._under_way = 0
        """Number of commands that were submitted and whose completions have not been returned."""
        self._broken: OSError | None = None
        self._off_since = 0.0
        """Time when the driver began to refuse commands, s of the monotonic clock; 0 if it does not
        refuse commands."""

    def close(self) -> None:
        """Terminate the threads. A thread whose command has not completed after ``end_s`` is
        abandoned; the queue's files then stay open."""
        for _ in self._threads:
            self._todo.put(None)
        for each in self._threads:
            each.join(self._end_s)
        if not any(each.is_alive() for each in self._threads):
            os.close(self._file)
            os.close(self._event)
        self._threads.clear()

    def fileno(self) -> int:
        """Return the descriptor that is readable when commands have completed."""
        return self._event

    def submit(self, commands: list[Command]) -> None:
        """Submit NVMe commands to the controller through the driver (see
        admin_queue.AdminQueue)."""
        if self._broken is not None:
            raise self._broken
        for command in commands:
            self._under_way += 1
            self._todo.put(command)
            if len(self._threads) < min(self._under_way, MOST_THREADS):
                thread = threading.Thread(target=self._run, name="ondie passthru", daemon=True)
                self._threads.append(thread)
                thread.start()

    def completions(self) -> list[Completion]:
        """Return the completions that have arrived since the last call (see
        admin_queue.AdminQueue)."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        found = []
        while self._done:
            found.append(self._done.popleft())
        self._under_way -= len(found)
        if self._broken is not None and not found:
            raise self._broken
        return found

    # --- threads

    def _run(self) -> None:
        """Execute commands one after the other, in a thread."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the main thread's
        buffer = mmap.mmap(-1, max(self._payload, PAGE))
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        while (command := self._todo.get()) is not None:
            try:
                self._done.append(self._execute(command, buffer, address))
            except OSError as error:
                self._broken = error
            os.eventfd_write(self._event, 1)

    def _execute(self, command: Command, buffer: mmap.mmap, address: int) -> Completion:
        """Execute a command through the driver; return its completion. Raises OSError if the driver
        refuses the command for a reason other than a reset, or has refused commands for RESET_S."""
        sqe, size = Sqe.unpack(command.sqe), data_bytes(command)
        if command.data:
            buffer[:size] = bytes(command.data)
        asked = bytearray(
            PASSTHRU.pack(
                sqe.opcode, 0, 0, sqe.nsid, sqe.cdw2, sqe.cdw3, 0, address if size else 0, 0, size,
                *sqe[9:15], 0, 0, 0,
            )
        )  # fmt: skip
        try:
            status = self._ioctl(self._file, ADMIN64_CMD, asked, True) & STATUS_BITS
            self._off_since = 0.0
        except InterruptedError:  # a reset of the controller has cancelled it
            status = wire.ABORTED_BY_HOST
        except OSError as error:
            if error.errno != errno.EIO or not self._may_be_reset():
                raise
            status = wire.PATH_ERROR
        dw0, dw1 = struct.unpack("<II", asked[RESULT])
        data: Data = b""
        if size and not command.data and not status:
            data = buffer[: received_bytes(sqe.cid, buffer, size)]
        return Completion(Cqe(sqe.cid, status, dw0, dw1).pack(), data)

    def _may_be_reset(self) -> bool:
        """Wait for PAUSE_S. Return False if the driver has refused commands for RESET_S.

        During a reset, the driver refuses commands that arrive after it has disabled its queue and
        before it has stopped the queue (drivers/nvme/host/pci.c, nvme_queue_rq: BLK_STS_IOERR). The
        controller has not received these commands.
        """
        now = time.monotonic()
        since = self._off_since or now  # another thread may set it
        self._off_since = since
        time.sleep(PAUSE_S)
        return now - since < RESET_S
