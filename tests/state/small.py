"""Owns: a device of 512 pages for tests of state, commands in short, and a seed per test.
Does not: know what is right.
Source: own.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.drive import Drive
from ondie.emu.engine.core.counters import MAP_PROGRAM_PAGES as MAP_PROGRAM_PAGES
from ondie.emu.nvme import command as queues
from ondie.emu.nvme import purge, write_errors
from tests.timing.harness import preset

PAGE = 512
LEAVES = {
    "flash.channels": "2",
    "flash.dies_per_channel": "2",
    "flash.planes_per_die": "2",
    "flash.blocks_per_plane": "8",
    "flash.pages_per_block": "8",
    "flash.page": "512 B",
    "ftl.reservoir_fraction": "0",
    "ftl.over_provisioning": "0.3",
    "ftl.gc_low_blocks": "2",
    "host.io_block": "4 KiB",
    "host.io_queue_depth": "8",
    "frontend.max_transfer": "8 KiB",
}


_made: dict[tuple[tuple[str, str], ...], Config] = {}


def config(**changes: Any) -> Config:
    """The small device; changes as flash__channels=1 and the like. To read a preset takes longer
    than most of what is done with it: each is made once."""
    key = tuple(sorted((name, repr(value)) for name, value in changes.items()))
    if key not in _made:
        _made[key] = preset(LEAVES, **changes)
    return _made[key]


PAGES = np.dtype(
    [
        ("op", "i4"),
        ("lpn", "i8"),  # first page
        ("n", "i8"),  # pages
        ("stream", "i4"),
        ("fua", "i4"),
        ("payload_slot", "i8"),  # first page in the buffer, -1 = timing only
        ("tag", "i8"),
        ("arrival", "i8"),
    ]
)
"""A command in pages, as most tests of state think of it."""


class PageDrive(Drive):
    """A drive whose commands, reads and writes are in pages. It is strict, so that no defect of the
    engine ends as a status that a test does not look at."""

    def __init__(self, cfg: Config, payload: bool = False, **options: Any) -> None:
        super().__init__(cfg, payload, **({"strict": True} | options))

    @property
    def lpns(self) -> int:
        return self.units

    def submit(self, commands: np.ndarray) -> None:
        super().submit(in_bytes(commands, self.unit_bytes))

    def run(self, max_events: int | None = None) -> int:
        return super().run(None, max_events)

    def write(self, lpn: int, data: Any) -> None:
        super().write(lpn * self.unit_bytes, data)

    def read(self, lpn: int, n: int = 1) -> np.ndarray:
        found = super().read(lpn * self.unit_bytes, n * self.unit_bytes)
        return found.reshape(n, self.unit_bytes)


def in_bytes(commands: np.ndarray, page: int) -> np.ndarray:
    """PAGES as the commands of a drive (queues.COMMAND)."""
    out = np.zeros(len(commands), queues.COMMAND)
    for name in ("op", "stream", "fua", "tag", "arrival"):
        out[name] = commands[name]
    out["offset"], out["size"] = commands["lpn"] * page, commands["n"] * page
    slot = commands["payload_slot"]
    out["data"] = np.where(slot < 0, slot, slot * page)
    return out


def device(
    payload: bool = False,
    queue_depth: int | None = None,
    strict: bool = True,
    **changes: Any,
) -> PageDrive:
    return PageDrive(config(**changes), payload, queue_depth=queue_depth, strict=strict)


def commands(
    items: Iterable[tuple[int, int, int]], arrival: int = 0, slot: int | None = None
) -> np.ndarray:
    """PAGES of (op, lpn, n), tagged 0, 1, ..., all arriving at once; with ``slot`` their payload
    lies one after the other from there on, else there is none."""
    items = list(items)
    out = np.zeros(len(items), PAGES)
    for i, (op, lpn, n) in enumerate(items):
        out[i]["op"], out[i]["lpn"], out[i]["n"] = op, lpn, n
        out[i]["payload_slot"] = -1
        if slot is not None and op in (queues.READ, queues.WRITE):
            out[i]["payload_slot"] = slot
            slot += n
    out["tag"] = np.arange(len(items))
    out["arrival"] = arrival
    return out


def counter(device: Drive, which: int) -> int:
    return int(device.arrays.count[0, which])


def random_writes(rng: np.random.Generator, n: int, lpns: int, longest: int = 1) -> np.ndarray:
    """``n`` writes of 1 to ``longest`` pages at random places."""
    sizes = rng.integers(1, longest + 1, n)
    return commands([(queues.WRITE, int(rng.integers(0, lpns - s + 1)), int(s)) for s in sizes])


if __name__ == "__main__":  # fills the compile cache for cuts, recoveries and full drives
    protected = Drive(
        config(
            cache__mode="write_back", cache__capacity="16 KiB", ftl__trim_maps="true",
            cache__power_loss_protection="true", cache__hold_up="1 J",
        ),
        True,
    )  # fmt: skip
    protected.power_cut(0)
    protected.power_on()
    protected.check()
    marks = purge.mark_stale(protected.arrays, protected.store)
    purge.collect_marked(protected.state, 0, marks)
    purge.erase_free(protected.state, 0)
    write_errors.end_waiting(protected.state, 0, 1)
