"""The drive's end of a tunnel in a separate process: an NVMe controller and a network device.

Owns the process and the transfer of packets between the device and the drive's tunnel. Does not own
the controller (serve/nvme_drive.py, serve/vfio_user.py), the tunnel (serve/tunnel.py) or the
device.
Source: this project.

The drive stores its data in memory and has no model of flash, because packets are not stored on
flash.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator

from ondie.emu.config.config import Config
from ondie.emu.live.capture import Capture
from ondie.emu.live.gso import carried
from ondie.emu.live.namespaces import PR_SET_PDEATHSIG
from ondie.emu.live.network_device import Device
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.nvme.tunnel.framing import Data, Format
from ondie.emu.serve.defects import show_exception
from ondie.emu.serve.memory_drive import MemoryDrive
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.tunnel import DriveTunnel
from ondie.emu.serve.vfio_user import Session

MOST_WAITING = 4 << 20
"""Maximum total size of the blocks of packets that wait until the host fetches them, bytes. If this
size is exceeded, further packets wait in the drive's network device."""
WAIT_S = 0.0005
"""Interval at which the thread of a drive's end checks whether the host has fetched the waiting
packets, s."""
POLL_MS = 200


class DriveEnd:
    """Drive's end of an IP tunnel. A thread passes packets between :attr:`tunnel`, the tunnel
    protocol of the drive, and the network device of the drive."""

    def __init__(self, device: Device, limits: Format, cost: TunnelCost | None,
                 capture: Capture | None = None) -> None:  # fmt: skip
        self._device, self._capture = device, capture
        self._closing = False
        self.tunnel = DriveTunnel(limits, self._give, cost, lambda _: device.restart())
        self._thread = threading.Thread(target=self._run, name="ondie packets", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and close the tunnel."""
        self._closing = True
        self._thread.join()
        self.tunnel.close()

    def _give(self, packet: Data) -> None:
        """Write a packet from the host to the network device, for the drive's programs. Packets
        that the device refuses are dropped."""
        device = self._device
        cut = carried(packet, self.tunnel.form.lead, device.lead)
        if not cut:
            self.tunnel.drop()
        for each in cut:
            if not device.write(each):
                self.tunnel.drop()
            elif self._capture is not None:
                self._capture.add(each, device.lead)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._device, select.POLLIN)
        while not self._closing:
            try:
                poll.poll(POLL_MS)
                self._take()
            except Exception:  # noqa: BLE001 - a defect, which must not end the others
                show_exception("tunnel device")

    def _take(self) -> None:
        """Send the packets of the device to the host."""
        tunnel = self.tunnel
        form = tunnel.form
        packets, most = self._packets(form), MOST_WAITING // form.up
        packet = next(packets, None)
        while packet is not None and not self._closing:
            if tunnel.waiting > most:
                tunnel.announce()  # else the receive commands that the drive holds stay held
            while tunnel.waiting > most and not self._closing:
                time.sleep(WAIT_S)
            following = next(packets, None)
            if not tunnel.send(packet, more=following is not None, form=form):
                self._lose(packet)
            packet = following

    def _lose(self, packet: Data) -> None:
        """Count a dropped packet, and send the notifications that the device returns for it."""
        self.tunnel.drop()
        for each in self._device.lost(packet):
            self.tunnel.send(each)

    def _packets(self, form: Format) -> Iterator[Data]:
        """Yield the packets of the device for a tunnel with the parameters ``form``, until the
        device has no more packets or a host opens the tunnel with other parameters."""
        device = self._device
        device.offload(form.offloads)  # the kernel cuts segments for a host that does not
        while self.tunnel.form == form and (packet := device.read()) is not None:
            if self._capture is not None:
                self._capture.add(packet, device.lead)
            cut = carried(packet, device.lead, form.lead)
            if not cut:
                self.tunnel.drop()
            for each in cut:
                if len(each) <= form.longest:
                    yield each
                else:
                    self._lose(each)


def run_drive(
    feed: socket.socket,
    cfg: Config,
    device: Device,
    limits: Format,
    cost: TunnelCost | None,
    capture: Capture | None,
) -> None:
    """Serve the drive to one driver after another, until ``feed`` is closed. ``feed``: socket that
    supplies the drivers' sockets. ``limits``: maximum parameters that a driver may request.
    ``cost``: model of the time that commands take, or None if they take no time. The process
    terminates with its parent. Raises InputError if the drive cannot be created, for example
    because a block of the tunnel may exceed the largest transfer of its controller."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        return
    end = DriveEnd(device, limits, cost, capture)
    try:
        drive = NvmeDrive(MemoryDrive(cfg), tunnel=end.tunnel)
        while (sock := _next_socket(feed)) is not None:
            with sock:
                Session(sock, drive).run()
            device.restart()  # the host's relay has ended, with all that it had
    finally:
        end.close()


def _next_socket(feed: socket.socket) -> socket.socket | None:
    """Return the socket of the next driver, or None if ``feed`` is closed."""
    data, fds, _, _ = socket.recv_fds(feed, 1, 1)
    return socket.socket(fileno=fds[0]) if data and fds else None
