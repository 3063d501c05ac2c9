"""The Identify command, and the data structure that each CNS value selects.

Owns the table of CNS values, the lists of namespaces and controllers, and the checks of NSID, CNTID
and CSI. Does not own the fields of the structures (identify_controller.py, identify_namespace.py).
Source: NVM Express Base Specification 2.0, section 5.17 and figure "Identify - CNS Values".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ondie.emu.controller.capabilities import Capabilities
from ondie.emu.controller.identify_controller import (
    CONTROLLER_NVM,
    IDENTIFY_CONTROLLER,
    ControllerFacts,
)
from ondie.emu.controller.identify_namespace import (
    IDENTIFY_NAMESPACE,
    NAMESPACE_INDEPENDENT,
    NAMESPACE_NVM,
    NVM_COMMAND_SET,
    NamespaceFacts,
    descriptors,
)
from ondie.emu.controller.namespaces import BROADCAST, Namespace, Namespaces
from ondie.emu.controller.status_code import Code, Refused
from ondie.emu.controller.structure import Structure, number_list
from ondie.emu.nvme.wire import Sqe

SIZE = 4096
"""Size of every Identify data structure, bytes."""
NSID_BYTE, CNTID_BYTE, CSI_BYTE = 4, 42, 47
"""Byte offsets of the fields NSID, CNTID and CSI in the submission queue entry of Identify."""
UsedBlocks = Callable[[Namespace], int]


class Subject(NamedTuple):
    """Data from which the data structures of the Identify command are built: state of the drive,
    and fields of the command."""

    capabilities: Capabilities
    namespaces: Namespaces
    used_blocks: UsedBlocks
    """Function that returns the number of mapped logical blocks of a namespace (NUSE)."""
    nsid: int
    cntid: int
    csi: int


def _of_namespace(structure: Structure, asked: Subject, namespace: Namespace) -> bytes:
    used = min(asked.used_blocks(namespace), namespace.blocks)
    return structure.pack(NamespaceFacts(asked.capabilities, namespace, used))


def _active(structure: Structure, asked: Subject) -> bytes:
    """Return the data structure ``structure`` of namespace NSID, or zeros if the namespace is not
    attached or does not exist. Raises Refused if NSID is invalid."""
    asked.namespaces.check_identifier(asked.nsid)
    found = asked.namespaces.by_nsid.get(asked.nsid)
    if found is None or not found.attached:
        return bytes(SIZE)
    return _of_namespace(structure, asked, found)


def _common(asked: Subject) -> bytes:
    """Return the Identify Namespace structure for NSID FFFFFFFFh: the capabilities that all
    namespaces have in common. The sizes of the namespace are 0."""
    example = Namespaces(asked.capabilities).create(1)
    example.blocks = example.size = 0
    return IDENTIFY_NAMESPACE.pack(NamespaceFacts(asked.capabilities, example, 0))


def _namespace(asked: Subject) -> bytes:
    if asked.nsid == BROADCAST:
        return _common(asked)
    return _active(IDENTIFY_NAMESPACE, asked)


def _controller(asked: Subject) -> bytes:
    free = asked.namespaces.unallocated_bytes
    return IDENTIFY_CONTROLLER.pack(ControllerFacts(asked.capabilities, free))


def _namespace_list(asked: Subject, attached: bool) -> bytes:
    if asked.nsid >= BROADCAST - 1:
        raise Refused(Code.INVALID_NAMESPACE, NSID_BYTE)
    found = [nsid for nsid in asked.namespaces.identifiers(attached) if nsid > asked.nsid]
    return number_list(found[: SIZE // 4], 4, SIZE)


def _descriptors(asked: Subject) -> bytes:
    found = asked.namespaces.by_nsid.get(asked.nsid)
    if found is None or not found.attached:
        raise Refused(Code.INVALID_NAMESPACE, NSID_BYTE)
    return descriptors(found)


def _check_command_set(asked: Subject) -> None:
    if asked.csi != NVM_COMMAND_SET:
        raise Refused(Code.INVALID_FIELD, CSI_BYTE)


def _namespace_of_command_set(asked: Subject) -> bytes:
    _check_command_set(asked)
    return _active(NAMESPACE_NVM, asked)


def _controller_of_command_set(asked: Subject) -> bytes:
    _check_command_set(asked)
    return CONTROLLER_NVM.pack(ControllerFacts(asked.capabilities, 0))


def _allocated(asked: Subject) -> bytes:
    """Return the Identify Namespace structure of namespace NSID, attached or not, or zeros if the
    namespace does not exist. Raises Refused if NSID is invalid."""
    asked.namespaces.check_identifier(asked.nsid)
    found = asked.namespaces.by_nsid.get(asked.nsid)
    return bytes(SIZE) if found is None else _of_namespace(IDENTIFY_NAMESPACE, asked, found)


def _controller_list(asked: Subject, attached: bool) -> bytes:
    """Return the list of the controllers whose identifiers are CNTID or greater: the number of
    controllers, then their identifiers. ``attached``: True to list only the controllers to which
    namespace NSID is attached. Raises Refused if ``attached`` is True and NSID is invalid."""
    if attached:
        asked.namespaces.check_identifier(asked.nsid)
        namespace = asked.namespaces.by_nsid.get(asked.nsid)
        there = namespace is not None and namespace.attached
    else:
        there = True
    own = asked.capabilities.controller_id
    found = [own] if there and own >= asked.cntid else []
    return number_list([len(found), *found], 2, SIZE)


def _command_sets(asked: Subject) -> bytes:
    """Return the list of supported combinations of I/O command sets. The only combination is the
    NVM Command Set. Raises Refused if CNTID is the identifier of another controller."""
    if asked.cntid not in (0xFFFF, asked.capabilities.controller_id):
        raise Refused(Code.INVALID_FIELD, CNTID_BYTE)
    return number_list([1 << NVM_COMMAND_SET], 8, SIZE)


class Cns(NamedTuple):
    """Row of the table of CNS values: title of a data structure, and the function that builds
    it."""

    title: str
    answer: Callable[[Subject], bytes]


CNS = {
    0x00: Cns("Identify Namespace", _namespace),
    0x01: Cns("Identify Controller", _controller),
    0x02: Cns("Active Namespace ID list", lambda asked: _namespace_list(asked, attached=True)),
    0x03: Cns("Namespace Identification Descriptor list", _descriptors),
    0x05: Cns("Identify Namespace of an I/O Command Set", _namespace_of_command_set),
    0x06: Cns("Identify Controller of an I/O Command Set", _controller_of_command_set),
    0x08: Cns("Identify Namespace, I/O Command Set independent",
              lambda asked: _active(NAMESPACE_INDEPENDENT, asked)),
    0x10: Cns("Allocated Namespace ID list", lambda asked: _namespace_list(asked, attached=False)),
    0x11: Cns("Identify Namespace of an allocated Namespace ID", _allocated),
    0x12: Cns("Controller list attached to an NSID",
              lambda asked: _controller_list(asked, attached=True)),
    0x13: Cns("Controller list of the NVM subsystem",
              lambda asked: _controller_list(asked, attached=False)),
    0x1C: Cns("I/O Command Set data structure", _command_sets),
}  # fmt: skip


WITH_USED_BLOCKS = frozenset({0x00, 0x11})
"""CNS values of the structures that report the number of mapped blocks of a namespace (NUSE)."""


def identify(
    sqe: Sqe, capabilities: Capabilities, namespaces: Namespaces, used_blocks: UsedBlocks
) -> bytes:
    """Return the data of an Identify command, bytes[4096]. Raises Refused if the CNS value is not
    supported or a field of the command is invalid."""
    row = CNS.get(sqe.cdw10 & 0xFF)
    if row is None:
        raise Refused(Code.INVALID_FIELD, 40)
    asked = Subject(
        capabilities, namespaces, used_blocks, sqe.nsid, sqe.cdw10 >> 16, sqe.cdw11 >> 24
    )
    return row.answer(asked)
