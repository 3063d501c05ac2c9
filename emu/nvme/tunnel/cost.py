"""What the TCP/IP tunnel costs: commands, time, host CPU seconds and energy of a message.

Owns the constants of a configuration's tunnels as the cost model takes them, the closed form of a
tunnel's rate, and messages up, down, and from drive to drive. Does not own the times of single
commands (tunnel_times.py), exchanges of many messages (stannis/allreduce.py), or the constants
(presets).
Source: per direction the smallest of payload / command time x commands outstanding, the link, and
the host's relay over the active tunnels; upward the drive signals, and the relay comes for it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Self

import numpy as np

from ondie.emu.clock import PS_PER_S
from ondie.emu.config.config import Config
from ondie.emu.nvme.tunnel import timing as tunnel_times
from ondie.emu.nvme.tunnel.framing import HEADER, READ_HEADER, Format
from ondie.emu.nvme.tunnel.timing import SEGMENT_HEADER, Times
from ondie.emu.units import InputError

UP, DOWN = "up", "down"
ACROSS = "across"
FJ_PER_J = 1e15


@dataclass(frozen=True)
class Message:
    """What one message costs, undisturbed by others. Times in ps."""

    received: int
    """Commands that brought it up."""
    written: int
    """Commands that took it down."""
    notified: int
    """Notifications."""
    up_ps: int
    """From its start until its last block is in the host; 0 for a message from the host."""
    down_ps: int
    """The downward tunnel works for it, in all; 0 for a message to the host."""
    end_ps: int
    """From its start until its last byte is there."""
    cpu_ps: int
    """Of the host's relay."""
    wire_up: int
    """Bytes that cross the drive's link, with the headers of packets and blocks."""
    wire_down: int

    @property
    def commands(self) -> int:
        """Commands and notifications: completions that the host deals with."""
        return self.received + self.written + self.notified

    @property
    def tail_ps(self) -> int:
        """The downward tunnel works for it when nothing is left to come up."""
        return self.end_ps - self.up_ps

    @property
    def body_ps(self) -> int:
        """And before that, while it still comes up."""
        return min(max(self.down_ps - self.tail_ps, 0), self.up_ps)

    @property
    def wire(self) -> int:
        """Bytes over all links that it crosses."""
        return self.wire_up + self.wire_down


@dataclass(frozen=True)
class TunnelCost:
    """One drive's tunnel, and the host's relay that all of them share."""

    up: Times
    down: Times
    threads: int
    """Of the host's relay, for all tunnels."""
    uplink: int = 0
    """Bytes per second of a link that all drives share, each way; 0: they share none."""
    core_mw: int = 0
    """A core that relays."""
    fj_per_bit: int = 0
    """The link, per port."""
    controller_mw: int = 0
    """Each drive, as long as an exchange lasts."""
    host_dram: int = 0
    """Bytes per second of the host's DRAM, which its sums take; 0: they take no time."""

    @classmethod
    def of(cls, cfg: Config) -> Self:
        """Of a configuration. InputError for one without tunnels."""
        t, link = cfg.tunnel, cfg.link
        if not t.payload_bytes:
            raise InputError(
                f"{cfg.system.name}: no tunnel between host and drives (tunnel.payload = 0)"
            )
        form = Format(t.payload_bytes, t.outstanding, t.mtu_bytes, t.concatenate, t.notification)
        up, down = (
            Times(
                room=room,
                mtu=form.mtu,
                concatenate=int(form.concatenate),
                burst=int(form.notify == "burst"),
                outstanding=form.outstanding,
                command=t.command_ps,
                notify=t.notify_ps,
                cpu=t.relay_command_ps,
                copy_rate=t.relay_bytes_per_s,
                link=rate,
            )
            for room, rate in ((form.up, link.up_bytes_per_s), (form.down, link.down_bytes_per_s))
        )
        return cls(
            up,
            down,
            t.relay_threads,
            uplink=link.uplink_bytes_per_s,
            core_mw=t.relay_core_mw,
            fj_per_bit=link.fj_per_bit,
            controller_mw=cfg.energy.controller_mw,
            host_dram=cfg.host.dram_bandwidth_bytes_per_s,
        )

    @cached_property
    def form(self) -> Format:
        """What the two relays agree on."""
        t = self.down
        notify = "burst" if t.burst else "command"
        return Format(t.room, t.outstanding, t.mtu, bool(t.concatenate), notify)

    # --- messages

    def upward(self, n: int) -> Message:
        """A message of n bytes from the drive to the host."""
        return _upward(self.up, _sized(n))

    def downward(self, n: int) -> Message:
        """A message of n bytes from the host to the drive."""
        return _downward(self.down, _sized(n))

    def across(self, n: int, to: TunnelCost | None = None) -> Message:
        """A message of n bytes from the drive to another (``to``: with a tunnel of its own kind):
        up, and down again packet by packet as they have come whole."""
        return _across(self.up, (to or self).down, _sized(n))

    def waiting(self, ps: int) -> Self:
        """The same where the relay's threads wait so long for a core each time that they have
        something to do: slower, and packets gather differently for the way down."""
        up, down = self.up._replace(wait=ps), self.down._replace(wait=ps)
        return dataclasses.replace(self, up=up, down=down)

    # --- the closed form

    def limits(self, active: int = 1, ways: tuple[str, ...] = (UP, DOWN)) -> dict[str, float]:
        """Bytes per second of messages that a tunnel can take each of ``ways``, by what limits it,
        while so many tunnels are active, all of these ways.

        "tunnel up", "tunnel down": commands, as many as may be outstanding; "link up", "link down";
        "uplink"; "host relay": its threads, over all that is active.
        """
        found: dict[str, float] = {}
        relay = 0.0
        for way in ways:
            t = self.up if way == UP else self.down
            busy, cycle = _steady(t, way)
            per_block = _goodput(t)
            found[f"tunnel {way}"] = per_block * PS_PER_S / max(cycle / t.outstanding, busy)
            block = _mean_block(t)
            if t.link:
                found[f"link {way}"] = per_block * t.link / block
            if self.uplink:
                uplink = per_block * self.uplink / block / active
                found["uplink"] = min(found.get("uplink", uplink), uplink)
            relay += busy / per_block
        if relay:
            found["host relay"] = PS_PER_S * self.threads / (relay * active)
        return found

    def rate(self, active: int = 1, ways: tuple[str, ...] = (UP, DOWN)) -> tuple[str, float]:
        """(what limits, bytes per second): the smallest of :meth:`limits`."""
        return min(self.limits(active, ways).items(), key=lambda item: item[1])

    # --- energy

    def joules(self, seconds: float, cpu_s: float, wire: int, drives: int) -> dict[str, float]:
        """Energy by component: the relay's cores; the links, ``wire`` bytes; the drives' front ends
        with the rest of their controllers, which draw their power as long as it lasts."""
        ports = 2 if self.uplink else 1
        return {
            "host relay": cpu_s * self.core_mw / 1e3,
            "PCIe": 8 * wire * ports * self.fj_per_bit / FJ_PER_J,
            "controllers": seconds * drives * self.controller_mw / 1e3,
        }


def _sized(n: int) -> int:
    if n < 0:
        raise InputError(f"message of {n} B: 0 or more is right")
    return n


def _mean_block(t: Times) -> float:
    """Bytes of the stream in a block of a long message."""
    record = t.mtu + HEADER
    return t.room if t.concatenate else record / -(-record // t.room)


def _goodput(t: Times) -> float:
    """Bytes of the message in a block of a long one."""
    return _mean_block(t) * (t.mtu - SEGMENT_HEADER) / (t.mtu + HEADER)


def _steady(t: Times, way: str) -> tuple[float, float]:
    """(relay's thread, from command to command) of a mean block of a long message, ps."""
    taking = t.cpu + (_mean_block(t) * PS_PER_S / t.copy_rate if t.copy_rate else 0)
    if way == DOWN or t.burst:
        return taking, t.wait + taking + t.command
    return t.cpu + taking, t.command + max(t.notify, t.wait + taking) + t.wait + t.cpu


@lru_cache(maxsize=4096)
def _upward(t: Times, n: int) -> Message:
    if n == 0:
        return Message(0, 0, 0, 0, 0, 0, 0, 0, 0)
    there, done = tunnel_times.upward(n, t)
    blocks = len(there)
    notified = 1 if t.burst else blocks
    cpu = (blocks + notified) * t.cpu + tunnel_times.copied(there, t)
    end, wire = int(done[-1]), int(there[-1]) + blocks * READ_HEADER
    return Message(blocks, 0, notified, end, 0, end, int(cpu), wire, 0)


@lru_cache(maxsize=4096)
def _downward(t: Times, n: int) -> Message:
    if n == 0:
        return Message(0, 0, 0, 0, 0, 0, 0, 0, 0)
    everything = np.array([tunnel_times.stream(n, t.mtu)], np.int64)
    there, done = tunnel_times.downward(n, everything, np.zeros(1, np.int64), t)
    blocks, end = len(there), int(done[-1])
    cpu = blocks * t.cpu + tunnel_times.copied(there, t)
    return Message(0, blocks, 0, 0, end, end, int(cpu), 0, int(there[-1]))


@lru_cache(maxsize=4096)
def _across(up: Times, down: Times, n: int) -> Message:
    first = _upward(up, n)
    if n == 0:
        return first
    # The packets are the sender's, whatever the mtu of the other tunnel: no less, or they would
    # have to be fragmented by IP, which is refused.
    if down.mtu < up.mtu:
        raise InputError(
            f"tunnel mtu {up.mtu} B on one drive, {down.mtu} B on another: one mtu is right"
        )
    second = down._replace(mtu=up.mtu)
    there, done = tunnel_times.downward(n, *tunnel_times.upward(n, up), second)
    blocks, end = len(there), int(done[-1])
    copied = tunnel_times.copied(there, second)
    busy = blocks * (down.wait + down.cpu + down.command) + int(copied)
    return Message(
        first.received,
        blocks,
        first.notified,
        first.up_ps,
        busy // down.outstanding,
        end,
        first.cpu_ps + blocks * down.cpu + int(copied),
        first.wire_up,
        int(there[-1]),
    )
