"""Namespaces of a drive: which bytes each one has, and which are attached to the controller.

Owns creation, deletion, attachment and LBA format of namespaces. Does not own the commands
(namespace_commands.py), the data structures that describe a namespace (identify_namespace.py) or
the bytes.
Source: NVM Express Base Specification 2.0, sections 3.2.1 (namespaces) and 8.11 (namespace
management).

A namespace is a contiguous range of the drive's bytes and begins at a mapping unit. A new one takes
the first gap that is large enough.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from ondie.emu.controller.capabilities import Capabilities, namespace_uuid
from ondie.emu.controller.status_code import Code, Refused

BROADCAST = 0xFFFFFFFF
"""NSID of all namespaces."""


@dataclass(slots=True)
class Namespace:
    """Namespace: ``blocks`` logical blocks of ``block_bytes`` from byte ``first`` of the drive."""

    nsid: int
    first: int
    size: int
    """Bytes that the namespace occupies: whole mapping units."""
    blocks: int
    block_format: int
    """LBA format: index of Capabilities.formats."""
    block_bytes: int
    uuid: uuid.UUID
    attached: bool = False
    write_protected: bool = False
    """True if writes of the host end with Namespace is Write Protected."""
    states: bool = False
    """True if the namespace holds weights and optimizer states, which have separate addresses, and
    accepts computation commands."""


@dataclass(slots=True)
class Namespaces:
    """The namespaces of one drive by identifier."""

    capabilities: Capabilities
    by_nsid: dict[int, Namespace] = field(default_factory=dict)
    created: int = 0
    """Namespaces created so far; part of the UUID, so that no UUID is used twice."""

    def create(self, blocks: int, block_format: int = 0) -> Namespace:
        """Create a namespace, not attached. Raises Refused without room or identifier."""
        sizes = self.capabilities.formats
        if not 0 <= block_format < len(sizes):
            raise Refused(Code.FORMAT_INVALID)
        if blocks <= 0:
            raise Refused(Code.INVALID_FIELD)
        unit = self.capabilities.mapping_unit_bytes
        size = -(-blocks * sizes[block_format] // unit) * unit
        first = self._gap(size)
        if first is None:
            raise Refused(Code.NAMESPACE_CAPACITY)
        free = [
            nsid for nsid in range(1, self.capabilities.namespaces + 1) if nsid not in self.by_nsid
        ]
        if not free:
            raise Refused(Code.NAMESPACE_ID_UNAVAILABLE)
        self.created += 1
        name = namespace_uuid(self.capabilities, free[0], self.created)
        found = Namespace(free[0], first, size, blocks, block_format, sizes[block_format], name)
        self.by_nsid[free[0]] = found
        return found

    def create_whole(self) -> Namespace:
        """Create a namespace of the largest gap, attached. Raises Refused without room."""
        largest = max(end - begin for begin, end in self._gaps())
        found = self.create(largest // self.capabilities.block_bytes)
        found.attached = True
        return found

    def add_states(self, size: int) -> Namespace:
        """Add the namespace of weights and states, ``size`` bytes, attached and write-protected. It
        has the first identifier that is free from 2 on. Raises Refused if none is."""
        block = self.capabilities.formats[0]
        free = [n for n in range(2, self.capabilities.namespaces + 1) if n not in self.by_nsid]
        if not free:
            raise Refused(Code.NAMESPACE_ID_UNAVAILABLE)
        found = Namespace(
            free[0], 0, -(-size // block) * block, -(-size // block),
            0, block,
            namespace_uuid(self.capabilities, free[0], 0),
            attached=True, write_protected=True, states=True,
        )  # fmt: skip
        self.by_nsid[free[0]] = found
        return found

    @property
    def any_protected(self) -> bool:
        """True if a namespace is write-protected, so that commands for all are refused."""
        return any(each.write_protected for each in self.by_nsid.values())

    def delete(self, nsid: int) -> Namespace:
        """Delete a namespace and return it. Raises Refused if there is none, or if it is
        write-protected."""
        found = self.allocated(nsid)
        if found.write_protected:
            raise Refused(Code.NAMESPACE_WRITE_PROTECTED, 4)
        del self.by_nsid[nsid]
        return found

    def reformat(self, nsid: int, block_format: int) -> Namespace:
        """Give a namespace another LBA format; it keeps its bytes. Raises Refused."""
        found, sizes = self.allocated(nsid), self.capabilities.formats
        if not 0 <= block_format < len(sizes):
            raise Refused(Code.FORMAT_INVALID)
        if block_format != found.block_format:
            found.block_format, found.block_bytes = block_format, sizes[block_format]
            found.blocks = found.size // found.block_bytes
        return found

    def _gaps(self) -> list[tuple[int, int]]:
        """Return (first byte, end) of every range between namespaces, some of them empty."""
        taken = sorted((each.first, each.first + each.size) for each in self._conventional)
        begins = [0, *(end for _, end in taken)]
        ends = [*(first for first, _ in taken), self.capabilities.capacity_bytes]
        return list(zip(begins, ends, strict=True))

    def _gap(self, size: int) -> int | None:
        """Return the first byte of the first gap of ``size`` bytes, or None."""
        return next((begin for begin, end in self._gaps() if end - begin >= size), None)

    @property
    def unallocated_bytes(self) -> int:
        return self.capabilities.capacity_bytes - sum(each.size for each in self._conventional)

    @property
    def _conventional(self) -> list[Namespace]:
        """The namespaces that share the bytes of the drive."""
        return [each for each in self.by_nsid.values() if not each.states]

    def allocated(self, nsid: int) -> Namespace:
        """Return a namespace, attached or not. Raises Refused: Invalid Namespace or Format for an
        identifier that cannot exist, Invalid Field for one that is not allocated."""
        self.check_identifier(nsid)
        if nsid not in self.by_nsid:
            raise Refused(Code.INVALID_FIELD, 4)
        return self.by_nsid[nsid]

    def active(self, nsid: int) -> Namespace:
        """Return an attached namespace. Raises Refused as allocated() does, and Invalid Field for
        one that is not attached."""
        found = self.allocated(nsid)
        if not found.attached:
            raise Refused(Code.INVALID_FIELD, 4)
        return found

    def check_identifier(self, nsid: int) -> None:
        """Raise Refused unless ``nsid`` is from 1 to NN."""
        if not 1 <= nsid <= self.capabilities.namespaces:
            raise Refused(Code.INVALID_NAMESPACE, 4)

    def identifiers(self, attached: bool) -> list[int]:
        """Return the identifiers of all namespaces, or of the attached ones, sorted."""
        every = sorted(self.by_nsid.items())
        return [nsid for nsid, each in every if each.attached or not attached]
