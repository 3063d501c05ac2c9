"""Owns: a device small enough to compute by hand, its round numbers, and three verbs: issue,
probe, assert_ready_at. Does not: know what any operation takes; a test carries its arithmetic
in a comment. Source: STYLE, Ramulator 2: probe, issue, assert-earliest-ready-at.
"""

from typing import Any

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config, load_preset
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.run.system import System
from ondie.emu.paths.base import Rows

NS = 1000
US = 1000 * NS
PAGE = 4096

# Every rate divides a page into whole nanoseconds.
COMMAND = 100 * NS  # per plane addressed
BUS = 4096 * NS  # one page at 1000 MB/s
READ = 10 * US
PROGRAM = 50 * US
ERASE = 300 * US
DECODE = 1 * US  # per page
ENCODE = 500 * NS
DRAM = 500 * NS  # one page, once across, at 8.192 GB/s
LINK = 1 * US  # one page at 4.096 GB/s
LATENCY = 200 * NS
SUBMIT = 400 * NS
FIRMWARE = 300 * NS
ISP_LINK = 250 * NS  # one page at 16.384 GB/s

TIMES = {
    "flash.channels": "1",
    "flash.dies_per_channel": "1",
    "flash.planes_per_die": "2",
    "flash.blocks_per_plane": "16",
    "flash.pages_per_block": "8",
    "flash.page": "4 KiB",
    "flash.bus": "1000 MT/s",
    "flash.t_command": "100 ns",
    "flash.t_read": "10 us",
    "flash.t_program": "50 us",
    "flash.t_erase": "300 us",
    "flash.interleave_commands": "false",
    "ecc.decode": "1 us",
    "ecc.encode": "500 ns",
    "ftl.over_provisioning": "0.5",
    "ftl.gc_low_blocks": "2",
    "ftl.initial": "fresh",
    "ftl.reservoir_fraction": "0.5",
    "dram.bandwidth": "8.192 GB/s",
    "link.down": "4.096 GB/s",
    "link.up": "4.096 GB/s",
    "link.latency": "200 ns",
    "frontend.command": "300 ns",
    "frontend.max_transfer": "256 KiB",
    "host.io_submit": "400 ns",
    "host.io_block": "64 KiB",
    "host.io_queue_depth": "64",
    "isp.flash": "16.384 GB/s",
    "pe.dispatch": "free",
}


def ns(*microseconds: float) -> list[int]:
    """Picoseconds of times written in microseconds, to the nanosecond."""
    return [round(us * 1000) * NS for us in microseconds]


def preset(leaves: dict[str, str], **changes: Any) -> Config:
    """optimstore-r1 with leaves changed, and changed again as flash__channels=2 and the like."""
    leaves = leaves | {name.replace("__", "."): str(value) for name, value in changes.items()}
    return load_preset("optimstore-r1", overrides=[f"{k}={v}" for k, v in leaves.items()])


class Bench:
    """A system stepped by hand. Rows of resource, kind and so on as in rows.PLAN."""

    def __init__(
        self, super_pages: int = 0, payload: bool = False, planes: int = 0, **changes: Any
    ) -> None:
        self.cfg = preset(TIMES, **changes)
        self.system = System(
            self.cfg,
            ("a",),
            reservoir_super_pages=super_pages,
            reservoir_planes=planes,
            payload=payload,
        )
        self.arrays = self.system.arrays
        if super_pages:
            for device in range(self.system.devices):
                self.system.fill_reservoir(device, 0, super_pages)
        self._rows = Rows()

    @property
    def now(self) -> int:
        return self.system.now

    def issue(self, n: int = 1, **columns: Any) -> np.ndarray:
        """Hand over rows at once; returns their ids. Nothing happens until the clock is run."""
        ids = self._rows.add(n, **columns)
        self.system.load_rows(self._rows.take())
        return ids

    def one(self, **columns: Any) -> int:
        return int(self.issue(1, **columns)[0])

    def die(self, kind: int, super_page: int = 0, pages: int = 1, **columns: Any) -> int:
        """An operation on a die's reservoir; ``pages`` go in or come out by its kind."""
        return self.one(
            resource=rows.DIE, kind=kind, lpn=super_page, bytes_in=pages * PAGE, **columns
        )

    def read(self, super_page: int = 0, pages: int = 1, **columns: Any) -> int:
        """A reservoir read: array, channel, DRAM twice, link."""
        return self.one(
            resource=rows.DIE, kind=0, lpn=super_page, bytes_out=pages * PAGE, **columns
        )

    def nvme(self, kind: int, lpn: int, pages: int = 1, **columns: Any) -> int:
        size = {"bytes_out" if kind == 0 else "bytes_in": pages * PAGE}
        return self.one(resource=rows.NVME, kind=kind, lpn=lpn, **size, **columns)

    def isp(self, kind: int, lpn: int, pages: int = 1, **columns: Any) -> int:
        size = {"bytes_out" if kind == 0 else "bytes_in": pages * PAGE}
        return self.one(resource=rows.ISP_IO, kind=kind, lpn=lpn, **size, **columns)

    def at(self, t: int) -> int:
        """A row that is done at ``t`` ps, for others to wait for (one at a time)."""
        return self.one(resource=rows.ACCELERATOR, array_ps=t - self.now)

    def run_to(self, t: int = NEVER - 1) -> None:
        """Act on all events up to and including ``t`` ps."""
        self.system.run_until(t)

    def done(self, row: int) -> bool:
        """Probe: has the row completed?"""
        return bool(self.arrays.row.state[row] == rows.DONE)

    def end(self, row: int) -> int:
        """When the row completed, ps."""
        assert self.done(row)
        return int(self.arrays.row.end[row])

    def ends(self, ids: Any) -> list[int]:
        """Completion times of rows after everything has run."""
        self.run_to()
        return [self.end(int(i)) for i in ids]

    def assert_ready_at(self, row: int, t: int) -> None:
        """The row is not done one picosecond before ``t``, and done at ``t``."""
        self.run_to(t - 1)
        assert not self.done(row), f"done at {self.end(row)} already, {t} is right"
        self.run_to(t)
        if not self.done(row):
            self.run_to()
            raise AssertionError(f"done at {self.end(row)} only, {t} is right")
        assert self.end(row) == t
