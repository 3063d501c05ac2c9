"""Cost of the TCP/IP tunnel: commands, time, host CPU seconds and energy of a message.

Owns the conversion of a configuration to the constants of the cost model, the closed form of a
tunnel's rate, and the cost of messages up, down, and from drive to drive. Does not own the times of
single commands (timing.py), exchanges of many messages (cluster/collectives/allreduce.py), or the
values of the constants (presets).
Source: this project. The rate of a direction is the smallest of three rates: the tunnel's rate
(payload / command time x outstanding commands), the link's rate, and the rate of the host's relay
divided by the number of active tunnels. From drive to host, the drive signals a block before the
relay receives it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Self

import numpy as np

from ondie.emu.clock import PS_PER_S
from ondie.emu.config.config import Config
from ondie.emu.nvme.tunnel import timing
from ondie.emu.nvme.tunnel.framing import HEADER, READ_HEADER, Format
from ondie.emu.nvme.tunnel.timing import SEGMENT_HEADER, Times
from ondie.emu.units import InputError

UP, DOWN = "up", "down"
FJ_PER_J = 1e15


@dataclass(frozen=True)
class Message:
    """Cost of one message through the TCP/IP tunnel without other traffic. Times are in ps."""

    received: int
    """Number of receive commands that carry the message from the drive to the host."""
    written: int
    """Number of write commands that carry the message from the host to the drive."""
    notified: int
    """Number of notifications with which the drive announces blocks to the host."""
    up_ps: int
    """Time from the start of the message until the host has received its last block, ps; 0 for a
    message from the host."""
    down_ps: int
    """Time for which the message occupies the tunnel from host to drive, ps; 0 for a message to the
    host."""
    end_ps: int
    """Time from the start of the message until its last byte has arrived, ps."""
    cpu_ps: int
    """CPU time that the host's relay spends on the message, ps."""
    wire_up: int
    """Bytes of the message on the link from drive to host, including the headers of packets and
    blocks."""
    wire_down: int
    """Bytes of the message on the link from host to drive, including the headers of packets."""

    @property
    def commands(self) -> int:
        """Number of completions that the host handles for the message: one per receive or write
        command, and one per notification."""
        return self.received + self.written + self.notified

    @property
    def tail_ps(self) -> int:
        """Time from the arrival of the last block at the host to the end of the message, ps."""
        return self.end_ps - self.up_ps

    @property
    def body_ps(self) -> int:
        """Part of ``down_ps`` before the arrival of the last block at the host, ps. The host
        forwards the first blocks of a message between drives while later blocks still arrive. 0 for
        other messages."""
        return min(max(self.down_ps - self.tail_ps, 0), self.up_ps)

    @property
    def wire(self) -> int:
        """Total number of bytes of the message on the links, in both directions."""
        return self.wire_up + self.wire_down


@dataclass(frozen=True)
class TunnelCost:
    """Cost model of one drive's TCP/IP tunnel and of the host's relay that all tunnels share."""

    up: Times
    down: Times
    threads: int
    """Number of threads of the host's relay, which serve all tunnels."""
    uplink: int = 0
    """Rate in each direction of an uplink that all drives share, bytes/s; 0 if there is no shared
    uplink."""
    core_mw: int = 0
    """Power of a CPU core that runs the host's relay, mW."""
    fj_per_bit: int = 0
    """Energy of a drive's link per bit and port, fJ."""
    controller_mw: int = 0
    """Controller power of each drive during an exchange of messages, mW."""
    host_dram: int = 0
    """Bandwidth of the host's DRAM while the host sums gradients, bytes/s; 0 if the summation takes
    no time."""

    @classmethod
    def of(cls, cfg: Config) -> Self:
        """Return the cost model of a configuration. Raises InputError if the configuration has no
        tunnel, or if a parameter of the tunnel is invalid."""
        times, link = cfg.tunnel, cfg.link
        if not times.payload_bytes:
            raise InputError(
                f"{cfg.system.name}: no tunnel between host and drives; set tunnel.payload"
            )
        form = Format(
            times.payload_bytes,
            times.outstanding,
            times.mtu_bytes,
            times.concatenate,
            times.notification,
        )
        up, down = (
            Times(
                room=room,
                mtu=form.mtu,
                concatenate=int(form.concatenate),
                burst=int(form.notify == "burst"),
                outstanding=form.outstanding,
                command=times.command_ps,
                notify=times.notify_ps,
                cpu=times.relay_command_ps,
                copy_rate=times.relay_bytes_per_s,
                link=rate,
            )
            for room, rate in ((form.up, link.up_bytes_per_s), (form.down, link.down_bytes_per_s))
        )
        return cls(
            up,
            down,
            times.relay_threads,
            uplink=link.uplink_bytes_per_s,
            core_mw=times.relay_core_mw,
            fj_per_bit=link.fj_per_bit,
            controller_mw=cfg.energy.controller_mw,
            host_dram=cfg.host.dram_bandwidth_bytes_per_s,
        )

    @cached_property
    def form(self) -> Format:
        """Parameters of the packet stream, on which host and drive must agree."""
        times = self.down
        notify = "burst" if times.burst else "command"
        return Format(times.room, times.outstanding, times.mtu, bool(times.concatenate), notify)

    # --- messages

    def upward(self, count: int) -> Message:
        """Return the cost of a message of ``count`` bytes from the drive to the host. Raises
        InputError if ``count`` is negative."""
        return _upward(self.up, _sized(count))

    def downward(self, count: int) -> Message:
        """Return the cost of a message of ``count`` bytes from the host to the drive. Raises
        InputError if ``count`` is negative."""
        return _downward(self.down, _sized(count))

    def across(self, count: int, to: TunnelCost | None = None) -> Message:
        """Return the cost of a message of ``count`` bytes from the drive to another drive.

        The host forwards each packet when the complete packet has arrived. ``to``: cost model
        of the other drive's tunnel, or None if both are equal. Raises InputError if ``count`` is
        negative, or if the other tunnel has a smaller mtu and ``count`` is not 0.
        """
        return _across(self.up, (to or self).down, _sized(count))

    def waiting(self, ps: int) -> Self:
        """Return a copy of this model in which relay threads wait ``ps`` for a CPU core before each
        task.

        The wait makes the tunnel slower and changes how packets from the host to the drive are
        grouped into blocks.
        """
        up, down = self.up._replace(wait=ps), self.down._replace(wait=ps)
        return dataclasses.replace(self, up=up, down=down)

    # --- the closed form

    def limits(self, active: int = 1, ways: tuple[str, ...] = (UP, DOWN)) -> dict[str, float]:
        """Return the maximum rate of message bytes that each resource allows, in bytes/s.

        ``active``: number of tunnels that transfer messages in all directions of ``ways`` (UP,
        DOWN). Keys of the result: "tunnel up" and "tunnel down" (limited by the time of a command
        and the number of outstanding commands), "link up", "link down", "uplink", and "host relay"
        (CPU time of its threads for all active tunnels and directions).
        """
        found: dict[str, float] = {}
        relay = 0.0
        for way in ways:
            times = self.up if way == UP else self.down
            busy, cycle = _steady(times, way)
            per_block = _goodput(times)
            found[f"tunnel {way}"] = per_block * PS_PER_S / max(cycle / times.outstanding, busy)
            block = _mean_block(times)
            if times.link:
                found[f"link {way}"] = per_block * times.link / block
            if self.uplink:
                uplink = per_block * self.uplink / block / active
                found["uplink"] = min(found.get("uplink", uplink), uplink)
            relay += busy / per_block
        if relay:
            found["host relay"] = PS_PER_S * self.threads / (relay * active)
        return found

    def rate(self, active: int = 1, ways: tuple[str, ...] = (UP, DOWN)) -> tuple[str, float]:
        """Return (name of the limiting resource, its rate in bytes/s): the entry of :meth:`limits`
        with the smallest rate."""
        return min(self.limits(active, ways).items(), key=lambda item: item[1])

    # --- energy

    def joules(self, seconds: float, cpu_s: float, wire: int, drives: int) -> dict[str, float]:
        """Return the energy in J by component: relay cores, links, and drive controllers.

        ``seconds``: duration of the exchange. ``cpu_s``: CPU time of the relay. ``wire``: bytes on
        the links. ``drives``: number of drives. The controllers consume power during all of
        ``seconds``.
        """
        ports = 2 if self.uplink else 1
        return {
            "host relay": cpu_s * self.core_mw / 1e3,
            "PCIe": 8 * wire * ports * self.fj_per_bit / FJ_PER_J,
            "controllers": seconds * drives * self.controller_mw / 1e3,
        }


def _sized(count: int) -> int:
    if count < 0:
        raise InputError(f"tunnel message of {count} B: must be at least 0 B")
    return count


def _mean_block(times: Times) -> float:
    """Return the mean number of stream bytes per block of a long message."""
    record = times.mtu + HEADER
    return times.room if times.concatenate else record / -(-record // times.room)


def _goodput(times: Times) -> float:
    """Return the mean number of message bytes, without headers, per block of a long message."""
    return _mean_block(times) * (times.mtu - SEGMENT_HEADER) / (times.mtu + HEADER)


def _steady(times: Times, way: str) -> tuple[float, float]:
    """Return (busy time of the relay's thread per block, time from one command to the next if one
    command is outstanding), both in ps, for a long message in direction ``way`` (UP or DOWN)."""
    taking = times.cpu + (_mean_block(times) * PS_PER_S / times.copy_rate if times.copy_rate else 0)
    if way == DOWN or times.burst:
        return taking, times.wait + taking + times.command
    return times.cpu + taking, times.command + max(
        times.notify, times.wait + taking
    ) + times.wait + times.cpu


@lru_cache(maxsize=4096)
def _upward(times: Times, count: int) -> Message:
    if count == 0:
        return Message(0, 0, 0, 0, 0, 0, 0, 0, 0)
    there, done = timing.upward(count, times)
    blocks = len(there)
    notified = 1 if times.burst else blocks
    cpu = (blocks + notified) * times.cpu + timing.copied(there, times)
    end, wire = int(done[-1]), int(there[-1]) + blocks * READ_HEADER
    return Message(blocks, 0, notified, end, 0, end, int(cpu), wire, 0)


@lru_cache(maxsize=4096)
def _downward(times: Times, count: int) -> Message:
    if count == 0:
        return Message(0, 0, 0, 0, 0, 0, 0, 0, 0)
    everything = np.array([timing.stream(count, times.mtu)], np.int64)
    there, done = timing.downward(count, everything, np.zeros(1, np.int64), times)
    blocks, end = len(there), int(done[-1])
    cpu = blocks * times.cpu + timing.copied(there, times)
    return Message(0, blocks, 0, 0, end, end, int(cpu), 0, int(there[-1]))


@lru_cache(maxsize=4096)
def _across(up: Times, down: Times, count: int) -> Message:
    first = _upward(up, count)
    if count == 0:
        return first
    # Packets keep the sender's mtu. The mtu of the other tunnel must not be smaller, because IP
    # fragmentation is not supported.
    if down.mtu < up.mtu:
        raise InputError(
            f"tunnel mtu {up.mtu} B on one drive, {down.mtu} B on another: must be equal"
        )
    second = down._replace(mtu=up.mtu)
    there, done = timing.downward(count, *timing.upward(count, up), second)
    blocks, end = len(there), int(done[-1])
    copied = timing.copied(there, second)
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
