"""Owns: a small drive for fuzzing of its NVMe controllers, as new for each input, and another one
with states and computation commands; what must hold of them after each input. Does not own: the
words of a protocol. Source: own.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator

import numpy as np

from ondie.emu.controller.health_logs import NEVER
from ondie.emu.controller.status_code import Code
from ondie.emu.drive import Drive
from ondie.emu.nvme.command import READ, WRITE, commands_of, first_error
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.served import ServedDrive
from ondie.emu.service import Service
from tests.protocol.compute_host import StatesDrive
from tests.state.test_service import MODES, SMALL
from tests.state.written import config

BLOCK = 512
STATUSES = frozenset(int(code) for code in Code) | {0x183, 0x185, 0x181, 0x182, 0x180}
"""Statuses that a completion may have: those of commands and of fabrics commands."""
DO_NOT_RETRY = 1 << 14
PARAMS = 5000
"""Parameters whose states a drive holds."""
COMPUTE_S = 10.0
"""Time in which a computation command must end."""


@functools.cache
def served() -> ServedDrive:
    """The drive of this process. Its last unit belongs to no namespace, and holds TAIL."""
    drive = Drive(config(**(SMALL | MODES["write back"])), payload=True, block_bytes=BLOCK)
    return ServedDrive(drive, Service(drive))


@functools.cache
def with_states() -> StatesDrive:
    """The drive of this process that holds states. Its updates are kept from input to input."""
    return StatesDrive(params=PARAMS)


def tail(found: ServedDrive) -> bytes:
    """The bytes that belong to no namespace."""
    unit = np.zeros(found.unit, np.uint8)
    done = found.connect().run(commands_of([(READ, found.capacity - unit.size, unit.size, 0, 0)]),
                               unit)  # fmt: skip
    assert first_error(done) == 0
    return unit.tobytes()


def mark(found: ServedDrive) -> bytes:
    """Write the bytes that belong to no namespace, and return them."""
    unit = np.random.default_rng(3).integers(0, 256, found.unit, np.uint8)
    if tail(found) == unit.tobytes():
        return unit.tobytes()
    command = commands_of([(WRITE, found.capacity - unit.size, unit.size, 0, 0)])
    assert first_error(found.connect().run(command, unit)) == 0
    return unit.tobytes()


@contextlib.contextmanager
def as_new(compute: bool = False) -> Iterator[NvmeDrive]:
    """The drive with one namespace, of half its bytes; ``compute``: that with states, which are a
    second one. At the end: no lock is held, nobody is at the gate, no controller is left, and bytes
    outside of all namespaces are as before unless a sanitize operation or a new namespace had them.
    States have changed by updates only, and no computation command holds memory or a program.
    """
    bench = with_states() if compute else None
    found = served() if bench is None else bench.served
    known = list(found.at_power_on), list(found.at_power_cut)
    states = None if bench is None else bench.states
    nvme = NvmeDrive(found, serial="F", io_queues=4, vectors=3, several_controllers=True,
                     states=states)  # fmt: skip
    spaces = nvme.shared.namespaces
    spaces.delete(1)
    spaces.create(nvme.capabilities.capacity_bytes // 2 // found.block).attached = True
    created, before = spaces.created, mark(found)
    held = ((0, False), b"") if bench is None else vectors(bench)
    try:
        yield nvme
        await_computation()
    finally:
        nvme.close()
        found.at_power_on[:], found.at_power_cut[:] = known
    assert nvme.lock.acquire(timeout=0), "the lock of the drive is held"
    with nvme.gate.alone():
        pass
    assert not nvme._posts, "a controller is left"
    if nvme.shared.sanitize.status == NEVER and spaces.created == created:
        assert tail(found) == before, "bytes outside of the namespace have changed"
    if bench is not None:
        check_computation(nvme, bench, held)


def vectors(bench: StatesDrive) -> tuple[tuple[int, bool], bytes]:
    """Number of the last update and whether it is complete, and the bytes of the states."""
    states = bench.states

    def read() -> tuple[tuple[int, bool], bytes]:
        data = states.stored_bytes(0, states.bytes_of_all)
        return (states.step, states.complete), data.tobytes()

    found: tuple[tuple[int, bool], bytes] = bench.service.call(read).result()
    return found


def await_computation() -> None:
    """Wait until all computation commands have ended."""
    for each in threading.enumerate():
        if each.name == "ondie computation":
            each.join(COMPUTE_S)
            assert not each.is_alive(), f"a computation command takes more than {COMPUTE_S:g} s"


def check_computation(
    nvme: NvmeDrive, bench: StatesDrive, before: tuple[tuple[int, bool], bytes]
) -> None:  # fmt: skip
    """Check what computation commands have left."""
    assert nvme.computation is not None
    assert nvme.computation._running == 0, "a command runs"
    device = nvme.computation.device
    for each in device.memory.memories.values():
        assert each.users == each.programs == 0, "a memory is in use"
    assert not any(device.programs.running.values()), "a program runs"
    number, data = vectors(bench)
    updated = number != before[0] or nvme.computation._counts["updates"]
    assert updated or data == before[1], "states have changed without an update"


def check_status(field: int) -> None:
    """Check the status field of a completion, without the phase tag."""
    assert field & ~DO_NOT_RETRY in STATUSES, f"status field 0x{field:04x}"
