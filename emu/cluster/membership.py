"""Membership events: the times at which nodes join, leave or die.

Owns these events and their CSV file. Does not own their effects (training_sim.py, epoch.py).
Source: this project; STANNIS and HyperTune have a constant set of nodes.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ondie.emu.units import InputError, digits, nearest

JOINS, LEAVES, DIES = "joins", "leaves", "dies"
EVENTS = (JOINS, LEAVES, DIES)
COLUMNS = ("seconds", "node", "event")


@dataclass(frozen=True)
class Member:
    """One membership event of one node.

    ``seconds``: virtual time. ``event``: an element of EVENTS. A node whose first event is a join
    is absent before that event. A node leaves between two steps. A node that dies does not finish
    its current step.
    """

    seconds: float
    node: int
    event: str


def rows(path: Path, columns: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Return the lines of a CSV file below its header as (line number, cells). Raises InputError if
    the file cannot be read or its header is not ``columns``."""
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not lines or tuple(name.strip() for name in lines[0]) != tuple(columns):
        raise InputError(f"{path}: its first line must be {','.join(columns)}")
    return list(enumerate(lines[1:], 2))


def number_of_node(text: str) -> int:
    """Return the node number that ``text`` states. Raises ValueError if ``text`` is not a 64-bit
    integer; does not check that the node exists."""
    number = digits(text.strip())
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(text)
    return number


def read(path: Path) -> tuple[Member, ...]:
    """Return the events in a CSV file with the header ``seconds,node,event``. Raises InputError if
    the file cannot be read, if its header differs, or, with the line number, if a line is
    invalid."""
    out = []
    for number, cells in rows(path, COLUMNS):
        place = f"{path}, line {number}"
        try:
            at, node, event = cells
            found = Member(float(at), number_of_node(node), event.strip())
        except ValueError:
            raise InputError(
                f"{place}: {','.join(cells)!r}; must be seconds, node, event"
            ) from None
        if found.event not in EVENTS:
            near = nearest(found.event, EVENTS)
            raise InputError(
                f"{place}: event {found.event!r}; must be one of {', '.join(EVENTS)}"
                f"{f', nearest: {near}' if near else ''}"
            )
        out.append(found)
    return tuple(out)


def ordered(events: Sequence[Member], nodes: int, hosts: int) -> tuple[Member, ...]:
    """Return the events in the order of their times.

    Raises InputError if a time is negative or not finite, if a node is not a drive (nodes ``hosts``
    to ``nodes`` - 1), if a present node joins, or if an absent node leaves or dies.
    """
    out = sorted(events, key=lambda event: event.seconds)
    there: dict[int, bool] = {}
    for event in out:
        if not 0 <= event.seconds < float("inf"):
            raise InputError(
                f"node {event.node} {event.event} at {event.seconds} s: the time must be "
                "finite and at least 0 s"
            )
        if not hosts <= event.node < nodes:
            raise InputError(
                f"node {event.node} {event.event}: drives are nodes {hosts} to {nodes - 1}; a "
                f"host relays the messages of its drives and cannot leave"
            )
        before = there.setdefault(event.node, event.event != JOINS)
        if before == (event.event == JOINS):
            raise InputError(
                f"node {event.node} {event.event} at {event.seconds:g} s: the node is "
                f"{'present' if before else 'absent'} at that time"
            )
        there[event.node] = event.event == JOINS
    return tuple(out)


def absent(events: Sequence[Member]) -> list[int]:
    """Return the numbers of the nodes that are absent at the start of the training: the nodes whose
    first event is a join."""
    first: dict[int, str] = {}
    for one in events:
        first.setdefault(one.node, one.event)
    return [node for node, event in first.items() if event == JOINS]
