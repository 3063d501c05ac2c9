"""Nodes that come and go: when which node joins, leaves or dies.

Owns these events and their file. Does not own what follows from one (simulation.py, epoch.py).
Source: own; STANNIS and HyperTune know a fixed set of nodes.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ondie.emu.units import InputError, nearest

JOINS, LEAVES, DIES = "joins", "leaves", "dies"
EVENTS = (JOINS, LEAVES, DIES)
COLUMNS = ("seconds", "node", "event")


@dataclass(frozen=True)
class Member:
    """One node's coming or going. One that joins is not there before; one that leaves does so
    between two steps; one that dies does not finish what it is at."""

    seconds: float
    node: int
    event: str


def rows(path: Path, columns: Sequence[str]) -> list[tuple[int, list[str]]]:
    """(line, cells) of a CSV file below its header, ``columns``. Raises InputError."""
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not lines or tuple(name.strip() for name in lines[0]) != tuple(columns):
        raise InputError(f"{path}: its first line is not {','.join(columns)}")
    return list(enumerate(lines[1:], 2))


def number_of_node(text: str) -> int:
    """ValueError unless it is an integer of 64 bits."""
    number = int(text)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(text)
    return number


def read(path: Path) -> tuple[Member, ...]:
    """A CSV file with the header ``seconds,node,event``. Raises InputError, naming the line."""
    out = []
    for number, cells in rows(path, COLUMNS):
        place = f"{path}, line {number}"
        try:
            at, node, event = cells
            found = Member(float(at), number_of_node(node), event.strip())
        except ValueError:
            raise InputError(
                f"{place}: {','.join(cells)!r}; seconds, node and event are right"
            ) from None
        if found.event not in EVENTS:
            near = nearest(found.event, EVENTS)
            raise InputError(
                f"{place}: event {found.event!r}; {', '.join(EVENTS)} are right"
                f"{f', nearest: {near}' if near else ''}"
            )
        out.append(found)
    return tuple(out)


def ordered(events: Sequence[Member], nodes: int, hosts: int) -> tuple[Member, ...]:
    """The events in time, checked: nodes that there are, no host, and each only in turn. Raises
    InputError."""
    out = sorted(events, key=lambda e: e.seconds)
    there: dict[int, bool] = {}
    for e in out:
        if not 0 <= e.seconds < float("inf"):
            raise InputError(f"node {e.node} {e.event} at {e.seconds} s: 0 or more is right")
        if not hosts <= e.node < nodes:
            raise InputError(
                f"node {e.node} {e.event}: drives are nodes {hosts} to {nodes - 1}; a host relays "
                f"what its drives exchange, and stays"
            )
        before = there.setdefault(e.node, e.event != JOINS)
        if before == (e.event == JOINS):
            raise InputError(
                f"node {e.node} {e.event} at {e.seconds:g} s, but is "
                f"{'there' if before else 'not there'} by then"
            )
        there[e.node] = e.event == JOINS
    return tuple(out)


def absent(events: Sequence[Member]) -> list[int]:
    """Nodes that are not there at the start: those whose first event is to join."""
    first: dict[int, str] = {}
    for e in events:
        first.setdefault(e.node, e.event)
    return [node for node, event in first.items() if event == JOINS]
