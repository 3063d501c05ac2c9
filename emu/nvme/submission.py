"""Submission of commands to the queue pairs of a live drive, and their completions.

Owns the validation of commands, the load of commands into the rings of queue pairs, and the records
of completions. Does not own the issue of loaded commands (queue_pair.py) or the transfer of data
(moved_bytes.py).
Source: NVMe base specification: invalid opcode, LBA out of range, MDTS, queue identifiers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.engine.core.state import as_records
from ondie.emu.nvme import queue_pair
from ondie.emu.nvme.command import COMMAND, COMMAND_NAMES, FLUSH, READ, WRITE
from ondie.emu.units import InputError, plural
from ondie.kernels.jit import njit

LIMITS = np.dtype(
    [
        ("capacity", "i8"),  # bytes of the drive
        ("block", "i8"),  # bytes of a logical block, a power of two
        ("transfer", "i8"),  # largest read or write, bytes (MDTS)
        ("arrival", "i8"),  # earliest arrival, ps
        ("buffer", "i8"),  # bytes of the host's buffer; -1: the drive keeps no payload
        ("base", "i8"),  # address of the host's buffer
        ("streams", "i8"),  # number of write streams
        ("queues", "i8"),  # number of queue pairs
        ("own", "i8"),  # 1: the command is one of Drive.read or Drive.write
    ],
    align=True,
)
"""Limits of a drive for the next batch of commands, and the address of the host's buffer."""


OWN_TAG = -(1 << 63)
"""Tag of the commands of Drive.read and Drive.write."""


class Rule(NamedTuple):
    """Rule for a field of a command (record COMMAND). ``right``: description of the valid values.
    It may contain names in braces, which are replaced by values of LIMITS."""

    field: str
    right: str


RULES = (
    Rule("op", f"must be from 0 to 3: {', '.join(COMMAND_NAMES)}"),
    Rule("queue", "must be from 0 to {last_queue}"),
    Rule("size", "must be 0 for a FLUSH"),
    Rule("size", "must be at least one logical block of {block} bytes"),
    Rule("size", "must be a multiple of the logical block size, {block} bytes"),
    Rule("offset", "must be a multiple of the logical block size, {block} bytes"),
    Rule("offset", "must be from 0 to {last}, the last byte of the drive"),
    Rule("size", "extends beyond the last byte {last} of the drive"),
    Rule("size", "must be at most {transfer} bytes (frontend.max_transfer)"),
    Rule("arrival", "must be in ps, in ascending order, and not before {arrival} ps"),
    Rule("arrival", f"must be below {NEVER} ps"),
    Rule("stream", "must be from 0 to {last_stream} (ftl.write_streams)"),
    Rule("fua", "must be 0 or 1"),
    Rule("priority", "must be 0; other values are not supported"),
    Rule("fence_token", "must be 0; other values are not supported"),
    Rule("atomic_unit", "must be 0; other values are not supported"),
    Rule("tag", f"must be above {OWN_TAG}, the tag of Drive.read and Drive.write"),
    Rule("data", "must be -1: the drive keeps no payload"),
    Rule("data", "must not be -1 for a write"),
    Rule("data", "must be an offset in the buffer, or -1 for timing only"),
    Rule("data", "extends beyond the end of the buffer of {buffer} bytes"),
)
(
    BAD_OP, BAD_QUEUE, FLUSH_SIZE, NO_SIZE, ODD_SIZE, ODD_OFFSET, OUTSIDE, PAST_END, TOO_LARGE,
    EARLY, LATE, BAD_STREAM, BAD_FUA, PRIORITY, FENCE_TOKEN, ATOMIC_UNIT, BAD_TAG,
    NO_PAYLOAD, NO_DATA, BAD_DATA, SHORT_BUFFER,
) = range(len(RULES))  # fmt: skip
NONE = -1


@njit
def broken_rule(command, limits, before):
    """Return the index in RULES of the first rule that ``command`` breaks, or NONE if it breaks no
    rule. ``limits``: LIMITS record. ``before``: arrival of the previous command, ps."""
    op, offset, size = int(command.op), command.offset, command.size
    if op < READ or op > FLUSH:
        return BAD_OP
    if command.queue < 0 or command.queue >= limits.queues:
        return BAD_QUEUE
    if op == FLUSH:
        if size != 0:
            return FLUSH_SIZE
    else:
        odd = limits.block - 1
        if size < 1:
            return NO_SIZE
        if size & odd != 0:
            return ODD_SIZE
        if offset & odd != 0:
            return ODD_OFFSET
        if offset < 0 or offset >= limits.capacity:
            return OUTSIDE
        if size > limits.capacity - offset:
            return PAST_END
    moves = op == READ or op == WRITE
    if moves and size > limits.transfer:
        return TOO_LARGE
    if command.arrival < before:
        return EARLY
    if command.arrival >= NEVER:
        return LATE
    if command.stream < 0 or command.stream >= limits.streams:
        return BAD_STREAM
    if command.fua != 0 and command.fua != 1:
        return BAD_FUA
    if command.priority != 0:
        return PRIORITY
    if command.fence_token != 0:
        return FENCE_TOKEN
    if command.atomic_unit != 0:
        return ATOMIC_UNIT
    if command.tag == OWN_TAG and limits.own == 0:
        return BAD_TAG
    return broken_data_rule(command, limits, moves)


@njit
def broken_data_rule(command, limits, moves):
    """Check ``command`` against the rules for the host's buffer. Return the number of the first
    broken rule, or NONE. ``moves``: True for a read or write."""
    if limits.buffer < 0:
        return NONE if command.data == -1 else NO_PAYLOAD
    if command.data == -1:
        return NO_DATA if int(command.op) == WRITE else NONE
    if command.data < -1:
        return BAD_DATA
    if moves and command.size > limits.buffer - command.data:
        return SHORT_BUFFER
    return NONE


@njit
def first_fault(commands, limits):
    """Return (index of the first command that breaks a rule, number of the rule), or (-1, NONE) if
    all commands are valid.

    ``commands``: COMMAND[n]. ``limits``: LIMITS[1].
    """
    before = limits[0].arrival
    for i in range(commands.size):
        rule = broken_rule(commands[i], limits[0], before)
        if rule != NONE:
            return i, rule
        before = commands[i].arrival
    return -1, NONE


def as_commands(commands: np.ndarray) -> np.ndarray:
    """Return ``commands`` as a contiguous array, COMMAND[n]. Raises InputError if its type or
    number of dimensions differs."""
    try:
        given = np.asarray(commands)
    except ValueError:  # rows of different lengths
        given = np.empty((), object)
    if given.dtype != COMMAND or given.ndim != 1:
        what = "other records" if given.dtype.names else given.dtype
        raise InputError(
            f"commands: {what} in {plural(given.ndim, 'dimension')}: "
            "must be a one-dimensional array of nvme.command.COMMAND"
        )
    if given.flags.c_contiguous:
        return (
            given.view(np.uint8).copy().view(COMMAND)
        )  # a copy of records takes five times longer
    return given.copy()


def check(commands: np.ndarray, limits: np.ndarray) -> None:
    """Check ``commands`` (COMMAND[n]) against ``limits`` (LIMITS[1]). Raises InputError if a
    command breaks a rule; the message states the first such command, the field, its value and the
    valid values."""
    at, number = first_fault(as_records(commands), limits)
    if number == NONE:
        return
    rule, values = RULES[number], {name: int(limits[name][0]) for name in LIMITS.names or ()}
    right = rule.right.format(
        last=values["capacity"] - 1,
        last_queue=values["queues"] - 1,
        last_stream=values["streams"] - 1,
        **values,
    )
    raise InputError(f"command {at}: {rule.field} = {int(commands[rule.field][at])}: {right}")


@njit
def accept(st, commands, limits, transfers, requested, waits):
    """Check ``commands`` (COMMAND[n]) against ``limits`` (LIMITS[1]). Return -1 if a command breaks
    a rule. Otherwise, load the commands with :func:`load`, set ``arrival`` of ``limits`` to the
    arrival of the last command, and return the number of loaded commands."""
    if first_fault(commands, limits)[1] != NONE:
        return -1
    if commands.size > 0:
        limits[0].arrival = commands[commands.size - 1].arrival
    return load(st, commands, transfers, limits[0].base, requested, waits)


@njit
def load(st, commands, transfers, base, requested, waits):
    """Load commands into the rings of their queue pairs, and issue those that can be issued now.
    Return the number of loaded commands.

    ``commands``: COMMAND[n]; ``transfers``: TRANSFER for every slot of the rings; ``base``: address
    of the host's buffer. A command is not loaded if the ring of its queue pair is full or if an
    earlier command of the pair was not loaded. Its element of ``waits``, uint8[n or more], is then
    set to 1, and the field ``more`` of the pair is set to 1. The numbers of pages read, pages
    written, bytes read and bytes written by the loaded commands are added to ``requested``,
    int64[4].
    """
    cfg = st.cfg[0]
    count = 0
    for at in range(commands.size):
        command = commands[at]
        queue = int(command.queue)
        pair = st.pair[queue]
        if pair.more != 0 or pair.loaded - pair.tail >= cfg.ring:
            pair.more = 1
            waits[at] = 1
            continue
        place = queue * cfg.ring + (pair.loaded & (cfg.ring - 1))
        req = st.req[place]
        req.arrival = command.arrival
        req.offset = command.offset
        req.size = command.size
        req.op = command.op
        req.stream = command.stream
        req.fua = command.fua
        req.done = 0
        req.status = 0
        transfer = transfers[place]
        transfer.offset = command.offset
        transfer.size = command.size
        transfer.data = base + command.data if command.data >= 0 else 0
        transfer.tag = command.tag
        if command.op <= WRITE:
            zone = st.zone[pair.stream]
            requested[int(command.op)] += queue_pair.pages_of(st, req, zone)[2]
            requested[2 + int(command.op)] += command.size
        pair.loaded += 1
        count += 1
    for queue in range(st.pair.shape[0]):
        queue_pair.issue(st, queue)
    return count


@njit
def take_completions(st, transfers, first, out):
    """Write completions, beginning with number ``first``, to ``out``, COMPLETION[n], in the order
    in which they reached the host. Return the number of completions written."""
    ring = st.cfg[0].ring
    count = min(st.reg[0].completed - first, out.size)
    for i in range(count):
        place = st.done[(first + i) & (st.done.shape[0] - 1)]
        req = st.req[place]
        out[i].tag = transfers[place].tag
        out[i].arrival = req.arrival
        out[i].start = req.start
        out[i].end = req.end
        out[i].queue = place // ring
        out[i].status = req.status
    return count
