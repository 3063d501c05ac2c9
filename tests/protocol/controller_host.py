"""A host of the NVMe controller tables: capabilities, entries and commands for the tests."""

from typing import Any

from ondie.emu.config.config import configuration
from ondie.emu.controller.admin import Controller, Reply
from ondie.emu.controller.capabilities import Capabilities, capabilities_of
from ondie.emu.controller.health import Health
from ondie.emu.controller.namespaces import Namespaces
from ondie.emu.controller.shared import Shared
from ondie.emu.nvme.wire import Sqe

ENABLED = 4 << 20 | 6 << 16 | 1
"""CC: entries of 64 and 16 bytes, pages of 4 KiB, enabled."""
EVENT_REQUEST = 0x0C
HEALTH = Health(
    critical_warning=0, spare=97, spare_threshold=10, percentage_used=3, free_blocks=40,
    host_read_bytes=512_000 * 7 + 1, host_write_bytes=10**9 + 1, media_read_bytes=3 * 10**9,
    media_write_bytes=2 * 10**9, power_on_ps=3 * 3600 * 10**12, busy_ps=60 * 10**12,
    power_cycles=5, unsafe_shutdowns=2, power_loss_saves=1, media_errors=4, bad_blocks=6,
    retried_pages=8, uncorrectable_pages=9, refreshed_blocks=10, least_erases=1, most_erases=12,
    used_bytes=1 << 20,
)  # fmt: skip


def capabilities(block_bytes: int = 512, **changes: Any) -> Capabilities:
    """Those of a drive with mapping units of 4 KiB in pages of 16 KiB, and 64 MiB."""
    cfg = configuration("gen4-tlc").replace(
        {"flash.page": "16 KiB", "ftl.mapping_unit": "4 KiB", **changes}, ref="test"
    )
    return capabilities_of(
        cfg,
        capacity_bytes=64 << 20,
        block_bytes=block_bytes,
        serial="S1",
        firmware="1.0",
        io_queues=4,
        vectors=3,
    )


class Host:
    """A controller that is enabled, with one namespace of the whole drive, and its host."""

    def __init__(self, offered: Capabilities | None = None, whole: bool = True) -> None:
        self.offered = offered or capabilities()
        self.namespaces = Namespaces(self.offered)
        if whole:
            self.namespaces.create_whole()
        self.health = HEALTH
        self.next_request = 100
        self.controller = Controller(
            self.offered, Shared(self.namespaces), lambda: self.health, lambda namespace: 11
        )
        self.enable()

    def enable(self) -> None:
        registers = self.controller.registers
        for offset, size, value in ((0x24, 4, 0x001F001F), (0x28, 8, 0x1000), (0x30, 8, 0x2000)):
            registers.write(offset, size, value)
        registers.write(0x14, 4, ENABLED)
        registers.enabled()

    def run(self, opcode: int, data: bytes = b"", **fields: int) -> Reply:
        """Execute a command with identifier 7; of Async Event Requests, the next from 100 on."""
        cid = 7
        if opcode == EVENT_REQUEST:
            cid, self.next_request = self.next_request, self.next_request + 1
        return self.controller.execute(Sqe(opcode, **({"cid": cid} | fields)).pack(), data)

    def status(self, opcode: int, data: bytes = b"", **fields: int) -> int:
        """Status of the command, without Do Not Retry."""
        return self.run(opcode, data, **fields).entries[0].status & 0x7FF

    def data(self, opcode: int, **fields: int) -> bytes:
        reply = self.run(opcode, **fields)
        assert reply.entries[0].status == 0
        return reply.data
