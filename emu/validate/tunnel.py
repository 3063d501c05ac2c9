"""TCP/IP tunnel compared with published rates and a packet simulation: `ondie validate tunnel`.

Owns the rows of this suite except those of live tunnels (tunnel_live.py, tunnel_paced.py). Does not
own the cost model (nvme/tunnel/cost.py, cluster/collectives/), the packet simulation
(tunnel_packets.py) or the constants (presets).
Source: STANNIS (DAC 2020), HyperTune; rick-heig/nvme_csd for the open-source equivalent.

The command time of each drive is fitted to the effective rate of its ring. The rows that are not
fitted are arithmetic, compare the cost model with the relays' state machines, or have no published
value. No row is a check.

MobileNetV2 has 3.47 M parameters in STANNIS and 3.4 M in HyperTune (cluster/networks.toml).
"""

from __future__ import annotations

from collections.abc import Iterator

from ondie.emu.analysis.compare import run_path
from ondie.emu.analysis.row import FIT, IDENTITY, SHOWN, Progress, Row, rows_of_parts
from ondie.emu.cluster.collectives import ring
from ondie.emu.cluster.collectives.allreduce import ALGORITHMS, Allreduce, exchange
from ondie.emu.cluster.networks import network
from ondie.emu.config.config import load_preset
from ondie.emu.nvme.tunnel.cost import DOWN, UP, TunnelCost
from ondie.emu.nvme.tunnel.framing import HEADER
from ondie.emu.nvme.tunnel.timing import SEGMENT_HEADER
from ondie.emu.paths.base import Options
from ondie.emu.validate.tunnel_live import live_rows
from ondie.emu.validate.tunnel_paced import paced_rows
from ondie.emu.validate.tunnel_packets import Transfer, run
from ondie.traces import load

SUITE = "tunnel"
GRADIENT = 3_470_000 * 4
"""Size of MobileNetV2's gradient in FP32 (bytes), with the parameter count of STANNIS."""
PAPERS = {
    "newport": (24, 36e6, "STANNIS (DAC 2020)", "2.7x at 24 Newports, 13.88 MB"),
    "laguna": (
        36, 14.5e6, "HyperTune (HeydariGorji et al.)",
        "99.83 img/s at 36 Lagunas, which is 1.82 s of synchronization per step of 720 images",
    ),
}  # fmt: skip
"""For each preset: number of drives, rate of the ring per link (bytes/s), document, and the printed
numbers from which the rate follows."""
CONSTANTS = ("tunnel.command",)
SYNCHRONIZED = 1.82
SPEEDUP = 2.7
SMALL = ("flash.dies_per_channel=2", "flash.blocks_per_plane=64")
"""Settings of drives with little flash; the all-reduce does not use flash."""
OPEN = (
    "tunnel.notification=burst", "tunnel.relay_command=0", "tunnel.relay_copy=0",
)  # fmt: skip
"""Settings that model rick-heig/nvme_csd, an open-source tunnel of this kind. The published time of
this tunnel per command, 100 to 280 us, includes the command and copy time of the relay. The tunnel
does not notify the host of every command."""
MODEL = (
    "packet simulation with the relays' state machines, compared with this project's cost model; "
    "both count the same commands"
)
STEPS = (
    "packet simulation with the relays' state machines, compared with this project's closed form. "
    "Tolerance: the closed form does not model tunnels that wait for a thread of the relay"
)
OWN = "predicted; nothing is published"
TUNNELS = (1, 6, 12, 24, 36)
THREADS = (1, 2, 4, 8)


def tunnel_rows(progress: Progress, live: bool = False) -> list[Row]:
    """Return all rows of the suite.

    ``live``: True to include the rows of programs that send real bytes (tunnel_live.py), which take
    minutes.
    """
    parts = (fit_rows, identity_rows, command_rows, time_rows, shape_rows)
    rows = rows_of_parts(SUITE, parts, progress)
    if live:
        rows += [*live_rows(progress), *paced_rows(tuple(PAPERS))]
    return rows


def cost_of(preset: str, *overrides: str) -> TunnelCost:
    """Return the cost model of a preset's tunnel with the settings ``overrides``."""
    return TunnelCost.of(load_preset(preset, overrides))


def ring_rate(x: Allreduce, drives: int, n_bytes: int = GRADIENT) -> float:
    """Return the rate of a ring all-reduce per link and direction (bytes/s), for a gradient of
    ``n_bytes``."""
    nodes = drives + 1
    return ring.steps(nodes) * ring.piece_bytes(n_bytes, nodes) / x.seconds


def fit_rows() -> Iterator[Row]:
    """Yield the rows of the rates to which the command times are fitted."""
    for preset, (drives, rate, document, source) in PAPERS.items():
        size = network("mobilenetv2", preset).gradient_bytes
        x = exchange("ring", size, drives, cost_of(preset))
        name = f"{preset}: ring over {drives} drives, per link"
        found = ring_rate(x, drives, size) / 1e6
        yield Row(
            SUITE, name, FIT, rate / 1e6, found, "MB/s", 0.01, f"{document}: {source}",
            f"{document}, text", CONSTANTS,
        )  # fmt: skip
    drives, _, document, source = PAPERS["newport"]
    cfg = load_preset("newport", (*SMALL, f"system.devices={drives}"))
    trace = load("mobilenetv2")
    result = run_path("stannis", cfg, trace, Options(batch="paper"), steps=1, payload=False)
    assert result.ledger is not None
    alone = trace.steps[0].samples / (trace.steps[0].forward_s + trace.steps[0].backward_s)
    speedup = result.ledger.samples / result.ledger.step_s / alone
    name = f"newport: MobileNetV2, speedup of {drives} drives over the host alone, simulated"
    yield Row(
        SUITE, name, FIT, SPEEDUP, speedup, "x", 0.02, f"{document}: {source}",
        f"{document}, text", CONSTANTS,
    )  # fmt: skip


def identity_rows() -> Iterator[Row]:
    """Yield the rows whose expected values are calculated, and the time between two commands of
    each preset, for which nothing is published.

    Three kinds of values are calculated. The duration of a ring all-reduce over 36 Laguna drives
    follows from its rate. The rates of the open-source equivalent of the tunnel follow from its
    time per command. The ratio of the bytes through tunnels to the bytes of the ring's messages is
    below 2, because only messages between two drives cross two tunnels.
    """
    drives = PAPERS["laguna"][0]
    size = network("mobilenetv2", "laguna").gradient_bytes
    x = exchange("ring", size, drives, cost_of("laguna"))
    name = f"laguna: a ring of {size / 1e6:.4g} MB over {drives} drives"
    source = (
        "14.5 MB/s per link, as a time. Tolerance 3 %: the time is the small difference of two "
        "step times, 720 / 99.83 - 180 / 33.4 s, and depends on the last digits of 99.83 and 33.4"
    )
    yield Row(SUITE, name, IDENTITY, SYNCHRONIZED, x.seconds, "s", 0.03, source)
    source = "an open equivalent (nvme_csd): 4,092 B per command in 100 to 280 us, one at a time"
    about = f"{source}. Tolerance: the rates are rounded to whole MB/s"
    for microseconds, rate in ((100, 41), (280, 15)):
        cost = cost_of("newport", *OPEN, f"tunnel.command={microseconds} us")
        headers = (cost.up.mtu + HEADER) / (cost.up.mtu - SEGMENT_HEADER)
        stream = cost.rate(1, (UP,))[1] * headers / 1e6
        name = f"{microseconds} us per command: rate from drive to host"
        yield Row(SUITE, name, IDENTITY, rate, stream, "MB/s", 0.03, about)
    for preset in PAPERS:
        cost = cost_of(preset)
        size, n = 10**8, cost.upward(10**8)
        period = n.end_ps / n.received / 1e6
        name = f"{preset}: time between two commands, drive to host, {size / 1e6:.0f} MB"
        yield Row(SUITE, name, SHOWN, None, period, "us", None, f"{source}; {OWN}")
    x = exchange("ring", GRADIENT, 24, cost_of("newport"))
    hops = ring.steps(25) * 25 * ring.piece_bytes(GRADIENT, 25)
    name = "ring over 24 drives: bytes through tunnels divided by bytes of hops"
    moved = (x.bytes_up + x.bytes_down) / hops
    yield Row(
        SUITE,
        name,
        IDENTITY,
        2 * 24 / 25,
        moved,
        "x",
        1e-9,
        "a message from drive to drive crosses two tunnels",
    )


def command_rows() -> Iterator[Row]:
    """Yield the rows that compare the number of commands and the time of a message in the cost
    model with those of the relays' state machines."""
    for preset, (drives, *_) in PAPERS.items():
        cost = cost_of(preset)
        n = ring.piece_bytes(GRADIENT, drives + 1)
        for way, transfer, message in (
            ("drive to host", Transfer(1, 0, n), cost.upward(n)),
            ("host to drive", Transfer(0, 1, n), cost.downward(n)),
            ("drive to drive", Transfer(1, 2, n), cost.across(n)),
        ):
            found = run([transfer], 2, cost)
            name = f"{preset}: {n:,} B, {way}"
            counts = found.commands, message.commands
            yield Row(SUITE, f"{name}, commands", IDENTITY, *counts, "commands", 0.0, MODEL)
            took = found.end_ps / 1e9, message.end_ps / 1e9
            yield Row(SUITE, f"{name}, time", IDENTITY, *took, "ms", 1e-9, MODEL)


def time_rows() -> Iterator[Row]:
    """Yield the rows that compare the time of a ring step in the packet simulation with the closed
    form. All tunnels share the relay threads of one host.
    """
    for preset, (drives, *_) in PAPERS.items():
        cost = cost_of(preset)
        n = ring.piece_bytes(GRADIENT, drives + 1)
        for tunnels in TUNNELS:
            x = exchange("ring", n * (tunnels + 1), tunnels, cost)
            nodes = tunnels + 1
            found = run([Transfer(i, (i + 1) % nodes, n) for i in range(nodes)], tunnels, cost)
            step = x.seconds / ring.steps(nodes) * 1e3
            name = f"{preset}: a ring step of {n:,} B, tunnels: {tunnels}"
            took = found.end_ps / 1e9
            yield Row(SUITE, name, IDENTITY, took, step, "ms", 0.02, STEPS)


def shape_rows() -> Iterator[Row]:
    """Yield the rows that show the load of the host's relay, the number of drives for which 8 relay
    threads suffice, and the durations of all-reduces. The duration of the ring is shown for each
    number of relay threads. For every algorithm, duration and relay CPU time are shown."""
    for preset, (drives, *_) in PAPERS.items():
        cost = cost_of(preset)
        x = exchange("ring", GRADIENT, drives, cost)

        def shown(name: str, value: float, unit: str, preset: str = preset) -> Row:
            return Row(SUITE, f"{preset}: {name}", SHOWN, None, value, unit, None, OWN)

        busy = x.host_cpu_s / x.seconds
        yield shown(f"host cores busy with relaying for {drives} drives", busy, "cores")
        one = cost.limits(1)
        tunnel = min(one[f"tunnel {UP}"], one[f"tunnel {DOWN}"])
        most = one["host relay"] / tunnel
        yield shown("drives for which 8 relay threads suffice", most, "drives")
        for threads in THREADS:
            slow = exchange(
                "ring", GRADIENT, drives, cost_of(preset, f"tunnel.relay_threads={threads}")
            )
            name = f"ring over {drives} drives, relay threads: {threads}"
            yield shown(name, slow.seconds, "s")
        for kind in ALGORITHMS:
            x = exchange(kind, GRADIENT, drives, cost)
            yield shown(f"{kind} over {drives} drives", x.seconds, "s")
            yield shown(
                f"{kind} over {drives} drives, CPU time of the host's relay", x.host_cpu_s, "s"
            )
