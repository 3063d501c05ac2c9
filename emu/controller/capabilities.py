"""Capabilities of a controller: sizes, limits and names that are constant while the power is on.

Owns the record of capabilities, and its derivation from a configuration. Does not own the fields of
data structures that report the capabilities (identify_controller.py, identify_namespace.py,
registers.py) or counters (health.py).
Source: NVM Express Base Specification 2.0 (MDTS, AWUN, VWC, MQES); NVM Command Set Specification
1.0, section 5.8.2 (NPWG, NPDG, NOWS); docs/store.md (atomic unit, volatile write cache).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from ondie.emu.config.config import Config
from ondie.emu.units import InputError, quoted, whole_number

MEMORY_PAGE_BYTES = 4096
"""CAP.MPSMIN: smallest memory page size that a host may choose, bytes."""
MOST_MEMORY_PAGE_BYTES = 65536
"""CAP.MPSMAX: largest memory page size that a host may choose, bytes."""
MOST_QUEUES = 256
"""Maximum number of I/O queue pairs, equal to the limit in emu/drive.py."""
_OWN = uuid.uuid5(uuid.NAMESPACE_URL, "urn:ondie:nvme")
"""UUID namespace from which the UUIDs of subsystems and namespaces are derived."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Properties of a drive and its controller that the controller reports to hosts. Sizes are in
    bytes."""

    serial: str
    """Serial number, at most 20 ASCII characters."""
    model: str
    """Model number, at most 40 ASCII characters."""
    firmware: str
    """Firmware revision, at most 8 ASCII characters."""
    capacity_bytes: int
    block_bytes: int
    """Logical block size of the drive, and of namespaces with LBA format 0."""
    mapping_unit_bytes: int
    """Size of a mapping unit. A write of one mapping unit is atomic, and TRIM unmaps whole mapping
    units."""
    stripe_bytes: int
    """Total size of one flash page from each plane of the drive."""
    max_transfer_bytes: int
    volatile_cache: bool
    """VWC: True if a power cut may lose completed writes that were not flushed."""
    endurance_bytes: int
    """Number of bytes that may be programmed: capacity times rated P/E cycles, or 0 if no number of
    cycles is rated."""
    io_queues: int
    """Maximum number of I/O submission queues, equal to that of I/O completion queues."""
    queue_entries: int = 1 << 12
    """Maximum number of entries of an I/O queue."""
    vectors: int = 1
    """Number of interrupt vectors."""
    namespaces: int = 16
    """NN: largest namespace identifier."""
    controller_id: int = 1
    """CNTLID. The PCIe controller has identifier 1; the dynamic controllers of NVMe over Fabrics
    have other identifiers."""
    several_controllers: bool = False
    """CMIC and NMIC: True if the subsystem may have several controllers, which share namespaces."""
    vendor_id: int = 0
    """PCI vendor identifier, or 0 if none is assigned."""
    sgl_support: int = 1
    """SGLS: 1 if SGLs with any alignment are supported, 0 if SGLs are not supported."""
    computation: bool = False
    """True if the controller accepts computation commands."""
    tunnel: bool = False
    """True if the controller has a TCP/IP tunnel."""
    capsule_bytes: int = 0
    """Fabrics only: size of a command capsule including its data; 0 for PCIe."""
    shadow_doorbells: bool = True
    """PCIe only: True if the host may use shadow doorbells in its memory."""

    @property
    def subsystem_uuid(self) -> uuid.UUID:
        return uuid.uuid5(_OWN, self.serial)

    @property
    def subsystem_name(self) -> str:
        """NVMe qualified name of the subsystem (SUBNQN)."""
        return f"nqn.2014-08.org.nvmexpress:uuid:{self.subsystem_uuid}"

    @property
    def transfer_exponent(self) -> int:
        """MDTS: the maximum transfer size is 2**MDTS pages of MEMORY_PAGE_BYTES bytes."""
        return (self.max_transfer_bytes // MEMORY_PAGE_BYTES).bit_length() - 1

    @property
    def transfer_bytes(self) -> int:
        """Maximum transfer size that MDTS reports, bytes: ``max_transfer_bytes`` rounded down to
        a power of two."""
        return MEMORY_PAGE_BYTES << self.transfer_exponent

    @property
    def has_doorbell_buffers(self) -> bool:
        """True if the command Doorbell Buffer Config is supported (OACS, bit 8)."""
        return self.shadow_doorbells and not self.capsule_bytes

    @property
    def formats(self) -> tuple[int, ...]:
        """Logical block size of each LBA format, bytes, in ascending order: the logical block size
        of the drive and, if it differs, the size of a mapping unit."""
        return tuple(sorted({self.block_bytes, self.mapping_unit_bytes}))

    @property
    def atomic_blocks(self) -> int:
        """AWUN and AWUPF: number of logical blocks of LBA format 0 that are written atomically, as
        a 0's based value."""
        return self.mapping_unit_bytes // self.block_bytes - 1

    @property
    def optimal_write_bytes(self) -> int:
        """Size of a write that uses as many planes in parallel as one command can, bytes:
        ``stripe_bytes``, but at most ``transfer_bytes`` and at least one mapping unit."""
        return max(min(self.stripe_bytes, self.transfer_bytes), self.mapping_unit_bytes)


def capabilities_of(
    cfg: Config,
    *,
    capacity_bytes: int,
    block_bytes: int,
    serial: str,
    firmware: str,
    io_queues: int = 16,
    vectors: int = 1,
    capsule_bytes: int = 0,
) -> Capabilities:
    """Return the capabilities of one drive with configuration ``cfg``.

    ``capacity_bytes``, ``block_bytes``: capacity and logical block size of the served drive.
    ``serial``: serial number, for example that of the store. ``capsule_bytes``: size of a command
    capsule for message transports, otherwise 0. Raises InputError if a number is outside its range,
    if ``serial`` or ``firmware`` is empty, too long or not printable ASCII, if the block size is
    not a power of two that divides the mapping unit, or if frontend.max_transfer is too small for
    MDTS.
    """
    for name, text, size in (("serial", serial, 20), ("firmware", firmware, 8)):
        if not (text.isascii() and text.isprintable() and 0 < len(text) <= size):
            raise InputError(f"{name} = {quoted(text)}: must be 1 to {size} ASCII characters")
    unit = cfg.ftl.mapping_unit_bytes or cfg.flash.page_bytes
    block = whole_number("block_bytes", block_bytes, 512, unit)
    if block & (block - 1) or unit % block:
        raise InputError(
            f"block_bytes = {block}: must be a power of two that divides the mapping unit ({unit} "
            "bytes)"
        )
    capacity = whole_number("capacity_bytes", capacity_bytes, unit, 1 << 62)
    if cfg.frontend.max_transfer_bytes < max(2 * MEMORY_PAGE_BYTES, block):
        raise InputError(
            f"frontend.max_transfer = {cfg.frontend.max_transfer_bytes}: must be at least "
            f"{max(2 * MEMORY_PAGE_BYTES, block)} bytes for an NVMe controller (MDTS)"
        )
    flash = cfg.flash
    model = f"ondie {cfg.system.name}".encode("ascii", "replace").decode()[:40]
    return Capabilities(
        serial=serial,
        model=model,
        firmware=firmware,
        capacity_bytes=capacity // unit * unit,
        block_bytes=block,
        mapping_unit_bytes=unit,
        stripe_bytes=flash.channels * flash.dies_per_channel * flash.planes_per_die
        * flash.page_bytes,
        max_transfer_bytes=cfg.frontend.max_transfer_bytes,
        volatile_cache=cfg.cache.mode in ("write_back", "read_write")
        and not cfg.cache.power_loss_protection,
        endurance_bytes=cfg.system.capacity_bytes * int(flash.endurance_cycles),
        io_queues=whole_number("io_queues", io_queues, 1, MOST_QUEUES),
        vectors=whole_number("vectors", vectors, 1, 2048),
        capsule_bytes=whole_number("capsule_bytes", capsule_bytes, 0, 1 << 20),
    )  # fmt: skip


def namespace_uuid(capabilities: Capabilities, nsid: int, generation: int) -> uuid.UUID:
    """Return the UUID of namespace ``nsid``. ``generation``: position of the namespace in the
    sequence of all namespaces ever created on the drive, starting at 1 (see Namespaces.created), or
    0 for the namespace that holds weights and optimizer states."""
    return uuid.uuid5(capabilities.subsystem_uuid, f"{nsid}.{generation}")
