"""Speed of a tunnel without a rate limit, compared with a shuttle in the same run.

The shuttle is a process that only copies packets between two TUN devices.

Owns the measurements of `ondie bench tunnel`. Does not own the tunnel (cluster.py), the shuttle
(shuttle.py) or the output (cli/commands/bench_run.py).
Source: this project. One TCP connection sends for a few seconds, alternately through the shuttle
and through the tunnel, so that other load on the machine affects both measurements alike. All
values and ratios are medians over the rounds.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ondie.emu.config.config import load_preset
from ondie.emu.live import namespaces, processes
from ondie.emu.live.request import Request, Way, namespace_name, way_with_networks
from ondie.emu.live.shuttle import DRIVE, HOST, Shuttle
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.units import InputError
from ondie.kernels.bench import run as bench
from ondie.kernels.bench.run import Row

PRESET = "newport"
CASES = (("MTU 1500", 1500, False), ("MTU 9000", 9000, False), ("MTU 9000, GSO", 9000, True))
"""Measured cases: name, MTU in bytes, and True if TCP segments are transferred unsplit (GSO)."""
WAYS = (("to the drive", HOST, DRIVE), ("to the host", DRIVE, HOST))
TARGET_GBITS = 1.0
"""Rate that a tunnel with GSO should reach, Gbit/s."""
NETWORKS = {"shuttle": "198.18.0.0/24", "tunnel": "198.18.1.0/24"}
"""IPv4 networks of the two measured systems, in the range that RFC 2544 reserves for benchmarks."""
SECONDS, QUICK_S, ROUNDS = 3.0, 0.5, 3
RUN_S = 120.0
"""Maximum duration of one measured transfer, s."""
MODEL_BYTES = 10**8
PORT = 5001
CONDITIONS = (
    f"One TCP connection to a drive of the preset {PRESET} without a pace. CPU times include user "
    "and system time. The CPU time of the host's relay is compared with the cost model at the same "
    "MTU, that of the relay and the drive with the shuttle. The CPU time of the programs "
    "that send and receive is not counted. Values and ratios are medians over the rounds."
)
"""Text that describes the conditions of the measurement, printed with the results."""
SINK = f"""
import socket, sys, time
listener = socket.create_server((sys.argv[1], {PORT}))
print("ready", flush=True)
client, buffer = listener.accept()[0], bytearray(1 << 20)
size, began = client.recv_into(buffer), time.monotonic()
while count := client.recv_into(buffer):
    size += count
print(size, time.monotonic() - began, flush=True)
"""
SOURCE = f"""
import socket, sys, time
client = socket.create_connection((sys.argv[1], {PORT}), 20)
data, end = bytes(1 << 20), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    client.sendall(data)
"""


@dataclass
class Series:
    """Rates (bit/s) and CPU times (s/GB) of one system (shuttle or tunnel) in one direction, one
    value per round of the measurement."""

    rates: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    """CPU time of the process at the host's end per GB of transferred data, s/GB. The process is
    the host's relay (tunnel) or the process that copies the packets (shuttle)."""
    both: list[float] = field(default_factory=list)
    """CPU time of all processes that transfer the packets, per GB of transferred data, s/GB. For
    the tunnel, these are the host's relay and the process of the drive; the shuttle is one
    process."""


@dataclass(frozen=True)
class System:
    """Measured system: shuttle or tunnel. Its two ends are the host and drive 0, with addresses in
    ``network``. ``pids``: processes that transfer the packets between the ends, the host's process
    first. ``owner``: process that created the namespaces and whose namespace contains the host's
    end. ``own_user``: True if ``owner`` is in a user namespace."""

    network: ipaddress.IPv4Network
    owner: int
    pids: tuple[int, ...]
    own_user: bool

    def start(self, where: int, program: str, *words: str) -> subprocess.Popen[str]:
        """Start a Python program at the end ``where`` (HOST or DRIVE) with the arguments ``words``;
        return its process."""
        lead = processes.inside({"own_user": self.own_user, "pid": self.owner})
        if where == DRIVE:
            space = namespace_name(DRIVE, self.owner)
            lead += [namespaces.tool("ip"), "netns", "exec", space]
        return subprocess.Popen(
            [*lead, sys.executable, "-S", "-c", program, *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def transfer(self, source: int, sink: int, seconds: float, into: Series) -> None:
        """Send data from end ``source`` to end ``sink`` for ``seconds``. Append the measured rate
        and CPU times to ``into``. Raises InputError if the transfer fails."""
        address = str(self.network[sink + 2])
        taker = self.start(sink, SINK, address)
        giver = None
        try:
            assert taker.stdout is not None
            if taker.stdout.readline() != "ready\n":
                raise InputError(f"bench tunnel: {_last(taker)}")
            before = [Used.of(pid) for pid in self.pids]
            giver = self.start(source, SOURCE, address, str(seconds))
            if giver.wait(RUN_S):
                raise InputError(f"bench tunnel: {_last(giver)}")
            size, took = map(float, taker.communicate(timeout=RUN_S)[0].split())
        except subprocess.TimeoutExpired:
            raise InputError(f"bench tunnel: a transfer did not end within {RUN_S:g} s") from None
        finally:
            for each in (taker, giver):
                if each is not None:
                    each.kill()
                    each.wait()
        used = [each.since() / size * 1e9 for each in before]
        into.rates.append(8 * size / took)
        into.host.append(used[0])
        into.both.append(sum(used))


def _last(process: subprocess.Popen[str]) -> str:
    """Wait until a process terminates. Return the last line that the process printed to standard
    error, or a message with its exit code if it printed no line."""
    lines = process.communicate(timeout=RUN_S)[1].strip().splitlines()
    return lines[-1] if lines else f"a program ended with exit code {process.returncode}"


class Used(NamedTuple):
    """CPU time of the process ``pid`` at the time when this object was created."""

    pid: int
    start: int
    """Start time of the process, clock ticks. It distinguishes the process from a later process
    with the same process ID."""
    cpu: float
    """User and system CPU time of the process since its start, s."""

    @classmethod
    def of(cls, pid: int) -> Used:
        """Return the CPU time that a process has used since its start. Raises InputError if the
        process has terminated."""
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            fields = ["Z"]
        if fields[0] == "Z":
            raise InputError(f"bench tunnel: process {pid} has ended, so its CPU time is unknown; "
                             "try again")  # fmt: skip
        ticks = int(fields[11]) + int(fields[12])
        return cls(pid, int(fields[19]), ticks / os.sysconf("SC_CLK_TCK"))

    def since(self) -> float:
        """Return the CPU time that the process has used since this object was created, s. Raises
        InputError if the process has terminated."""
        now = Used.of(self.pid)
        if now.start != self.start:
            raise InputError(f"bench tunnel: process {self.pid} has ended, and another process has "
                             "its process ID; try again")  # fmt: skip
        return now.cpu - self.cpu


def usable_way() -> Way:
    """Return the kind of network with TUN devices on this machine. Raises InputError if there are
    no TUN devices, or if the program `ip` is not installed."""
    way = way_with_networks("auto")
    namespaces.tool("ip")
    if way.device != "tun":
        raise InputError(f"bench tunnel: needs TUN devices; this machine supports only {way}")
    return way


def run(quick: bool, progress: Callable[[str], object]) -> bench.Bench:
    """Measure all cases; return rates and CPU times. ``quick``: True to measure one short round.
    ``progress``: function that is called with the name of each measurement. Raises InputError if
    there are no TUN devices or a measurement fails."""
    way = usable_way()
    rows: list[Row] = []
    for name, mtu, gso in CASES:
        progress(f"{name}: start")
        found = measure(way, name, mtu, gso, quick, progress)
        rows += rows_of(name, gso, found, model_cpu(mtu))
    return bench.Bench(rows, bench.machine(1))


def measure(
    way: Way, name: str, mtu: int, gso: bool, quick: bool, progress: Callable[[str], object]
) -> dict[tuple[str, str], Series]:
    """Return the rates and CPU times by (system, direction). The systems are "shuttle" and
    "tunnel", which are measured alternately; the directions are those of WAYS. Raises InputError if
    a system cannot start or a transfer fails."""
    networks = {key: ipaddress.IPv4Network(text) for key, text in NETWORKS.items()}
    request = Request.of(
        load_preset(PRESET), name=f"bench{os.getpid()}", drives=1, mtu=mtu, pace="none", gso=gso,
        subnet=NETWORKS["tunnel"],
    )  # fmt: skip
    found = {(system, ends): Series() for system in networks for ends, *_ in WAYS}
    with contextlib.ExitStack() as undo:
        shuttle = undo.enter_context(Shuttle(way, networks["shuttle"], mtu, gso))
        undo.callback(processes.stop, request.name)
        cluster = processes.start(request, way)
        relay = processes.status(request.name)["relay_process"]
        others = [pid for pid in children(cluster) if pid != relay]
        owners = {"shuttle": shuttle.pid, "tunnel": cluster}
        pids = {"shuttle": (shuttle.pid,), "tunnel": (relay, *others)}
        for number in range(1 if quick else ROUNDS):
            for ends, source, sink in WAYS:
                progress(f"{name}: {ends}, round {number + 1}")
                for key, network in networks.items():
                    system = System(network, owners[key], pids[key], way.own_user)
                    seconds = QUICK_S if quick else SECONDS
                    system.transfer(source, sink, seconds, found[key, ends])
    return found


def children(pid: int) -> list[int]:
    """Return the process IDs of the child processes that the main thread of a process has
    started."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(each) for each in file.read().split()]


def model_cpu(mtu: int) -> dict[str, float]:
    """Return the CPU time of the host's relay according to the cost model, for each direction of
    WAYS, s/GB. ``mtu``: bytes."""
    cost = TunnelCost.of(load_preset(PRESET, (f"tunnel.mtu={mtu}B",)))
    down, up = (cost.downward(MODEL_BYTES), cost.upward(MODEL_BYTES))
    per_gb = 1e9 / MODEL_BYTES / 1e12
    return {WAYS[0][0]: down.cpu_ps * per_gb, WAYS[1][0]: up.cpu_ps * per_gb}


def rows_of(
    name: str, gso: bool, found: dict[Any, Series], model: dict[str, float]
) -> list[Row]:  # fmt: skip
    """Return the rows of case ``name``: rate and CPU time of tunnel and shuttle.

    ``gso``: True to add rows that compare the rate with the target. ``found``: measured values by
    system and direction. ``model``: CPU time of the cost model by direction, s/GB.
    """
    rows, median = [], statistics.median
    for ends, *_ in WAYS:
        bare, tunnel = found["shuttle", ends], found["tunnel", ends]
        where, rate = f"{name}, {ends}", median(tunnel.rates) / 1e9
        share = _ratio(tunnel.rates, bare.rates)
        rows += [
            Row(f"{where}: rate, shuttle", median(bare.rates) / 1e9, "Gb/s", "itself", 1),
            Row(f"{where}: rate, tunnel", rate, "Gb/s", "the shuttle", share),
        ]
        if gso:
            rows.append(Row(f"{where}: rate, tunnel", rate, "Gb/s", f"target {TARGET_GBITS:g} Gb/s",
                            rate / TARGET_GBITS))  # fmt: skip
        host = median(tunnel.host)
        rows += [
            Row(f"{where}: CPU time, shuttle", median(bare.host), "s/GB", "itself", 1),
            Row(f"{where}: CPU time, relay", host, "s/GB", f"the model, {model[ends]:.3g}",
                host / model[ends]),
            Row(f"{where}: CPU time, relay and drive", median(tunnel.both), "s/GB", "the shuttle",
                _ratio(tunnel.both, bare.host)),
        ]  # fmt: skip
    return rows


def _ratio(ours: list[float], others: list[float]) -> float:
    """Return the median over the rounds of the ratio of ``ours`` to ``others``."""
    return statistics.median(
        one / max(other, 1e-9) for one, other in zip(ours, others, strict=True)
    )
