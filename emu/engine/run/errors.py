"""Error messages of a simulation.

Owns SimulationError and the messages for the error codes of compiled code. Does not own the
detection of errors (events.fail and its callers).
Source: this project. Rules: an error about bad input is one line that names the key, its value and
the allowed values; a run whose totals do not balance fails.
"""

from __future__ import annotations

from typing import NoReturn

from ondie.emu.config.config import Config
from ondie.emu.engine.core import error_codes
from ondie.emu.engine.core.state import FIELDS, Arrays, is_from_user
from ondie.emu.ftl import page_map
from ondie.emu.nand.timing import OP_NAMES
from ondie.emu.units import InputError


class SimulationError(RuntimeError):
    """Error of a simulation that cannot continue or whose totals do not balance.

    The cause is a defect, not bad input.
    """


def raise_error(arrays: Arrays, cfg: Config) -> None:
    """Raise the error that compiled code has reported, if any.

    Raises InputError if the configuration or a command cannot be satisfied, else SimulationError.
    """
    reg = arrays.reg[0]
    first, second = int(reg.error_a), int(reg.error_b)
    match int(reg.error):
        case error_codes.E_NONE:
            return
        case error_codes.E_POOL if first > 0:
            raise InputError(
                f"command of {first - 1} pages: must be at most {second - 1} pages, "
                "the maximum number of pages in flight"
            )
        case error_codes.E_PAST_END:
            raise InputError(
                f"command at page {first} for {second} pages ends beyond the end of the device "
                f"({int(arrays.cfg.lpns[0])} logical pages)"
            )
        case error_codes.E_RESERVOIR:
            raise InputError(
                f"ftl.reservoir_fraction={cfg.ftl.reservoir_fraction}: the reservoir of die "
                f"{first} has to reuse a block with {second} valid super-pages; "
                "use a larger fraction"
            )
        case error_codes.E_VICTIM:
            block = first * int(arrays.cfg.all_blocks[0])
            raise InputError(
                f"ftl.gc_policy = {cfg.ftl.gc_policy!r} returned block {block + second} for unit "
                f"{first}, whose first block is {block}; it must return a full, "
                "collectable block of the unit (from first_block(st, unit) on), or -1"
            )
        case error_codes.E_OUTSIDE:
            keys = {"ftl.gc_policy": "gc_policy", "ftl.stream_policy": "stream_policy"}
            given = [
                f"{key} = {getattr(cfg.ftl, field)!r}"
                for key, field in keys.items()
                if is_from_user(arrays.policies[field])
            ]
            name = FIELDS[first]
            raise InputError(
                f"{' or '.join(given)} reads st.{name}[{second}], which is outside the table "
                f"(shape {getattr(arrays, name).shape}); use an index inside the table"
            )
        case error_codes.E_STREAM:
            raise InputError(
                f"ftl.stream_policy = {cfg.ftl.stream_policy!r} returned stream {second} for page "
                f"{first}; it must return 0 to {cfg.ftl.write_streams - 1} (ftl.write_streams)"
            )
        case error_codes.E_FULL:
            raise InputError(
                f"the drive is full: the read of unwritten page {first} needs a flash page "
                f"(ftl.unwritten={cfg.ftl.unwritten}), and no flash page is free "
                f"(ftl.over_provisioning={cfg.ftl.over_provisioning}; use a larger value)"
            )
        case error_codes.E_REGISTER:
            raise SimulationError(
                f"die {first}: the registers do not hold the operands of operation "
                f"{OP_NAMES[second]}"
            )
        case error_codes.E_UNWRITTEN:
            raise SimulationError(
                f"super-page {first} was read from die {second} before it was written"
            )
        case error_codes.E_TIME:
            raise SimulationError(
                f"the next event, of resource {first}, is at {second} ps, before the clock at "
                f"{int(reg.now)} ps"
            )
        case code:
            raise SimulationError(
                f"unexpected engine error code {code} (details {first}, {second}) at "
                f"{int(reg.now)} ps; this is a defect of the emulator: report it with the command"
            )


def raise_full(arrays: Arrays, cfg: Config) -> None:
    """Raise InputError if writes of a device wait for a free block. Must be called when no event is
    pending.
    """
    units, blocks = int(arrays.cfg.units[0]), int(arrays.cfg.device_blocks[0])
    for dev, stalled in enumerate(arrays.dev.stall_head):
        mine = arrays.pool.stall_head[dev * units : (dev + 1) * units]
        if stalled < 0 and not (mine >= 0).any() and arrays.maps.stall_first[dev] == 0:
            continue
        words = (
            f"device {dev} is full: writes wait for a free block and no block can be collected "
            f"(ftl.over_provisioning={cfg.ftl.over_provisioning}; use a larger value)"
        )
        bad = int((arrays.block.state[dev * blocks : (dev + 1) * blocks] == page_map.BAD).sum())
        if bad:
            words += f"; {bad} of its {blocks} blocks are bad"
        waiting = int(arrays.pool.retiring[dev * units : (dev + 1) * units].sum())
        if waiting:
            words += (
                f"; {waiting} more blocks had a failed program and contain data that cannot be "
                "moved"
            )
        raise InputError(words)


def raise_stuck(arrays: Arrays, cfg: Config) -> NoReturn:
    """Raise an error for a run with incomplete work but no pending event. The error names the
    incomplete plan rows, requests, or writes from the data cache to flash.

    Raises InputError for a full drive, otherwise SimulationError.
    """
    raise_full(arrays, cfg)
    reg = arrays.reg[0]
    requests = int(arrays.pair.outstanding.sum())
    if reg.tail != reg.next_row:
        reason = f"plan row {int(reg.tail)} of {int(reg.next_row)} cannot complete"
    elif requests:
        reason = f"{requests} requests never complete"
    else:
        reason = (
            f"{int(arrays.cache.flying.sum())} pages of the data cache are never written to flash"
        )
    raise SimulationError(f"the simulation is stuck at {int(reg.now)} ps: {reason}")
