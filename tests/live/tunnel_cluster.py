"""Owns: a cluster of `ondie tunnel` as users have it, through the command line, and the rule that
its counters agree. Does not own: what programs do there.
Source: own.

The cluster has a name and a network of this process. Programs run at its ends through
`ondie tunnel exec`.
"""

import contextlib
import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from ondie.emu.live import entry, processes
from tests.live.processes import PATH, Live, alone, needs_tunnels, wait_for

NAME = f"made{os.getpid()}"
NET = f"10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 256}"


class Cluster:
    """A cluster that is up. ``live``: the owner of the processes at its ends. ``printed``: what
    its start has printed."""

    def __init__(self, live: Live, printed: str) -> None:
        self.live, self.printed = live, printed
        self.network = ipaddress.ip_network(processes.status(NAME)["subnet"])

    def address(self, end: int) -> str:
        """The address of a drive, or of the host for -1."""
        return self.network[end + 2].compressed

    @staticmethod
    def words(end: int, *command: str) -> list[str]:
        """The command line that runs a command at an end."""
        where = "host" if end < 0 else str(end)
        return ["ondie", "tunnel", "exec", "--name", NAME, where, "--", *command]

    def inside(self, end: int, *command: str) -> list[str]:
        """What that line becomes, for tests without the time that `ondie` takes to start."""
        where = "host" if end < 0 else str(end)
        return entry.words_at(processes.status(NAME), where, command, False)

    def start(self, end: int, *command: str, ready: str) -> "subprocess.Popen[bytes]":
        """Start a command at an end; return it when it has printed ``ready``."""
        return self.live.start(self.words(end, *command), lambda log: ready in log.read_text())

    def seen(self, end: int, other: int) -> str:
        """The address at which programs of an end reach another end."""
        found = processes.status(NAME)
        network = (found["host"] if end < 0 else found["drives"][end])["others"]
        return str(ipaddress.ip_network(network)[other + 2])

    def settled(self) -> dict[str, Any]:
        """:func:`settled` of this cluster."""
        return settled(NAME)


def settled(name: str) -> dict[str, Any]:
    """The status of a cluster when all packets have crossed and all counters agree; fails after a
    minute."""
    found: dict[str, Any] = {}
    why: list[str] = []

    def still() -> bool:
        nonlocal found
        before, found = found, processes.status(name)
        why[:] = disagreements(found) + silent(found)
        return not why and bool(before) and packets(before) == packets(found)

    try:
        wait_for("counters that agree", still)
    except TimeoutError:
        raise AssertionError("; ".join(why) or "packets still cross") from None
    return found


def silent(found: dict[str, Any]) -> list[str]:
    """The states of drives that were too busy to answer: their counters are not those of now."""
    states = [each["state"] for each in found["drives"]]
    return [state for state in states if "does not answer" in state]


def packets(found: dict[str, Any]) -> list[int]:
    """What tells whether packets still cross."""
    ends = [found["host"], *found["drives"]]
    return [end[key] for end in ends for key in sorted(end) if key.startswith("packets_")]


def disagreements(found: dict[str, Any]) -> list[str]:
    """Where the three counters of a status differ: those of the kernel's devices, of the blocks
    that NVMe commands have carried (the controller's count), and of the link. A veth counts
    the 14 B of an Ethernet header, too; TCP relays have no device, so the kernel counts nothing."""
    host, wrong = found["host"], []
    frame = 14 if "veth" in found["way"] else 0
    bare = "TCP relays" in found["way"]

    def equal(what: str, one: int, other: int) -> None:
        if one != other:
            wrong.append(f"{what}: {one} and {other}")

    def kernel(what: str, end: dict[str, Any], key: str, packets: int, size: int) -> None:
        if not bare and f"{key}_bytes" not in end["kernel"]:
            wrong.append(f"{what}: the kernel's counters are missing: {end['kernel_missing']}")
        elif not bare:
            equal(f"{what}, packets", end["kernel"][f"{key}_packets"], packets)
            equal(f"{what}, bytes", end["kernel"][f"{key}_bytes"], size + frame * packets)

    for way, key in (("in", "tx"), ("out", "rx")):
        kernel(f"host {way}", host, key, host[f"packets_{way}"], host[f"bytes_{way}"])
    for number, drive in enumerate(found["drives"]):
        for way, key in (("down", "rx"), ("up", "tx")):
            name = f"drive {number} {way}"
            count, size = drive[f"packets_{way}"], drive[f"bytes_{way}"]
            kernel(name, drive, key, count, size)
            equal(f"{name}, packets in blocks", drive[f"drive_packets{way}"], count)
            front = 2 + 10 * drive["offloads"]
            equal(f"{name}, bytes in blocks", drive[f"drive_bytes{way}"], size + front * count)
            if drive[f"link_bytes_{way}"] <= drive[f"drive_bytes{way}"]:
                wrong.append(f"{name}: the link has less than the blocks")
    return wrong


def moved(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, int]]:
    """What each drive's packets have got more between two statuses: bytes "down" and "up", and
    packets "forwarded" to other drives. The bytes are those of the kernel's counters."""
    return [
        {
            "down": new["kernel"]["rx_bytes"] - old["kernel"]["rx_bytes"],
            "up": new["kernel"]["tx_bytes"] - old["kernel"]["tx_bytes"],
            "forwarded": new["forwarded"] - old["forwarded"],
        }
        for old, new in zip(before["drives"], after["drives"], strict=True)
    ]


@contextlib.contextmanager
def up(live: Live, *options: str) -> Iterator[Cluster]:
    """A cluster whose processes ``live`` owns, from its start to its end. Its folder has `ondie` on
    the path."""
    program = live.folder / "ondie"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ondie.emu.cli "$@"\n')
    program.chmod(0o755)
    live.env |= {"PATH": f"{live.folder}:{PATH}", "TMPDIR": str(live.folder)}
    named = ["--name", NAME]
    try:
        words = ["ondie", "tunnel", "up", *named, "--subnet", f"{NET}.0/24", *options]
        yield Cluster(live, live.run(words))
    finally:
        live.run(["ondie", "tunnel", "down", *named])


@contextlib.contextmanager
def cluster(*options: str) -> Iterator[Cluster]:
    """A cluster that has all of it to itself, for tests that need root."""
    needs_tunnels()
    with alone("tunnel"), Live() as live, up(live, *options) as found:
        yield found
