"""Tables of the flash array: dies, channels, queues and timing.

Owns the initial values of these tables, and the configuration integers that describe the unit of
programming (a page or a word line). Does not own the content of the timing table (timing.py) or the
tables of blocks (ftl/tables.py).
Source: this project.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.state import records
from ondie.emu.nand import erase_queue, scheduler_statistics
from ondie.emu.nand.die import (
    BUS,
    DIE,
    QUEUES,
    order_table,
)
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.timing import command_cycles, timing_table, word_line_pages


def set_programming_unit(cfg: Config, geometry: Geometry, table: np.recarray) -> None:
    """Set the unit of programming in ``table``, the record of the configuration's integers.

    The unit of programming is a page, or a word line of one plane or of all planes of a unit (die
    or plane).
    """
    pages, slots = word_line_pages(cfg), geometry.slots
    together = geometry.unit_planes if cfg.flash.multi_plane else 1
    table.line = pages * together * slots if pages > 1 else slots
    table.stripe = pages * geometry.unit_planes * slots if pages > 1 else slots
    table.passes = 2 if cfg.flash.programming == "two_pass" else 1
    table.gather = cfg.ftl.gather_time_ps
    table.worth = geometry.block_pages - table.passes * table.stripe


def die_records(cfg: Config, geometry: Geometry, n: int, lanes: int) -> np.recarray:
    die = records(DIE, n * geometry.dies * lanes)
    for name in ("arr", "cache", "paused", "loading", "pick"):
        die[name] = -1
    whole, lane = np.divmod(np.arange(n * geometry.dies * lanes), lanes)
    die["dev"], of_device = np.divmod(whole, geometry.dies)
    way, channel = np.divmod(of_device, geometry.channels)
    die["at"] = way * lanes + lane
    die["bus"] = die["dev"] * geometry.channels + channel
    die["first"] = whole * lanes
    if cfg.flash.chip_busy == "per_chip":
        way -= way % geometry.chip_dies
        die["first"] = die["dev"] * geometry.dies + way * geometry.channels + channel
    die["urgent"] = cfg.ftl.gc_priority in ("urgent", "exclusive")
    return die


def channel_records(geometry: Geometry, n: int) -> np.recarray:
    bus = records(BUS, n * geometry.channels)
    for name in ("out_head", "out_tail", "done_head", "done_tail", "die", "txn"):
        bus[name] = -1
    bus["dev"] = np.arange(n * geometry.channels) // geometry.channels
    return bus


def dies_of_channels(geometry: Geometry, n: int, lanes: int) -> np.ndarray:
    dev, channel = np.divmod(np.arange(n * geometry.channels), geometry.channels)
    way, lane = np.divmod(np.arange(geometry.ways * lanes), lanes)
    die = (dev * geometry.dies + channel)[:, None] + way * geometry.channels
    return (die * lanes + lane).astype(np.int32)


def tables(cfg: Config, geometry: Geometry, n: int, lanes: int) -> dict[str, np.ndarray]:
    """Return the initial tables of the flash array of ``n`` devices, keyed by the name of their
    field in the state. ``lanes``: number of planes of a die that read independently, or 1."""
    return {
        "op": timing_table(cfg),
        "cycles": command_cycles(cfg),
        "die": die_records(cfg, geometry, n, lanes),
        "queue": np.full((n * geometry.dies * lanes, 2 * QUEUES), -1, np.int32),
        "bus": channel_records(geometry, n),
        "way": dies_of_channels(geometry, n, lanes),
        "touched": np.zeros(n * geometry.channels, np.int32),
        "order": order_table(),
        **scheduler_statistics.tables(),
        **erase_queue.tables(),
    }
