"""PCI configuration space of the NVMe controller: tables of its fields and of the writable bits.

Owns the layout of the configuration space and of BAR0. Does not own the controller's registers
(controller/registers.py) or the delivery of interrupts (vfio_user.py).
Source: PCI Local Bus Specification 3.0, sections 6.1 (header) and 6.8.2 (MSI-X); PCI Power
Management 1.2, section 3.2; PCI Express Base Specification 4.0, section 7.5.3; NVM Express NVMe
over PCIe Transport Specification 1.0, section 3.8 (class code 010802h, capabilities).
"""

from __future__ import annotations

from ondie.emu.controller.capabilities import Capabilities
from ondie.emu.controller.structure import Field, Structure
from ondie.emu.serve.vfio_wire import BAR_END

CONFIG_BYTES = 4096
BAR0_BYTES = BAR_END
MSIX_TABLE, MSIX_PENDING = 0x2000, 0x3000
"""Offsets of the MSI-X table and of the pending bit array in BAR0. The table has 16 bytes per
vector."""
MOST_VECTORS = (MSIX_PENDING - MSIX_TABLE) // 16
CLASS_CODE = 0x010802
"""Class code: mass storage, non-volatile memory, NVM Express I/O controller."""
DEVICE_ID = 1
COMMAND, BAR, POWER, PCIE, MSIX = 0x04, 0x10, 0x40, 0x50, 0xA0
"""Offsets in configuration space of the command register, of BAR0, and of the capabilities Power
Management, PCI Express and MSI-X."""
BUS_MASTER = 1 << 2
CAPABILITY_LIST = 1 << 4
MEMORY_64 = 0b100
FUNCTION_RESET = 1 << 15
"""Bit of Device Control that initiates a function level reset."""
RESET_SUPPORTED = 1 << 28
LINK_16_GT_X4 = 4 << 4 | 4

SPACE = Structure(
    "PCI configuration space",
    256,
    "PCI 3.0: Type 00h Configuration Space Header; capabilities",
    (
        Field(0x00, 2, "VID", "Vendor ID", lambda offered: offered.vendor_id),
        Field(0x02, 2, "DID", "Device ID", DEVICE_ID),
        Field(COMMAND, 2, "CMD", "Command", 0),
        Field(0x06, 2, "STS", "Device Status", CAPABILITY_LIST),
        Field(0x08, 1, "RID", "Revision ID", 0),
        Field(0x09, 3, "CC", "Class Code", CLASS_CODE),
        Field(0x0E, 1, "HTYPE", "Header Type", 0),
        Field(BAR, 4, "MLBAR", "Memory Register Base Address, lower 32 bits", MEMORY_64),
        Field(BAR + 4, 4, "MUBAR", "Memory Register Base Address, upper 32 bits", 0),
        Field(0x2C, 2, "SSVID", "Subsystem Vendor ID", lambda offered: offered.vendor_id),
        Field(0x2E, 2, "SSID", "Subsystem ID", DEVICE_ID),
        Field(0x34, 1, "CAP", "Capabilities Pointer", POWER),
        Field(POWER, 2, "PID", "PCI Power Management Capability ID", 0x01 | PCIE << 8),
        Field(POWER + 2, 2, "PC", "PCI Power Management Capabilities", 3),
        Field(POWER + 4, 2, "PMCS", "PCI Power Management Control and Status", 1 << 3),
        Field(PCIE, 2, "PXID", "PCI Express Capability ID", 0x10 | MSIX << 8),
        Field(PCIE + 2, 2, "PXCAP", "PCI Express Capabilities", 2),  # version 2, endpoint
        Field(PCIE + 4, 4, "PXDCAP", "PCI Express Device Capabilities",
              RESET_SUPPORTED | 1 << 15),  # role-based error reporting
        Field(PCIE + 8, 2, "PXDC", "PCI Express Device Control", 0),
        Field(PCIE + 12, 4, "PXLCAP", "PCI Express Link Capabilities", LINK_16_GT_X4),
        Field(PCIE + 18, 2, "PXLS", "PCI Express Link Status", LINK_16_GT_X4),
        Field(MSIX, 2, "MXID", "MSI-X Capability ID", 0x11),
        Field(MSIX + 2, 2, "MXC", "MSI-X Message Control", lambda offered: offered.vectors - 1),
        Field(MSIX + 4, 4, "MTAB", "MSI-X Table Offset and BIR", MSIX_TABLE),
        Field(MSIX + 8, 4, "MPBA", "MSI-X PBA Offset and BIR", MSIX_PENDING),
    ),
)  # fmt: skip
WRITABLE = {
    COMMAND: 0x06, COMMAND + 1: 0x05,  # memory, bus master; SERR, interrupt disable
    0x0C: 0xFF, 0x3C: 0xFF,  # cache line size, interrupt line: without effect
    BAR + 1: -BAR0_BYTES >> 8 & 0xFF, BAR + 2: 0xFF, BAR + 3: 0xFF,
    **dict.fromkeys(range(BAR + 4, BAR + 8), 0xFF),
    POWER + 4: 0b11,
    PCIE + 8: 0xFF, PCIE + 9: 0x7F,
    PCIE + 16: 0xC3,
    MSIX + 3: 0xC0,  # enable, function mask
}  # fmt: skip
"""Mask of the writable bits of a byte, by offset of the byte. All other bits are read-only."""


class PciSpace:
    """Configuration space of one PCI function."""

    def __init__(self, capabilities: Capabilities) -> None:
        if capabilities.vectors > MOST_VECTORS:
            raise ValueError(f"vectors = {capabilities.vectors}: must be at most {MOST_VECTORS}")
        self._initial = SPACE.pack(capabilities).ljust(CONFIG_BYTES, b"\0")
        self.data = bytearray(self._initial)

    def reset(self) -> None:
        """Set every register to its value after power-on."""
        self.data[:] = self._initial

    def read(self, offset: int, size: int) -> bytes:
        """Return the ``size`` bytes starting at ``offset``. ``offset + size`` must be at most
        CONFIG_BYTES."""
        return bytes(self.data[offset : offset + size])

    def write(self, offset: int, data: bytes) -> bool:
        """Write ``data`` at ``offset``. Return True if the write requests a function level
        reset."""
        for at, byte in enumerate(data, offset):
            mask = WRITABLE.get(at, 0)
            self.data[at] = self.data[at] & ~mask | byte & mask
        high = PCIE + 9 - offset
        return 0 <= high < len(data) and bool(data[high] << 8 & FUNCTION_RESET)

    @property
    def may_use_memory(self) -> bool:
        """True if the host allows the function to access host memory (bit Bus Master Enable)."""
        return bool(self.data[COMMAND] & BUS_MASTER)
