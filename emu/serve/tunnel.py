"""TCP/IP tunnel of a served drive: its thread, the durations of its commands, and the delivery of
packets.

Owns the times at which tunnel commands complete and packets reach the drive. Does not own the
commands (controller/tunnel.py), the protocol (nvme/tunnel/), the cost model (nvme/tunnel/cost.py),
the queues of hosts (the transports) or the processing of packets by the drive (argument ``take``).
Source: this project.

With a cost model, a command takes at least the modeled command time from arrival to completion. The
blocks of one direction cross the link one after the other at the rate of the link
(nvme/tunnel/pace.py). A block to the drive can start to cross the link when its command arrives,
and reaches the drive when the command completes. If packets for the host were waiting when the
previous block to the host was scheduled, the next block to the host starts to cross the link
directly after the previous block; otherwise it starts immediately. The CPU time of the host's relay
is not added, because it takes real time on the host.
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
"""Function that posts the completion of a tunnel command, and copies the data of the command to the
host. The function may be called from any thread."""
PS_PER_NS = 1000
NEVER = 1 << 80
"""Time of an event that never occurs, ps."""
MOST_HOLD_PS = 10 * PS_PER_S
"""Maximum hold time that a host may request, ps. It must be shorter than 60 s, after which Linux
treats an admin command as lost."""


class _Due(NamedTuple):
    """Completions and packets that are due at ``time`` (ps). ``order``: number that preserves the
    order of entries with the same time."""

    time: int
    order: int
    ended: Sequence[Ended]
    packets: Sequence[Data]


def clock_ps() -> int:
    """Return the current time of the monotonic clock, ps."""
    return time.monotonic_ns() * PS_PER_NS


def limits_of(cost: TunnelCost) -> Format:
    """Return the maximum values of the tunnel parameters that the drive offers to a host. ``cost``:
    cost model of the tunnel."""
    form = cost.form
    return Format(form.payload, form.outstanding, form.mtu, form.concatenate, "hold", MOST_HOLD_PS)


class DriveTunnel:
    """Drive's end of a tunnel. It passes packets between the controllers, which receive the tunnel
    commands of hosts, and the drive, which processes the packets.

    ``limits``: maximum values of the parameters that a host may request. ``take``: function that
    receives each packet from the host, in order. The function may call only the method ``drop`` of
    this object, and must not wait for a thread that calls another method. ``cost``: cost model of
    commands, or None if commands take no time. ``opened``: function called when a host has opened
    the tunnel; packets waiting in an earlier tunnel are then lost. The function must not call
    methods of this object. :meth:`close` ends the thread of this object.
    """

    def __init__(
        self, limits: Format, take: Callable[[Data], None], cost: TunnelCost | None = None,
        opened: Callable[[Opened], None] | None = None,
    ) -> None:  # fmt: skip
        self.commands = TunnelCommands(limits, clock_ps)
        self._take, self._cost, self._opened = take, cost, opened
        self._deliver: dict[User, Deliver] = {}
        self.lock = threading.Lock()
        """Lock that is held for every access to ``commands``. It is also the lock of the NVMe drive
        (nvme_drive.py)."""
        self._changed = threading.Condition(self.lock)
        self._handing = threading.Lock()
        """Held while completions and packets are delivered, to preserve their order."""
        self._due: list[_Due] = []
        self._order = 0
        self._pace = None if cost is None else Pace(cost, host=False)
        self._queued = False
        """True if packets for the host were still waiting after the last completions were
        scheduled."""
        self._until_ps = NEVER
        """Time until which the thread waits unless it is notified, ps. It is notified only if an
        event is due earlier, because each iteration of the thread delays other threads."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ondie tunnel", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread of this object. Waiting tunnel commands are not completed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    # --- controllers

    def add(self, controller: User, deliver: Deliver) -> None:
        """Allow the host of ``controller`` to use the tunnel. ``deliver``: function that completes
        the tunnel commands of this controller."""
        with self._changed:
            self._deliver[controller] = deliver

    def remove(self, controller: User) -> None:
        """Remove a controller, and drop its commands. The tunnel stays open, so that its host can
        continue through another controller."""
        with self._changed:
            self._deliver.pop(controller, None)
            self.commands.forget(controller)

    # --- the drive

    def send(self, packet: Data, more: bool = False, form: Format | None = None) -> bool:
        """Send a packet to the host; return False if no tunnel is open.

        ``more``: True if further packets follow immediately; the host is then not notified yet.
        ``form``: tunnel parameters for which the packet was created, or None. If they differ from
        the current parameters, do not send the packet and return False. Raises InputError if the
        packet is empty or longer than the MTU.
        """
        with self._changed:
            fits = form is None or form == self.form
            sent = fits and self.commands.send(packet, more)
        if not more:
            self.flush()
        return sent

    def drop(self) -> None:
        """Count a packet (from or to the host) that the drive has dropped. The function ``take``
        may call this method."""
        with self.lock:
            self.commands.relay.counts["dropped"] += 1

    def announce(self) -> None:
        """Announce to the host the packets that :meth:`send` has queued with ``more`` = True. Call
        this method if no further packet follows them."""
        with self._changed:
            self.commands.announce()
        self.flush()

    @property
    def waiting(self) -> int:
        """Number of blocks that wait for receive commands of the host. The drive should stop
        sending if this number is large."""
        return self.commands.relay.waiting

    @property
    def form(self) -> Format:
        """Parameters of the open tunnel. If no tunnel is open, these are the parameters of the last
        open tunnel, or the limits of the drive if no tunnel has been opened yet."""
        return self.commands.relay.form

    def pause(self, paused: bool) -> None:
        """Stop accepting packets from the host, so that the host stops sending. If ``paused`` is
        False, resume accepting packets."""
        with self._changed:
            self.commands.pause(paused)
        self.flush()

    # --- completions

    def flush(self) -> None:
        """Deliver the ended commands and the packets that are due. The thread of this object
        delivers the remaining ones when they are due. The caller must not hold a lock."""
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
        """Schedule the delivery of the tunnel commands ``ended`` and of the packets in
        ``events``."""
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
        """Return the time at which a command that has just ended is to be completed, ps."""
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
        """Return the time until the next scheduled delivery or the next expiry of a hold time, ps.
        Return None if neither is pending."""
        times = [self._due[0].time] if self._due else []
        if (deadline := self.commands.relay.deadline) is not None:
            times.append(deadline)
        return min(times) - clock_ps() if times else None


def _guarded(receiver: Callable[[Any], None], what: Data | Ended | Opened) -> None:
    """Call ``receiver`` with the argument ``what``. An exception is reported and suppressed, so
    that other receivers are still called."""
    try:
        receiver(what)
    except Exception:  # noqa: BLE001 - a host that has gone, or a defect
        show_exception("tunnel")


def check_transfer(limits: Format, most: int) -> None:
    """Raise InputError if a block of a tunnel with ``limits`` may be larger than ``most``, the
    maximum transfer size of a controller in bytes."""
    if limits.payload > most:
        raise InputError(
            f"tunnel.payload = {limits.payload}: must be at most {most} bytes, the maximum "
            f"transfer size of the controller (frontend.max_transfer)"
        )
