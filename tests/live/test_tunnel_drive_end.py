"""Does the drive's end take packets from its device and give packets to it, whatever waits at the
host?

The device is a stand-in that has its packets at once. The host's end gives its commands to a
stand-in for a driver (test_tunnel_passthru.py).
"""

import dataclasses
import os
import random
import select
import struct
import threading
import time
from collections import deque

import pytest

from ondie.emu.live import drive_end
from ondie.emu.live.drive_end import DriveEnd
from ondie.emu.live.gso import HEADER, NEEDS_CHECKSUM, NO_OFFLOADS
from ondie.emu.live.host_end import HostEnd, Port
from ondie.emu.live.network_device import Networked
from ondie.emu.live.passthru_queue import PassthruQueue
from ondie.emu.nvme.tunnel.framing import PS_PER_MS, Format
from tests.live.processes import wait_for
from tests.live.test_tunnel_passthru import Driver

HOLD_S = 60
FORM = Format(1 << 16, 8, 9000, notify="hold", hold_ps=HOLD_S * 1000 * PS_PER_MS)
HOST, DRIVE = bytes((10, 78, 0, 1)), bytes((10, 78, 0, 2))
END_S = 15.0


class Burst(Networked):
    """Stands for a TUN: it has packets when :meth:`fill` has given them, all at once."""

    def __init__(self, lead: int = 0) -> None:
        self.lead = lead
        self.out: list[bytes] = []
        self._packets: deque[bytes] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE)

    def fill(self, packets: list[bytes]) -> None:
        self._packets.extend(packets)
        os.eventfd_write(self._event, len(packets))

    def fileno(self) -> int:
        return self._event

    def read(self) -> bytes | None:
        if not self._packets:
            return None
        os.eventfd_read(self._event)
        return self._packets.popleft()

    def write(self, packet) -> bool:
        self.out.append(bytes(packet))
        return True

    def offload(self, on: bool) -> None:
        pass

    def close(self) -> None:
        os.close(self._event)


class Ends:
    """A host's end and a drive's end with a device each. ``form``: what the host asks for.
    ``leads``: bytes in front of the packets of the two devices. ``limits``: what it may ask for."""

    def __init__(self, form: Format = FORM, leads: tuple[int, int] = (0, 0),
                 limits: Format | None = None) -> None:  # fmt: skip
        self.at_host, self.at_drive = map(Burst, leads)
        self.drive = DriveEnd(self.at_drive, limits or form, None)
        self._be_host(form)

    def _be_host(self, form: Format, take_over: bool = False) -> None:
        self.queue = PassthruQueue(
            "/dev/null", form.payload, HOLD_S, Driver(self.drive.tunnel).ioctl
        )
        self.host = HostEnd(self.at_host, HOST)
        self.port = Port(self.queue, form, DRIVE, take_over)
        self.host.add(self.port)
        self._poll = select.poll()
        self._poll.register(self.queue, select.POLLIN)

    def take_over(self, form: Format) -> None:
        """Be another host, which asks for ``form``."""
        old = self.queue
        self._be_host(form, True)
        self.until("the other tunnel", lambda: self.port.open)
        old.close()

    def __enter__(self):
        self.until("the tunnel", lambda: self.port.open)
        return self

    def __exit__(self, *error) -> None:
        self.drive.tunnel.pause(False)
        self.port.close()
        self.until("the close", lambda: self.port.closed)
        self.drive.close()
        self.queue.close()
        self.at_host.close()
        self.at_drive.close()

    def until(self, what: str, ready) -> None:
        deadline = time.monotonic() + END_S
        while not ready():
            assert time.monotonic() < deadline, f"still awaited: {what}; {self.port.report()}"
            if self._poll.poll(20):
                self.host.work(self.port)


def packet(rng: random.Random, size: int, source: bytes = DRIVE, target: bytes = HOST) -> bytes:
    """A packet, by default from the drive to the host."""
    head = struct.pack(">BBHHHBBH", 0x45, 0, size, rng.randrange(1 << 16), 0, 64, 17, 0)
    return head + source + target + rng.randbytes(size - 20)


@pytest.mark.parametrize("most", [1 << 16, 1 << 20])
def test_a_burst_longer_than_what_may_wait_does_not_wait_for_the_hold_time(monkeypatch, most):
    """The drive holds all receive commands when the burst begins."""
    monkeypatch.setattr(drive_end, "MOST_WAITING", most)
    rng = random.Random(1)
    burst = [packet(rng, 9000) for _ in range(4 * most // 9000)]
    with Ends() as ends:
        waits = ends.drive.tunnel.commands.relay
        ends.until("receive commands that wait", lambda: len(waits._reads) == FORM.outstanding)
        began = time.monotonic()
        ends.at_drive.fill(burst)
        ends.until("the burst", lambda: len(ends.at_host.out) == len(burst))
        assert time.monotonic() - began < HOLD_S / 4
        assert ends.at_host.out == burst
    assert not any(each.name == "ondie packets" for each in threading.enumerate())


@pytest.mark.parametrize("first", [True, False])
def test_another_host_may_ask_for_other_parameters(monkeypatch, first):
    """It takes the tunnel over from one with GSO, or from one without, while packets wait."""
    most = 4  # of its blocks
    monkeypatch.setattr(drive_end, "MOST_WAITING", most * FORM.payload)
    forms = [dataclasses.replace(FORM, offloads=each) for each in (first, not first)]
    rng = random.Random(4)
    burst = [packet(rng, 9000) for _ in range(200)]
    limits = dataclasses.replace(GSO, payload=4 * GSO.payload)
    with Ends(forms[0], (10, 10), limits) as ends:
        tunnel = ends.drive.tunnel
        waits = tunnel.commands.relay
        ends.until("receive commands that wait", lambda: len(waits._reads) == FORM.outstanding)
        ends.at_drive.fill([NO_OFFLOADS + each for each in burst])
        wait_for("packets that wait", lambda: not waits._reads and tunnel.waiting > most, 20)
        assert tunnel.form == forms[0] and not ends.at_host.out
        left = len(ends.at_drive._packets)
        ends.take_over(forms[1])
        assert tunnel.form == forms[1]
        ends.until("the others", lambda: len(ends.at_host.out) == left)
        assert ends.at_host.out == [NO_OFFLOADS + each for each in burst[-left:]]
        assert waits.counts["dropped"] == 1  # the one that was to go next
        assert not ends.host.counts["dropped"]


# --- packets that are dropped

WRONG = HEADER.pack(NEEDS_CHECKSUM, 0, 0, 0, 24, 60000)
"""A header of offloads whose checksum is outside of the packet."""
GSO = dataclasses.replace(FORM, offloads=True)


@pytest.mark.parametrize(("form", "leads"), [(FORM, (10, 10)), (GSO, (0, 0))])
def test_a_packet_with_a_wrong_offload_header_is_counted(form, leads):
    """With devices that have a header and a tunnel that has none, the end that takes such a packet
    drops it; the other way round, the one that gives it. Other packets pass."""
    rng = random.Random(2)
    up, down = packet(rng, 500), packet(rng, 500, HOST, DRIVE)
    with Ends(form, leads) as ends:
        inside = bytes(form.lead)
        if leads[0]:
            ends.at_drive.fill([WRONG + up, NO_OFFLOADS + up])
            ends.at_host.fill([WRONG + down, NO_OFFLOADS + down])
            ends.host.take()
        else:
            ends.drive.tunnel.send(WRONG + up)
            ends.drive.tunnel.send(inside + up)
            assert ends.port.send(WRONG + down) and ends.port.send(inside + down)
            ends.port.pump()
        ends.until("packets", lambda: ends.at_host.out and ends.at_drive.out)
        ends.port.ask()
        ends.until("the status", lambda: ends.port.answered)
        assert ends.at_host.out == [bytes(leads[0]) + up]
        assert ends.at_drive.out == [bytes(leads[1]) + down]
        assert ends.host.counts["dropped"] == 1
        assert ends.port.report()["drive_dropped"] == 1 and not ends.port.report()["dropped"]


def test_packets_that_the_drive_cannot_pass_on_are_counted():
    """One is too long for the tunnel, one is refused by the kernel, and one has no tunnel."""
    rng = random.Random(3)
    with Ends() as ends:
        counts = ends.drive.tunnel.commands.relay.counts
        ends.at_drive.fill([packet(rng, 9001), packet(rng, 9000)])
        ends.until("the packet", lambda: ends.at_host.out)
        assert counts["dropped"] == 1
        ends.at_drive.write = lambda packet: False
        assert ends.port.send(packet(rng, 100, HOST, DRIVE))
        ends.port.pump()
        ends.until("the refusal", lambda: counts["dropped"] == 2)
        ends.port.close()
        ends.until("the close", lambda: ends.port.closed)
        ends.at_drive.fill([packet(rng, 100)])
        ends.until("the drop", lambda: counts["dropped"] == 3)
