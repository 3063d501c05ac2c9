"""Controller registers (properties), and the states of a controller.

Owns the table of registers, their reset values, the state machine of the controller (disabled,
enabling, ready, disabling, failed), and the state of a shutdown. Does not own doorbells and queues
(the transport), or the commands of an enabled controller (admin.py).
Source: NVM Express Base Specification 2.0, section 3.1.3 (controller properties), figures "CAP",
"CC", "CSTS", "NSSR", "AQA", "CRTO"; sections 3.5.3 (enabling), 3.6.1 (shutdown), 3.7.2 (controller
reset).

A transport passes each register access to ``read`` or ``write``. ``write`` returns the actions that
the access starts. The transport performs these actions, which may take any time. After each action,
it calls the method that the description of the action names (actions.py). If a host resets the
controller while commands are in flight, it reads CSTS.RDY = 1 until the transport calls
``disabled``.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ondie.emu.controller.actions import Action, Do
from ondie.emu.controller.capabilities import (
    MEMORY_PAGE_BYTES,
    MOST_MEMORY_PAGE_BYTES,
    Capabilities,
)
from ondie.emu.controller.identify_controller import VERSION


class Access(Enum):
    """Effect of a host write on the bits of a register."""

    READ_ONLY = "RO"
    READ_WRITE = "RW"
    SET = "RW1S"
    CLEAR = "RW1C"
    WRITE_ONLY = "WO"


class Register(NamedTuple):
    """Row of the table of registers: location, name and access type of a register."""

    offset: int
    size: int
    name: str
    title: str
    access: Access


REGISTERS = (
    Register(0x00, 8, "CAP", "Controller Capabilities", Access.READ_ONLY),
    Register(0x08, 4, "VS", "Version", Access.READ_ONLY),
    Register(0x0C, 4, "INTMS", "Interrupt Mask Set", Access.SET),
    Register(0x10, 4, "INTMC", "Interrupt Mask Clear", Access.CLEAR),
    Register(0x14, 4, "CC", "Controller Configuration", Access.READ_WRITE),
    Register(0x1C, 4, "CSTS", "Controller Status", Access.CLEAR),
    Register(0x20, 4, "NSSR", "NVM Subsystem Reset", Access.WRITE_ONLY),
    Register(0x24, 4, "AQA", "Admin Queue Attributes", Access.READ_WRITE),
    Register(0x28, 8, "ASQ", "Admin Submission Queue Base Address", Access.READ_WRITE),
    Register(0x30, 8, "ACQ", "Admin Completion Queue Base Address", Access.READ_WRITE),
    Register(0x68, 4, "CRTO", "Controller Ready Timeouts", Access.READ_ONLY),
)
DOORBELLS = 0x1000
"""Offset of the first doorbell register from the start of the controller's registers, bytes."""

# CAP
CONTIGUOUS = 1 << 16
TIMEOUT = 120 << 24  # units of 500 ms: a shutdown flushes the data cache
SUBSYSTEM_RESET_SUPPORTED = 1 << 36
NVM_COMMAND_SET, ALL_COMMAND_SETS = 1 << 37, 1 << 43
READY_WITH_MEDIA = 1 << 59
# CC
ENABLE = 1
SHUTDOWN = 0b11 << 14
NORMAL, ABRUPT = 0b01, 0b10
COMMAND_SETS = {0b000: "NVM", 0b110: "all supported I/O command sets"}
"""Supported values of CC.CSS, and the command sets that they select."""
CC_WRITABLE = 0x00FF_FFF1
"""Mask of the bits of CC that a host can change: all bits that are not reserved, except CRIME."""
# CSTS
READY, FATAL, SUBSYSTEM_RESET_OCCURRED = 1 << 0, 1 << 1, 1 << 4
PROCESSING, COMPLETE = 0b01 << 2, 0b10 << 2
RESET_WORD = 0x4E564D65
"""Value ("NVMe") that resets the subsystem when the host writes it to NSSR."""
AQA_MASK, BASE_MASK = 0x0FFF_0FFF, ~0xFFF & (1 << 64) - 1


class State(Enum):
    """State of the controller, given by CC.EN, CSTS.RDY and CSTS.CFS."""

    DISABLED = "disabled"
    """State with CC.EN = 0 and CSTS.RDY = 0."""
    ENABLING = "enabling"
    """State with CC.EN = 1 and CSTS.RDY = 0: the transport performs the action ENABLE."""
    READY = "ready"
    """State with CC.EN = 1 and CSTS.RDY = 1: the controller processes commands."""
    DISABLING = "disabling"
    """State with CC.EN = 0 and CSTS.RDY still unchanged: the reset waits until no command accesses
    host memory."""
    FAILED = "failed"
    """State with CSTS.CFS = 1: the controller processes no commands until the host resets it."""


class Event(Enum):
    """Events that change the state of the controller."""

    HOST_ENABLES = "CC.EN 0 to 1"
    HOST_DISABLES = "CC.EN 1 to 0"
    ENABLED = "enabled"
    STOPPED = "disabled"
    FAILURE = "fail"


NEXT: dict[tuple[State, Event], tuple[State, Do | None]] = {
    (State.DISABLED, Event.HOST_ENABLES): (State.ENABLING, Do.ENABLE),
    (State.ENABLING, Event.ENABLED): (State.READY, None),
    (State.ENABLING, Event.FAILURE): (State.FAILED, None),
    (State.ENABLING, Event.HOST_DISABLES): (State.DISABLING, Do.RESET),
    (State.READY, Event.HOST_DISABLES): (State.DISABLING, Do.RESET),
    (State.READY, Event.FAILURE): (State.FAILED, None),
    (State.DISABLING, Event.STOPPED): (State.DISABLED, None),
    (State.DISABLING, Event.FAILURE): (State.FAILED, None),
    (State.DISABLED, Event.FAILURE): (State.FAILED, None),
    (State.FAILED, Event.HOST_DISABLES): (State.DISABLING, Do.RESET),
}
"""State transitions of a controller: (state, event) -> (next state, action for the transport or
None). An event has no effect in a state for which the table does not list it."""


class Registers:
    """The registers of one controller.

    ``interrupt_mask``: value of INTMS and INTMC, one bit for each of 32 interrupt vectors. The mask
    has no effect with MSI-X.
    """

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.state = State.DISABLED
        self.ready = 0
        """Value of CSTS.RDY: 1 if the controller is ready, else 0."""
        self.interrupt_mask = 0
        self.cc = 0
        self.aqa = self.asq = self.acq = 0
        self.shutdown = 0
        """Field SHST of CSTS at its bit position: 0, PROCESSING or COMPLETE."""
        self.reset_occurred = 0
        """Field NSSRO of CSTS at its bit position."""
        self.enable_again = False
        """True if the host has set CC.EN while the reset was in progress."""

    # --- values

    @property
    def cap(self) -> int:
        """Value of register CAP (Controller Capabilities)."""
        exponent = MEMORY_PAGE_BYTES.bit_length() - 1
        most = MOST_MEMORY_PAGE_BYTES.bit_length() - 1
        return (
            min(self.capabilities.queue_entries, 1 << 16) - 1
            | CONTIGUOUS
            | TIMEOUT
            | SUBSYSTEM_RESET_SUPPORTED
            | NVM_COMMAND_SET
            | ALL_COMMAND_SETS
            | exponent - 12 << 48
            | most - 12 << 52
            | READY_WITH_MEDIA
        )

    @property
    def csts(self) -> int:
        """Value of register CSTS (Controller Status)."""
        fatal = FATAL if self.state is State.FAILED else 0
        return self.ready | fatal | self.shutdown | self.reset_occurred

    @property
    def notified(self) -> bool:
        """True if the host has sent a shutdown notification (CC.SHN) since it enabled the
        controller. A power cut then does not count as an unsafe shutdown."""
        return self.shutdown != 0

    @property
    def page_bytes(self) -> int:
        """Memory page size that the host has chosen (CC.MPS), bytes."""
        return MEMORY_PAGE_BYTES << (self.cc >> 7 & 0xF)

    @property
    def admin_entries(self) -> tuple[int, int]:
        """Numbers of entries of the admin submission queue and of the admin completion queue."""
        return (self.aqa & 0xFFF) + 1, (self.aqa >> 16 & 0xFFF) + 1

    def values(self) -> dict[str, int]:
        """Return the values of all registers by name."""
        return {
            "CAP": self.cap,
            "VS": VERSION,
            "INTMS": self.interrupt_mask,
            "INTMC": self.interrupt_mask,
            "CC": self.cc,
            "CSTS": self.csts,
            "NSSR": 0,
            "AQA": self.aqa,
            "ASQ": self.asq,
            "ACQ": self.acq,
            "CRTO": (self.cap >> 24 & 0xFF),
        }

    # --- accesses of the host

    def read(self, offset: int, size: int) -> int:
        """Return the ``size`` bytes starting at ``offset`` as a little-endian number. Reserved
        bytes are zero."""
        values, out = self.values(), bytearray(size)
        for row in REGISTERS:
            data = values[row.name].to_bytes(row.size, "little")
            for at in range(max(row.offset, offset), min(row.offset + row.size, offset + size)):
                out[at - offset] = data[at - row.offset]
        return int.from_bytes(out, "little")

    def write(self, offset: int, size: int, value: int) -> list[Action]:
        """Write a register, or one half of an 8-byte register; return the actions that the write
        starts. Writes to other offsets, to reserved bytes and to read-only registers have no
        effect."""
        for row in REGISTERS:
            whole = offset == row.offset and size == row.size
            half = row.size == 8 and size == 4 and offset in (row.offset, row.offset + 4)
            if whole or half:
                value &= (1 << 8 * size) - 1
                if half:
                    shift = 8 * (offset - row.offset)
                    kept = self.values()[row.name] & ~(0xFFFF_FFFF << shift)
                    value = kept | value << shift
                return self._write(row.name, value)
        return []

    def _write(self, name: str, value: int) -> list[Action]:
        match name:
            case "INTMS":
                self.interrupt_mask |= value
            case "INTMC":
                self.interrupt_mask &= ~value
            case "CSTS":
                self.reset_occurred &= ~value
            case "AQA":
                self.aqa = value & AQA_MASK
            case "ASQ":
                self.asq = value & BASE_MASK
            case "ACQ":
                self.acq = value & BASE_MASK
            case "NSSR" if value == RESET_WORD:
                return [Action(Do.SUBSYSTEM_RESET)]
            case "CC":
                return self._write_cc(value & CC_WRITABLE)
        return []

    def _write_cc(self, value: int) -> list[Action]:
        """Write CC; return the actions that the write starts. If EN and SHN change in one write,
        the change of EN takes effect first."""
        before, self.cc = self.cc, value
        actions: list[Action] = []
        if value & ENABLE and not before & ENABLE:
            if self.state is State.DISABLING:
                self.enable_again = True
            else:
                actions += self._enable()
        elif before & ENABLE and not value & ENABLE:
            self.enable_again = False
            actions += self._event(Event.HOST_DISABLES) or []
        notice, earlier = (value & SHUTDOWN) >> 14, (before & SHUTDOWN) >> 14
        if notice in (NORMAL, ABRUPT) and notice != earlier:
            self.shutdown = PROCESSING
            actions.append(Action(Do.SHUT_DOWN, abrupt=notice == ABRUPT))
        return actions

    def _enable(self) -> list[Action]:
        """Enable the controller, or enter the failed state if the configuration is not
        supported."""
        if self.shutdown == COMPLETE:
            self.shutdown = 0
        actions = self._event(Event.HOST_ENABLES) or []
        if self.valid():
            return actions
        self.fail()
        return []

    def valid(self) -> bool:
        """Return True if the controller supports the configuration in CC, AQA, ASQ and ACQ."""
        arbitration, page = self.cc >> 11 & 0b111, self.page_bytes
        submission, completion = self.admin_entries
        return (
            self.cc >> 4 & 0b111 in COMMAND_SETS
            and arbitration == 0
            and page <= MOST_MEMORY_PAGE_BYTES
            and min(submission, completion) >= 2
            and self.asq % page == 0
            and self.acq % page == 0
        )

    def _event(self, event: Event) -> list[Action] | None:
        """Change the state as the table NEXT specifies; return the actions, or None if the table
        does not list the event for the current state."""
        found = NEXT.get((self.state, event))
        if found is None:
            return None
        self.state, do = found
        return [] if do is None else [Action(do)]

    # --- what the transport reports

    def enabled(self) -> None:
        """Complete the action ENABLE: set CSTS.RDY. The admin queues must be mapped."""
        if self._event(Event.ENABLED) is not None:
            self.ready = READY

    def disabled(self) -> list[Action]:
        """Complete the action RESET: clear CSTS.RDY, and reset all registers except AQA, ASQ and
        ACQ. No command may access host memory any more. Return the actions to perform next. The
        list is empty unless the host has enabled the controller again during the reset."""
        if self._event(Event.STOPPED) is None:
            return []
        self.ready = self.interrupt_mask = 0
        if self.shutdown == COMPLETE:
            self.shutdown = 0
        if not self.enable_again:
            self.cc = 0
            return []
        self.enable_again = False
        return self._enable()

    def shut_down(self) -> None:
        """Complete the action SHUT_DOWN: set CSTS.SHST to 10b (shutdown complete) if a shutdown is
        in progress."""
        if self.shutdown == PROCESSING:
            self.shutdown = COMPLETE

    def fail(self) -> None:
        """Enter the failed state (CSTS.CFS = 1): the controller processes no commands until the
        host resets it."""
        self._event(Event.FAILURE)

    def subsystem_reset(self) -> None:
        """Reset all registers because of an NVM subsystem reset, and set CSTS.NSSRO."""
        self.state = State.DISABLED
        self.ready = self.interrupt_mask = self.cc = self.shutdown = 0
        self.aqa = self.asq = self.acq = 0
        self.enable_again = False
        self.reset_occurred = SUBSYSTEM_RESET_OCCURRED
