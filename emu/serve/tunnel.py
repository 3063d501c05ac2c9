"""The tunnel of a served drive: its thread, the time that commands take, and packets.

Owns when commands of the tunnel complete and packets reach the drive. Does not own the commands
(controller/tunnel.py), the protocol (nvme/tunnel/), their cost (nvme/tunnel/cost.py), the queues
of hosts (the transports) or the drive's use of packets (``take``).
Source: none.

With a cost model, a command takes at least its command time from its arrival to its completion,
and the blocks of one direction cross one after the other at the rate of the link
(nvme/tunnel/pace.py). A block reaches the drive with the completion of its command. The CPU time of
the host's relay is not added: the host is real. A block to the drive can cross since its command
has arrived. One to the host has waited since the block before it if packets were left then; else it
can cross from now on.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ondie.emu.clock import PS_PER_S
from ondie.emu.controller.tunnel import Ended, TunnelCommands, User
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.nvme.tunnel.framing import Data, Format
from ondie.emu.nvme.tunnel.pace import Pace
from ondie.emu.nvme.tunnel.protocol import Event, Opened, Packet
from ondie.emu.serve.defects import show_exception
from ondie.emu.units import InputError

Deliver = Callable[[Ended], None]
"""Function that posts the completion of an admin command, and its data to the host, from any
thread."""
PS_PER_NS = 1000
NEVER = 1 << 80
"""Time of an event that never occurs, ps."""
MOST_HOLD_PS = 10 * PS_PER_S
"""Longest hold time that a host may ask for: Linux takes an admin command for lost after 60 s."""


class _Due(NamedTuple):
    """What follows at a time (ps)."""

    time: int
    order: int
    ended: Sequence[Ended]
    packets: Sequence[Data]


def clock_ps() -> int:
    """Return the wall time, ps."""
    return time.monotonic_ns() * PS_PER_NS


def limits_of(cost: TunnelCost) -> Format:
    """Return the largest parameters that a drive with this tunnel offers to a host."""
    form = cost.form
    return Format(form.payload, form.outstanding, form.mtu, form.concatenate, "hold", MOST_HOLD_PS)


class DriveTunnel:
    """The drive's end of a tunnel, between controllers and ``take``, which gets each packet of the
    host in order. ``take`` may call only ``drop`` of this object, and must not wait for a thread
    that calls others.

    ``limits``: largest parameters that a host may request. ``cost``: the time that commands take;
    None: none. ``opened``: called when a host has opened the tunnel, and packets that waited for an
    earlier one are lost; as ``take``, it must not call this object. ``close`` ends its thread.
    """

    def __init__(
        self, limits: Format, take: Callable[[Data], None], cost: TunnelCost | None = None,
        opened: Callable[[Opened], None] | None = None,
    ) -> None:  # fmt: skip
        self.commands = TunnelCommands(limits, clock_ps)
        self._take, self._cost, self._opened = take, cost, opened
        self._deliver: dict[User, Deliver] = {}
        self.lock = threading.Lock()
        """Held for every use of ``commands``; it is the lock of the drive, too (nvme_drive.py)."""
        self._changed = threading.Condition(self.lock)
        self._handing = threading.Lock()
        """Held while completions and packets leave, so that they keep their order."""
        self._due: list[_Due] = []
        self._order = 0
        self._pace = None if cost is None else Pace(cost, host=False)
        self._queued = False
        """Packets for the host have waited since the last block to it."""
        self._until_ps = NEVER
        """Until when the thread waits, if nothing wakes it: only what is earlier does, since each
        turn of the thread costs the others some."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ondie tunnel", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. Commands that wait are not completed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    # --- controllers

    def add(self, controller: User, deliver: Deliver) -> None:
        """Let the host of a controller use the tunnel."""
        with self._changed:
            self._deliver[controller] = deliver

    def remove(self, controller: User) -> None:
        """The controller has gone; the tunnel stays open for its host."""
        with self._changed:
            self._deliver.pop(controller, None)
            self.commands.forget(controller)

    # --- the drive

    def send(self, packet: Data, more: bool = False, form: Format | None = None) -> bool:
        """Send a packet to the host; return False if no tunnel is open. ``more``: others follow at
        once. ``form``: for which the packet was made; if the tunnel has another one by now, the
        packet is not sent, either. Raises InputError for a packet that is empty or longer than the
        mtu."""
        with self._changed:
            fits = form is None or form == self.form
            sent = fits and self.commands.send(packet, more)
        if not more:
            self.flush()
        return sent

    def drop(self) -> None:
        """Count a packet that the drive has dropped, in either direction. ``take`` may call it."""
        with self.lock:
            self.commands.relay.counts["dropped"] += 1

    def announce(self) -> None:
        """Signal the packets that were sent with ``more``, because none follows now."""
        with self._changed:
            self.commands.announce()
        self.flush()

    @property
    def waiting(self) -> int:
        """Number of blocks that wait for receive commands; a drive stops sending when there are too
        many."""
        return self.commands.relay.waiting

    @property
    def form(self) -> Format:
        """Parameters of the open tunnel, or of the last one; before that, the limits."""
        return self.commands.relay.form

    def pause(self, paused: bool) -> None:
        """Take no packets as long as ``paused``; the host then stops sending."""
        with self._changed:
            self.commands.pause(paused)
        self.flush()

    # --- completions

    def flush(self) -> None:
        """Deliver the ended commands that are due; the thread delivers the others later. The caller
        holds no lock."""
        with self._handing:
            with self._changed:
                events = self.commands.relay.events()
                self._schedule(self.commands.completions(), events)
                now = clock_ps()
                ready = []
                while self._due and self._due[0].time <= now:
                    ready.append(heapq.heappop(self._due))
                left_ps = self._left_ps()
                if left_ps is not None and now + left_ps < self._until_ps:
                    self._changed.notify_all()
                deliver = dict(self._deliver)
            for event in events:
                if isinstance(event, Opened) and self._opened is not None:
                    _guarded(self._opened, event)
            for each in ready:
                for packet in each.packets:
                    _guarded(self._take, packet)
                for ended in each.ended:
                    if ended.controller in deliver and ended.live:
                        _guarded(deliver[ended.controller], ended)

    def _schedule(self, ended: Sequence[Ended], events: Sequence[Event]) -> None:
        """Put completions and packets on the schedule."""
        packets = [event.data for event in events if isinstance(event, Packet)]
        if self._cost is None or self._pace is None:
            if ended or packets:
                self._add(0, ended, packets)
            return
        arrived = 0
        for each in ended:
            due = self._due_time(each, self._cost, self._pace)
            arrived = max(arrived, due) if each.down_bytes else arrived
            self._add(due, [each], ())
        self._queued = self.waiting > 0
        if packets:
            self._add(arrived, (), packets)

    def _due_time(self, ended: Ended, cost: TunnelCost, pace: Pace) -> int:
        """Return when a command that has ended now completes, ps."""
        now = clock_ps()
        ready = ended.issued if ended.down_bytes else None if self._queued else now
        crossed = pace.due(len(ended.data), ended.down_bytes, now, ready)
        return max(ended.issued + cost.up.command, crossed)

    def _add(self, due: int, ended: Sequence[Ended], packets: Sequence[Data]) -> None:
        self._order += 1
        heapq.heappush(self._due, _Due(due, self._order, ended, packets))

    def _run(self) -> None:
        while True:
            try:
                with self._changed:
                    left_ps = self._left_ps()
                    while not self._closing and (left_ps is None or left_ps > 0):
                        self._until_ps = NEVER if left_ps is None else clock_ps() + left_ps
                        self._changed.wait(None if left_ps is None else left_ps / PS_PER_S)
                        left_ps = self._left_ps()
                    self._until_ps = NEVER
                    if self._closing:
                        return
                    self.commands.tick()
                self.flush()
            except Exception:  # noqa: BLE001 - a host that has gone, or a defect
                show_exception("tunnel")

    def _left_ps(self) -> int | None:
        """Return the time until the thread has something to do, ps; None: nothing."""
        times = [self._due[0].time] if self._due else []
        if (deadline := self.commands.relay.deadline) is not None:
            times.append(deadline)
        return min(times) - clock_ps() if times else None


def _guarded(receiver: Callable[[Any], None], what: Data | Ended | Opened) -> None:
    """Hand ``what`` over. An exception is shown: what follows belongs to others."""
    try:
        receiver(what)
    except Exception:  # noqa: BLE001 - a host that has gone, or a defect
        show_exception("tunnel")


def check_transfer(limits: Format, most: int) -> None:
    """Raise InputError if a block is larger than the largest transfer of a controller."""
    if limits.payload > most:
        raise InputError(
            f"tunnel.payload = {limits.payload}: must be at most {most} bytes, the largest "
            f"transfer of the controller (frontend.max_transfer)"
        )
