"""Stages of a transaction: the handler that is called after each completed step, and the resource
that the transaction then crosses.

Owns the order of stations on every data path of a drive, the number of bytes that cross each
station, the conditions on the configuration, and the branches of each handler. Does not own the
handlers (stage_handlers.py), the crossings (datapath.py) or the service times (ftl/transfers.py,
engine/run/build.py). docs/architecture.md shows this table, and docs/tour.md shows two paths
through it.
Source: STANNIS (DAC 2020) for Newport and HyperTune (HeydariGorji et al.) for Laguna: host <->
front end <-> back end <-> flash, and ISP <-> back end <-> flash, bypassing front end and NVMe.
Pages are stored and forwarded in the controller's DRAM. NVMe base specification for the link
messages of a command (doorbell, fetch, data, completion).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import LINK_EXTRA_DOWN_BYTES, LINK_EXTRA_UP_BYTES
from ondie.emu.engine.core.stages import (
    ACKNOWLEDGED,
    ADVANCED,
    AGAIN,
    ANSWERED,
    CALLED,
    COMPLETED,
    CROSSED,
    DATA_ASKED,
    DATA_IN,
    DATA_READY,
    DATA_SENT,
    DATA_UP,
    DECODED,
    DECODED_FOR_ISP,
    DESTAGE,
    DESTAGED,
    DMA_DOWN_DONE,
    DMA_READY,
    DMA_UPLINK_DONE,
    DOWN_DONE,
    ENCODED,
    ENTERED,
    ENTRY_ASKED,
    ENTRY_IN,
    FETCHED,
    FINISHED,
    ISP_READ_READY,
    ISP_WRITE_FETCHED,
    ISP_WRITE_IN_DRAM,
    ISP_WRITE_READY,
    MAP_DECODED,
    MAP_DECODED_FOR_MERGE,
    MAP_IN_DRAM,
    MAP_SENSED,
    MERGED,
    MOVE_DECODED,
    MOVE_IN_DRAM,
    MOVE_SENSED,
    PARSED,
    PARSED_WRITE,
    PART_DONE,
    PE_DECODED,
    POSTED,
    READ_IN_DRAM,
    READ_UNMAPPED,
    REAPED,
    RESTED,
    RUNG,
    SENSED,
    SENSED_BARE,
    SENSED_BARE_FOR_CONTROLLER,
    SENSED_FOR_CONTROLLER,
    SENSED_RESERVOIR,
    SENSED_REST,
    SERVED,
    SUBMITTED,
    TAKEN_OUT,
    TRAFFIC_PIECE,
    TRANSLATED,
    UNMAPPED_FOR_ISP,
    UP_DONE,
    UPLINK_DOWN_DONE,
    WRITE_FETCHED,
    WRITE_IN_DRAM,
    Crossing,
    Handling,
)  # fmt: skip
from ondie.emu.engine.core.state import records
from ondie.emu.engine.run.stage_handlers import (
    cache_write,
    check_idle,
    continue_transfer,
    count_entry,
    enter_adapter_queue,
    execute_command,
    limit_fetches,
    place_write,
    queue_program,
    resume_translated,
    return_to_die,
    ring_completion_doorbell,
    route_command,
    route_decoded,
    route_map_page,
    route_read_data,
    route_sensed,
    route_unmapped,
    send_answer,
    send_command_data,
    send_message_down,
    send_piece,
    split_command_data,
)
from ondie.emu.ftl import completion, read_retry, write_path
from ondie.emu.ftl.transfers import HOST_PASSES
from ondie.emu.nvme import mqsim_cache

DATA = ""
"""Value of ``Stage.size`` if the data of the transaction crosses the resource."""


@dataclass(frozen=True)
class Over:
    """Resource that a transaction crosses.

    ``station``: number of the station. ``passes``: number of times that the bytes cross the DRAM.
    ``time``: field of the configuration with the time at the station (ps), or "" if the time
    follows from the number of bytes and the station's rate.
    """

    name: str
    crossing: Crossing
    station: int = 0
    passes: int = 0
    time: str = ""


DOWN = Over("link down", Crossing.LINK, stages.DOWN)
UP = Over("link up", Crossing.LINK, stages.UP)
UPLINK_DOWN = Over("uplink down", Crossing.HOST, stages.UPLINK_DOWN)
UPLINK_UP = Over("uplink up", Crossing.HOST, stages.UPLINK_UP)
FRONTEND = Over("front end", Crossing.DRIVE, stages.FRONTEND, time="command")
READ_FIRMWARE = Over("read firmware", Crossing.DRIVE, stages.READ_FIRMWARE)
WRITE_FIRMWARE = Over("write firmware", Crossing.DRIVE, stages.WRITE_FIRMWARE)
ISP_LINK = Over("ISP flash path", Crossing.DRIVE, stages.ISP_LINK)
ISP_LINK_DOWN = Over("ISP flash writes", Crossing.DRIVE, stages.ISP_LINK_DOWN)
STORE = Over("DRAM", Crossing.DRAM, passes=1)
FORWARD = Over("DRAM twice", Crossing.DRAM, passes=HOST_PASSES)
BUFFER = Over("buffer DRAM", Crossing.BUFFER)
DECODER = Over("decoder", Crossing.DECODER)
BARE_DECODER = Over("bare decoder", Crossing.BARE_DECODER)
NOTHING = Over("", Crossing.NOTHING)
CONTINUE = Over("", Crossing.CONTINUE)


def _delays(cfg: Any) -> bool:
    return bool(cfg.read_delay > 0 or cfg.write_delay > 0)


def _counts_entries(cfg: Any) -> bool:
    return bool(cfg.adapter > 0 or cfg.entries > 0)


CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "": lambda cfg: True,
    "shared uplink": lambda cfg: cfg.shared_uplink != 0,
    "SATA adapter": lambda cfg: cfg.adapter > 0,
    "fetch limit": lambda cfg: cfg.fetch_limit > 0,
    "delay, queue limit": lambda cfg: _delays(cfg) and _counts_entries(cfg),
    "firmware delay": _delays,
    "queue limit": _counts_entries,
    "write cache": lambda cfg: cfg.cache_writes != 0,
    "separate ISP writes": lambda cfg: cfg.isp_writes_apart != 0,
    "destage buffer": lambda cfg: cfg.cache == mqsim_cache.BUFFER,
}
"""Conditions under which a stage exists, by name. Each condition is a function of a drive's integer
configuration."""


@dataclass(frozen=True)
class Stage:
    """Actions that follow the completion of ``step``: the call of a handler, then the passage of
    the transaction through a resource. The end of this passage completes step ``next``.

    ``over``: the resource, or NOTHING. ``size``: field of the configuration with the number of
    bytes, or DATA. ``message``: True if the bytes are not data and count as link overhead.
    ``when``: name of the condition under which the stage exists (CONDITIONS). ``decides``: handler
    that chooses the next stage; it returns this stage, one of ``branches``, FINISHED or WAITS.
    ``takes``: function of another package that takes over the transaction. ``leads``: steps at
    which the transaction, or transactions created from it, continue after ``decides`` or ``takes``.
    """

    step: int
    over: Over = NOTHING
    next: int = -1
    size: str = DATA
    message: bool = False
    when: str = ""
    decides: Callable[..., int] | None = None
    takes: Callable[..., None] | None = None
    branches: tuple[int, ...] = ()
    leads: tuple[int, ...] = ()


STAGES = (
    # messages of an NVMe command
    Stage(SUBMITTED, DOWN, RUNG, "doorbell", True, "SATA adapter",
          decides=enter_adapter_queue, leads=(ENTERED,)),
    Stage(SUBMITTED, DOWN, RUNG, "doorbell", True),
    Stage(ENTERED, DOWN, RUNG, "doorbell", True),
    Stage(RUNG, UP, ENTRY_ASKED, "request", True, "fetch limit",
          decides=limit_fetches, leads=(CALLED,)),
    Stage(RUNG, UP, ENTRY_ASKED, "request", True),
    Stage(CALLED, UP, ENTRY_ASKED, "request", True),
    Stage(ENTRY_ASKED, DOWN, ENTRY_IN, "entry", True),
    Stage(ENTRY_IN, FRONTEND, PARSED, when="delay, queue limit", decides=count_entry),
    Stage(ENTRY_IN, FRONTEND, PARSED, when="firmware delay"),
    Stage(ENTRY_IN, FRONTEND, FETCHED, when="queue limit", decides=count_entry),
    Stage(ENTRY_IN, FRONTEND, FETCHED),
    Stage(PARSED, READ_FIRMWARE, FETCHED, decides=route_command, branches=(PARSED_WRITE,)),
    Stage(PARSED_WRITE, WRITE_FIRMWARE, FETCHED),
    Stage(FETCHED, UP, DATA_ASKED, "request", True, decides=execute_command,
          leads=(WRITE_FETCHED, SENSED, READ_UNMAPPED, SERVED)),
    Stage(DATA_ASKED, DOWN, DATA_IN),
    Stage(DATA_IN, decides=split_command_data, leads=(DOWN_DONE, DESTAGE, PART_DONE)),
    Stage(DATA_READY, decides=send_command_data),
    Stage(ANSWERED, decides=send_answer, branches=(DATA_UP,)),
    Stage(DATA_UP, UP, POSTED, "completion", True),
    Stage(COMPLETED, DOWN, ACKNOWLEDGED, "doorbell", True, "SATA adapter"),
    Stage(COMPLETED, decides=ring_completion_doorbell),
    # reads
    Stage(SENSED, DECODER, DECODED, decides=route_sensed, branches=(
        SENSED_REST, SENSED_FOR_CONTROLLER, SENSED_BARE_FOR_CONTROLLER, SENSED_BARE,
        SENSED_RESERVOIR)),
    Stage(SENSED_REST, DECODER, MERGED),
    Stage(SENSED_FOR_CONTROLLER, STORE, PART_DONE),
    Stage(SENSED_BARE_FOR_CONTROLLER, BARE_DECODER, TAKEN_OUT),
    Stage(SENSED_BARE, BARE_DECODER, DECODED),
    Stage(SENSED_RESERVOIR, FORWARD, READ_IN_DRAM),
    Stage(AGAIN, takes=read_retry.read_again, leads=(SENSED, MOVE_SENSED, MAP_SENSED)),
    Stage(DECODED, FORWARD, READ_IN_DRAM, decides=route_decoded,
          branches=(DECODED_FOR_ISP,)),
    Stage(DECODED_FOR_ISP, ISP_LINK, ISP_READ_READY),
    Stage(READ_UNMAPPED, FORWARD, READ_IN_DRAM, decides=route_unmapped,
          branches=(UNMAPPED_FOR_ISP,)),
    Stage(UNMAPPED_FOR_ISP, STORE, READ_IN_DRAM),
    Stage(SERVED, BUFFER, READ_IN_DRAM, when="destage buffer"),
    Stage(SERVED, STORE, READ_IN_DRAM),
    Stage(READ_IN_DRAM, UP, UP_DONE, decides=route_read_data),
    Stage(UP_DONE, UPLINK_UP, PART_DONE, when="shared uplink"),
    Stage(UP_DONE),
    # writes
    Stage(WRITE_FETCHED, UPLINK_DOWN, UPLINK_DOWN_DONE, when="shared uplink"),
    Stage(WRITE_FETCHED, DOWN, DOWN_DONE),
    Stage(UPLINK_DOWN_DONE, DOWN, DOWN_DONE),
    Stage(DOWN_DONE, STORE, WRITE_IN_DRAM, when="write cache"),
    Stage(DOWN_DONE, FORWARD, WRITE_IN_DRAM),
    Stage(WRITE_IN_DRAM, when="write cache", decides=cache_write,
          leads=(PART_DONE, DESTAGE)),
    Stage(WRITE_IN_DRAM, decides=place_write, leads=(ENCODED, TRANSLATED, SENSED)),
    Stage(DESTAGE, when="destage buffer", takes=mqsim_cache.send, leads=(WRITE_IN_DRAM,)),
    Stage(DESTAGE, STORE, DESTAGED),
    Stage(DESTAGED, decides=resume_translated, leads=(ENCODED, TRANSLATED, SENSED)),
    Stage(MERGED, takes=write_path.on_rest_read, leads=(ENCODED,)),
    Stage(ENCODED, decides=queue_program, leads=(PART_DONE,)),
    # collection and translation pages
    Stage(MOVE_SENSED, DECODER, MOVE_DECODED),
    Stage(MOVE_DECODED, FORWARD, MOVE_IN_DRAM),
    Stage(MOVE_IN_DRAM, takes=completion.write_collected_page, leads=(ENCODED,)),
    Stage(MAP_SENSED, DECODER, MAP_DECODED),
    Stage(MAP_DECODED, STORE, MAP_IN_DRAM, decides=route_map_page,
          branches=(MAP_DECODED_FOR_MERGE,)),
    Stage(MAP_DECODED_FOR_MERGE, FORWARD, MAP_IN_DRAM),
    Stage(MAP_IN_DRAM, takes=completion.on_translation_page_read, leads=(TRANSLATED, ENCODED)),
    Stage(TRANSLATED, decides=resume_translated,
          leads=(ENCODED, TRANSLATED, SENSED, READ_UNMAPPED)),
    # commands of the ISP
    Stage(ISP_READ_READY, STORE, PART_DONE),
    Stage(ISP_WRITE_FETCHED, STORE, ISP_WRITE_IN_DRAM),
    Stage(ISP_WRITE_IN_DRAM, ISP_LINK_DOWN, ISP_WRITE_READY, when="separate ISP writes"),
    Stage(ISP_WRITE_IN_DRAM, ISP_LINK, ISP_WRITE_READY),
    Stage(ISP_WRITE_READY, decides=place_write, leads=(ENCODED, TRANSLATED, SENSED)),
    # long transfers, super-pages and messages between drives
    Stage(DMA_UPLINK_DONE, DOWN, DMA_DOWN_DONE),
    Stage(DMA_DOWN_DONE, STORE, PART_DONE),
    Stage(DMA_READY, UP, UP_DONE, decides=send_piece, leads=(DMA_READY,)),
    Stage(TRAFFIC_PIECE, decides=continue_transfer, leads=(TRAFFIC_PIECE,)),
    Stage(TAKEN_OUT, STORE, PART_DONE),
    Stage(PE_DECODED, decides=return_to_die, leads=(PART_DONE,)),
    Stage(CROSSED, decides=send_message_down, branches=(ADVANCED,), leads=(PART_DONE,)),
    Stage(RESTED, decides=check_idle),
    # ends: engine/run/loop.py completes the row or request
    Stage(PART_DONE),
    Stage(DATA_SENT),
    Stage(POSTED),
    Stage(REAPED),
    Stage(ACKNOWLEDGED),
    Stage(ADVANCED, CONTINUE),
    Stage(FINISHED),
)  # fmt: skip


def names() -> dict[int, str]:
    """Return the names of all steps and branches of a transaction, by number."""
    every = vars(stages)
    first, last = list(every).index("ARRIVED"), list(every).index("FINISHED")
    return {every[name]: name for name in list(every)[first : last + 1]}


def of_drive(cfg: Any) -> Iterator[Stage]:
    """Yield the stage of each step of a transaction, for a drive with the integer configuration
    ``cfg``."""
    yield from _stages_under(_held(cfg))


def _held(cfg: Any) -> tuple[str, ...]:
    """Return the names of the CONDITIONS that the integer configuration ``cfg`` meets."""
    return tuple(name for name, holds in CONDITIONS.items() if holds(cfg))


def _stages_under(held: tuple[str, ...]) -> Iterator[Stage]:
    """Yield for each step the first stage whose condition is in ``held``."""
    done = set()
    for stage in STAGES:
        if stage.step not in done and stage.when in held:
            done.add(stage.step)
            yield stage


@functools.cache
def _constant_stages(held: tuple[str, ...]) -> tuple[np.ndarray, dict[str, dict[str, list[int]]]]:
    """Return the part of the stages common to all drives that meet exactly the conditions ``held``.

    Return (records stages.STAGE[STEPS], fields). The records lack the values that come from the
    integer configuration. ``fields`` lists the steps whose records need such values, by column
    ("time" or "bytes") and field of the configuration.
    """
    table = np.zeros(stages.STEPS, stages.STAGE)
    copied: dict[str, dict[str, list[int]]] = {"time": {}, "bytes": {}}
    for stage in _stages_under(held):
        record: Any = table[stage.step]
        record["crossing"] = stage.over.crossing
        record["station"] = stage.over.station
        record["passes"] = stage.over.passes
        record["next"] = stage.next
        record["time"] = record["counter"] = -1
        if stage.over.time:
            copied["time"].setdefault(stage.over.time, []).append(stage.step)
        elif stage.size == DATA:
            record["bytes"] = -1
        else:
            copied["bytes"].setdefault(stage.size, []).append(stage.step)
        if stage.message:
            down = stage.over.station == stages.DOWN
            record["counter"] = LINK_EXTRA_DOWN_BYTES if down else LINK_EXTRA_UP_BYTES
        if stage.decides is not None:
            record["handling"] = Handling.DECIDES
        elif stage.takes is not None:
            record["handling"] = Handling.TAKES
    return table, copied


def build_stages(cfg: Any) -> np.recarray:
    """Return the records of the stages of a drive for compiled code (stages.STAGE), by step."""
    constant, copied = _constant_stages(_held(cfg))
    table = records(stages.STAGE, stages.STEPS)
    table[:] = constant
    for column, fields in copied.items():
        for name, steps in fields.items():
            table[column][steps] = getattr(cfg, name)
    return table
