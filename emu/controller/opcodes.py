"""Opcodes of the commands that the controller supports, and their effects.

Owns the tables of admin and I/O opcodes. Does not own the execution of the commands (admin.py,
io_commands.py, computation.py, tunnel.py).
Source: NVM Express Base Specification 2.0, figures "Opcodes for Admin Commands" and "Commands
Supported and Effects Data Structure"; NVM Command Set Specification 1.0, figure "Opcodes for NVM
Commands".
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from ondie.emu.nvme import wire


class Effect(IntFlag):
    """Flags of the Commands Supported and Effects data structure."""

    SUPPORTED = 1 << 0
    CONTENT = 1 << 1
    """LBCC: the command may change the contents of logical blocks."""
    NAMESPACE_CAPABILITY = 1 << 2
    """NCC: the command may change the capabilities of one namespace."""
    NAMESPACE_INVENTORY = 1 << 3
    """NIC: the command may change the inventory of namespaces, or the capabilities of several
    namespaces."""
    ALONE_IN_NAMESPACE = 0b001 << 16
    """Command Submission and Execution (CSE): no other command for the same namespace may be in
    progress."""
    ALONE = 0b010 << 16
    """CSE: no other command for any namespace may be in progress."""


class Admin(IntEnum):
    """Opcodes of admin commands. Bits 1:0 are the direction of the data transfer: 01b to the
    controller, 10b to the host."""

    DELETE_SQ = 0x00
    CREATE_SQ = 0x01
    GET_LOG_PAGE = 0x02
    DELETE_CQ = 0x04
    CREATE_CQ = 0x05
    IDENTIFY = 0x06
    ABORT = 0x08
    SET_FEATURES = 0x09
    GET_FEATURES = 0x0A
    ASYNC_EVENT_REQUEST = 0x0C
    NAMESPACE_MANAGEMENT = 0x0D
    NAMESPACE_ATTACHMENT = 0x15
    KEEP_ALIVE = 0x18
    DOORBELL_BUFFER_CONFIG = 0x7C
    FORMAT_NVM = 0x80
    SANITIZE = 0x84


class Tunnel(IntEnum):
    """Vendor-specific admin opcodes of the TCP/IP tunnel. Bits 1:0 are the direction of the data
    transfer."""

    CONTROL = wire.TUNNEL
    """Open or close the tunnel."""
    SEND = wire.TUNNEL_SEND
    RECEIVE = wire.TUNNEL_RECEIVE
    """Receive a block of packets, or the status of the tunnel, from the drive."""


class Nvm(IntEnum):
    """Opcodes of the NVM Command Set."""

    FLUSH = 0x00
    WRITE = 0x01
    READ = 0x02
    WRITE_UNCORRECTABLE = 0x04
    COMPARE = 0x05
    WRITE_ZEROES = 0x08
    DATASET_MANAGEMENT = 0x09
    VERIFY = 0x0C


class Compute(IntEnum):
    """Vendor-specific I/O opcodes of computation commands. Bits 1:0 encode the direction of the
    data transfer."""

    CREATE_SET = 0xA1
    DELETE_SET = 0xA4
    LOAD_PROGRAM = 0xA5
    ACTIVATE = 0xA8
    ALLOCATE = 0xB0
    FREE = 0xC0
    COPY = 0xD0
    EXECUTE = 0xE1
    REPORT = 0xE2
    READ_MEMORY = 0xF2
    WRITE_MEMORY = 0xF5


ADMIN_EFFECTS = dict.fromkeys(Admin, Effect.SUPPORTED) | {
    Admin.NAMESPACE_MANAGEMENT: Effect.SUPPORTED
    | Effect.NAMESPACE_INVENTORY
    | Effect.NAMESPACE_CAPABILITY,
    Admin.NAMESPACE_ATTACHMENT: Effect.SUPPORTED | Effect.NAMESPACE_INVENTORY,
    Admin.FORMAT_NVM: Effect.SUPPORTED
    | Effect.CONTENT
    | Effect.NAMESPACE_CAPABILITY
    | Effect.ALONE_IN_NAMESPACE,
    Admin.SANITIZE: Effect.SUPPORTED | Effect.CONTENT | Effect.ALONE,
}
TUNNEL_EFFECTS = dict.fromkeys(Tunnel, Effect.SUPPORTED)
CHANGES_CONTENT = (
    Nvm.WRITE, Nvm.WRITE_UNCORRECTABLE, Nvm.WRITE_ZEROES, Nvm.DATASET_MANAGEMENT,
)  # fmt: skip
NVM_EFFECTS = {
    opcode: Effect.SUPPORTED | (Effect.CONTENT if opcode in CHANGES_CONTENT else 0)
    for opcode in Nvm
}
COMPUTE_EFFECTS = {
    opcode: Effect.SUPPORTED | (Effect.CONTENT if opcode == Compute.EXECUTE else 0)
    for opcode in Compute
}
DURING_SANITIZE = frozenset(
    {
        Admin.DELETE_SQ, Admin.CREATE_SQ, Admin.GET_LOG_PAGE, Admin.DELETE_CQ, Admin.CREATE_CQ,
        Admin.IDENTIFY, Admin.ABORT, Admin.SET_FEATURES, Admin.GET_FEATURES,
        Admin.ASYNC_EVENT_REQUEST, Admin.KEEP_ALIVE, Admin.DOORBELL_BUFFER_CONFIG, *Tunnel,
    }
)  # fmt: skip
"""Admin commands that are allowed while a sanitize operation is in progress."""
