"""Namespaces of a drive: the byte range of each namespace, and its attachment to the controller.

Owns the creation, deletion, attachment and LBA format of namespaces. Does not own the commands
(namespace_commands.py), the data structures that describe a namespace (identify_namespace.py) or
the contents of namespaces.
Source: NVM Express Base Specification 2.0, sections 3.2.1 (namespaces) and 8.11 (namespace
management).

A namespace is a contiguous range of the drive's bytes and begins at a mapping unit. A new namespace
occupies the first gap that is large enough.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from ondie.emu.controller.capabilities import Capabilities, namespace_uuid
from ondie.emu.controller.status_code import Code, Refused

BROADCAST = 0xFFFFFFFF
"""NSID that refers to all namespaces."""


@dataclass(slots=True)
class Namespace:
    """Namespace of ``blocks`` logical blocks of ``block_bytes`` bytes each, starting at byte
    ``first`` of the drive."""

    nsid: int
    first: int
    size: int
    """Number of bytes that the namespace occupies: a multiple of the mapping unit or, for the
    namespace of optimizer states, of the logical block size."""
    blocks: int
    block_format: int
    """LBA format: index into Capabilities.formats."""
    block_bytes: int
    uuid: uuid.UUID
    attached: bool = False
    write_protected: bool = False
    """True if writes from a host fail with the status Namespace is Write Protected."""
    states: bool = False
    """True if the namespace holds weights and optimizer states and accepts computation commands.
    Its bytes are not part of the address space of the drive."""


@dataclass(slots=True)
class Namespaces:
    """The namespaces of one drive by identifier."""

    capabilities: Capabilities
    by_nsid: dict[int, Namespace] = field(default_factory=dict)
    created: int = 0
    """Number of namespaces that were created on the drive. The UUID of a new namespace depends on
    this number, so that UUIDs are not reused."""

    def create(self, blocks: int, block_format: int = 0) -> Namespace:
        """Create a namespace of ``blocks`` logical blocks without attaching it. Raises Refused if
        the LBA format or the size is invalid, if no unallocated range of the drive is large enough,
        or if no identifier is free."""
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
        """Create a namespace that fills the largest unallocated range of the drive, and attach it.
        Raises Refused if no capacity or no identifier is free."""
        largest = max(end - begin for begin, end in self._gaps())
        found = self.create(largest // self.capabilities.block_bytes)
        found.attached = True
        return found

    def add_states(self, size: int) -> Namespace:
        """Add a namespace of ``size`` bytes for weights and optimizer states, attached and
        write-protected. Its identifier is the smallest free identifier except 1. Raises Refused if
        no identifier is free."""
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
        """True if any namespace is write-protected. Commands that delete or sanitize all namespaces
        are then refused."""
        return any(each.write_protected for each in self.by_nsid.values())

    def delete(self, nsid: int) -> Namespace:
        """Delete a namespace and return it. Raises Refused if the namespace does not exist or is
        write-protected."""
        found = self.allocated(nsid)
        if found.write_protected:
            raise Refused(Code.NAMESPACE_WRITE_PROTECTED, 4)
        del self.by_nsid[nsid]
        return found

    def reformat(self, nsid: int, block_format: int) -> Namespace:
        """Change the LBA format of a namespace without changing its byte range; return the
        namespace. Raises Refused if the namespace does not exist or the format is not supported."""
        found, sizes = self.allocated(nsid), self.capabilities.formats
        if not 0 <= block_format < len(sizes):
            raise Refused(Code.FORMAT_INVALID)
        if block_format != found.block_format:
            found.block_format, found.block_bytes = block_format, sizes[block_format]
            found.blocks = found.size // found.block_bytes
        return found

    def _gaps(self) -> list[tuple[int, int]]:
        """Return the gaps before, between and after the namespaces as (first byte, end). A gap may
        be empty."""
        taken = sorted((each.first, each.first + each.size) for each in self._conventional)
        begins = [0, *(end for _, end in taken)]
        ends = [*(first for first, _ in taken), self.capabilities.capacity_bytes]
        return list(zip(begins, ends, strict=True))

    def _gap(self, size: int) -> int | None:
        """Return the first byte of the first gap of at least ``size`` bytes, or None if there is no
        such gap."""
        return next((begin for begin, end in self._gaps() if end - begin >= size), None)

    @property
    def unallocated_bytes(self) -> int:
        return self.capabilities.capacity_bytes - sum(each.size for each in self._conventional)

    @property
    def _conventional(self) -> list[Namespace]:
        """The namespaces whose bytes are part of the address space of the drive."""
        return [each for each in self.by_nsid.values() if not each.states]

    def allocated(self, nsid: int) -> Namespace:
        """Return the namespace with identifier ``nsid``, attached or not. Raises Refused with
        Invalid Namespace or Format if the identifier is outside 1 to NN, and with Invalid Field if
        no namespace has the identifier."""
        self.check_identifier(nsid)
        if nsid not in self.by_nsid:
            raise Refused(Code.INVALID_FIELD, 4)
        return self.by_nsid[nsid]

    def active(self, nsid: int) -> Namespace:
        """Return the attached namespace with identifier ``nsid``. Raises Refused with Invalid
        Namespace or Format if the identifier is outside 1 to NN, and with Invalid Field if no
        attached namespace has the identifier."""
        found = self.allocated(nsid)
        if not found.attached:
            raise Refused(Code.INVALID_FIELD, 4)
        return found

    def check_identifier(self, nsid: int) -> None:
        """Raise Refused if ``nsid`` is outside 1 to NN."""
        if not 1 <= nsid <= self.capabilities.namespaces:
            raise Refused(Code.INVALID_NAMESPACE, 4)

    def identifiers(self, attached: bool) -> list[int]:
        """Return the sorted identifiers of the namespaces. ``attached``: True to return only those
        of attached namespaces."""
        every = sorted(self.by_nsid.items())
        return [nsid for nsid, each in every if each.attached or not attached]
