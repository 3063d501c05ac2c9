"""Rates of live tunnels paced by the cost model: part of `ondie validate tunnel --live`.

Owns the rows of these rates, and the loop that sends and receives packets in one thread. Does not
own the computation of completion times (nvme/tunnel/pace.py), the relays of host and drive
(nvme/tunnel/) or the controller (controller/).
Source: the published rates in tunnel.PAPERS.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator

import numpy as np

from ondie.emu.analysis.row import IDENTITY, SHOWN, Row
from ondie.emu.clock import PS_PER_S
from ondie.emu.config.config import Config, load_preset
from ondie.emu.controller.tunnel import Ended, TunnelCommands
from ondie.emu.nvme.tunnel.cost import DOWN, UP, TunnelCost
from ondie.emu.nvme.tunnel.host import HostRelay
from ondie.emu.nvme.tunnel.pace import Pace
from ondie.emu.nvme.tunnel.protocol import Packet
from ondie.emu.nvme.tunnel.timing import SEGMENT_HEADER
from ondie.emu.nvme.wire import Completion
from ondie.emu.serve.tunnel import clock_ps, limits_of
from ondie.emu.validate.tunnel_cluster import TunnelStalled, controller_of, packets_of

SUITE = "tunnel-live"
SECONDS = 5.0
TOLERANCE = 0.05
SPIN_PS = 150 * 10**6
"""Time before a completion during which the loop polls instead of sleeping (ps)."""
BLOCKS = 64
"""Number of blocks of packets that the loop keeps in the sender's queue; a command transfers one
block."""
HEADROOM = 1.2
"""Minimum rate without pacing that this machine must reach, as a multiple of the modeled rate. On a
slower machine the row is not a valid measurement."""
NAMES = {UP: "drive to host", DOWN: "host to drive"}
PACED = (
    "real bytes through the relays and the controller of a drive, at the pace of the cost model in "
    "wall time; compared with the model's rate of a stream"
)
SLOW = (
    "real bytes through the relays and the controller of a drive; not checked, because this "
    "machine is too slow for these rates without pacing"
)


def stream(cfg: Config, way: str, seconds: float, paced: bool = True) -> float:
    """Return the rate of a stream that runs for ``seconds`` of wall time (message bytes/s).

    ``way``: UP or DOWN. ``paced``: True to complete commands at the pace of the cost model. Raises
    TunnelStalled if a command fails.
    """
    cost = TunnelCost.of(cfg)
    pace, relay = Pace(cost), HostRelay(limits_of(cost))
    commands = TunnelCommands(limits_of(cost), clock_ps)
    controller = controller_of(cfg, commands, "PACED")
    data = np.zeros(cost.form.mtu - SEGMENT_HEADER, np.uint8)
    packet = packets_of(data, 0, 1, 0, cost.form.mtu)[0]
    later: list[tuple[int, int, Ended]] = []
    bytes_moved, order, began = 0, 0, 0
    relay.open()
    while True:
        now = clock_ps()
        if began and now - began >= seconds * PS_PER_S:
            return bytes_moved * PS_PER_S / (now - began)
        if began and way == UP:
            while commands.relay.waiting < BLOCKS:
                commands.send(packet)
        elif began:
            while relay.waiting < BLOCKS:
                relay.send(packet)
        for command in relay.commands(now):
            if controller.execute(command.sqe, bytes(command.data)).entries:
                raise TunnelStalled("tunnel: the controller has refused a command")
        for ended in commands.completions():
            due = pace.due(len(ended.data), ended.down_bytes, now) if paced else now
            order += 1
            heapq.heappush(later, (due, order, ended))
        if later and (left := later[0][0] - clock_ps() - SPIN_PS) > 0:
            time.sleep(left / PS_PER_S)
        while later and later[0][0] <= clock_ps():
            ended = heapq.heappop(later)[2]
            relay.completed(Completion(ended.cqe.pack(), ended.data))
            events = [*relay.events(), *commands.relay.events()]
            sizes = [len(each.data) for each in events if isinstance(each, Packet)]
            bytes_moved += sum(sizes) - SEGMENT_HEADER * len(sizes)
            began = began or clock_ps()


def paced_rows(presets: tuple[str, ...], seconds: float = SECONDS) -> Iterator[Row]:
    """Yield a row for each preset and direction. The row compares the rate of a stream in the cost
    model with the rate measured on a live tunnel during ``seconds`` of wall time. If this machine
    is too slow for the rate, the row is shown but not checked."""
    for preset in presets:
        cfg = load_preset(preset)
        for way, name in NAMES.items():
            rate = TunnelCost.of(cfg).rate(1, (way,))[1]
            able = stream(cfg, way, seconds / 5, paced=False) >= HEADROOM * rate
            found = stream(cfg, way, seconds)
            kind, tolerance, source = (IDENTITY, TOLERANCE, PACED) if able else (SHOWN, None, SLOW)
            yield Row(
                SUITE, f"{preset}: paced stream, {name}", kind, rate / 1e6, found / 1e6, "MB/s",
                tolerance, source,
            )  # fmt: skip
