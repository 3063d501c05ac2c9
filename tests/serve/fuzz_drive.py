"""Owns: a small drive for fuzzing of its NVMe controllers, as new for each input, and what must
hold of it after each. Does not own: the words of a protocol. Source: own.
"""

import contextlib
import functools
from collections.abc import Iterator

import numpy as np

from ondie.emu.controller.health_logs import NEVER
from ondie.emu.controller.status_code import Code
from ondie.emu.drive import Drive
from ondie.emu.nvme.command import READ, WRITE, commands_of, first_error
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.served import ServedDrive
from ondie.emu.service import Service
from tests.state.test_service import MODES, SMALL
from tests.state.written import config

BLOCK = 512
STATUSES = frozenset(int(code) for code in Code) | {0x183, 0x185, 0x181, 0x182, 0x180}
"""Statuses that a completion may have: those of commands and of fabrics commands."""
DO_NOT_RETRY = 1 << 14


@functools.cache
def served() -> ServedDrive:
    """The drive of this process. Its last unit belongs to no namespace, and holds TAIL."""
    drive = Drive(config(**(SMALL | MODES["write back"])), payload=True, block_bytes=BLOCK)
    return ServedDrive(drive, Service(drive))


def tail() -> bytes:
    """The bytes that belong to no namespace."""
    found = served()
    unit = np.zeros(found.unit, np.uint8)
    done = found.connect().run(commands_of([(READ, found.capacity - unit.size, unit.size, 0, 0)]),
                               unit)  # fmt: skip
    assert first_error(done) == 0
    return unit.tobytes()


def mark() -> bytes:
    """Write the bytes that belong to no namespace, and return them."""
    found = served()
    unit = np.random.default_rng(3).integers(0, 256, found.unit, np.uint8)
    if tail() == unit.tobytes():
        return unit.tobytes()
    command = commands_of([(WRITE, found.capacity - unit.size, unit.size, 0, 0)])
    assert first_error(found.connect().run(command, unit)) == 0
    return unit.tobytes()


@contextlib.contextmanager
def as_new() -> Iterator[NvmeDrive]:
    """The drive with one namespace, of half its bytes. At the end: no lock is held, nobody is at
    the gate, no controller is left, and bytes outside of all namespaces are as before unless a
    sanitize operation or a new namespace had them."""
    nvme = NvmeDrive(served(), serial="F", io_queues=4, vectors=3, several_controllers=True)
    spaces = nvme.shared.namespaces
    spaces.delete(1)
    spaces.create(nvme.capabilities.capacity_bytes // 2 // BLOCK).attached = True
    created, before = spaces.created, mark()
    try:
        yield nvme
    finally:
        nvme.close()
    assert nvme.lock.acquire(timeout=0), "the lock of the drive is held"
    with nvme.gate.alone():
        pass
    assert not nvme._posts, "a controller is left"
    if nvme.shared.sanitize.status == NEVER and spaces.created == created:
        assert tail() == before, "bytes outside of the namespace have changed"


def check_status(field: int) -> None:
    """Check the status field of a completion, without the phase tag."""
    assert field & ~DO_NOT_RETRY in STATUSES, f"status field 0x{field:04x}"
