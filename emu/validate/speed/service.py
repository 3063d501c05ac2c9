"""Benchmark of a served drive: commands per second, compared with the engine alone, and latency
beyond the modeled latency if the drive follows the wall clock.

Owns the workloads of `ondie bench service`. Does not own the drive (emu/drive.py) or the output
(cli/commands/bench_run.py). Source: this project.

Commands are reads or writes of 4 KiB, uniform over 256 MiB of a fresh drive, so that no garbage
collection is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from ondie.emu.config.config import Config, load_preset
from ondie.emu.drive import Drive
from ondie.emu.engine.run import build
from ondie.emu.ftl import write_frontier
from ondie.emu.nand.memory_ahead import MemoryAhead
from ondie.emu.nvme.command import COMMAND, READ, WRITE
from ondie.emu.nvme.request import NOT_YET, REQUEST
from ondie.emu.replay.player import Player, Source
from ondie.emu.service import Service
from ondie.emu.validate.speed.plan import REPEAT
from ondie.kernels.bench import run as bench
from ondie.kernels.bench.run import Row
from ondie.kernels.doorbell import Doorbell

PRESET = "gen4-tlc"
SIZE = 4096
UNITS = 1 << 16
"""Number of mapping units of 4 KiB that the commands address."""
DEPTH = 256
CASES = (
    ("reads, 32 at a time", READ, 32, False, 0.8e6),
    ("writes, 32 at a time", WRITE, 32, False, 0.5e6),
    ("reads with bytes, 32 at a time", READ, 32, True, 0.3e6),
    ("writes with bytes, 32 at a time", WRITE, 32, True, 0.3e6),
    ("reads, one at a time", READ, 1, False, 60e3),
    ("reads with bytes, one at a time", READ, 1, True, 60e3),
)
"""Measured cases: name, operation, number of commands per batch, True if commands transfer data,
and target in commands per second."""
CONDITIONS = (
    "Each run has a fresh drive. Writes with bytes fill memory that has not been used yet; as in "
    "a service, another thread prepares this memory, and the CPU time of that thread is not "
    "counted."
)
"""Conditions of the measurement, printed with the rows."""
BLOCK = 20
"""Number of consecutive reads at queue depth 1 (null_client), and of consecutive waits of a bare
timer. Blocks of reads and blocks of waits alternate."""
ABOVE_US = 20.0
"""Target (us) for the part of a client's wait at queue depth 1 that exceeds the sum of the modeled
latency and the delay of a bare timer."""


def run(quick: bool, progress: Callable[[str], object]) -> bench.Bench:
    """Measure all cases, and the engine alone for comparison, in several rounds; return the rows.

    Each rate is the best of several runs, and is compared with that of the engine alone.
    """
    cfg = load_preset(PRESET)
    count = 20_000 if quick else 200_000
    engine = dict.fromkeys((READ, WRITE), 0.0)
    served = dict.fromkeys((case[0] for case in CASES), 0.0)
    for number in range(2 if quick else REPEAT):
        progress(f"round {number + 1}")
        for op in engine:
            engine[op] = max(engine[op], engine_alone(cfg, op, count))
        for name, op, batch, payload, _ in CASES:
            rate = service(cfg, op, batch, payload, count if batch > 1 else count // 10)
            served[name] = max(served[name], rate)
    rows = [
        Row(f"engine alone, {'reads' if op == READ else 'writes'}", rate / 1e3, "k/s", "itself", 1)
        for op, rate in engine.items()
    ]
    for name, op, _, _, target in CASES:
        rate = served[name]
        kind = "reads" if op == READ else "writes"
        rows += [
            Row(name, rate / 1e3, "k/s", f"engine alone, {kind}", rate / engine[op]),
            Row(name, rate / 1e3, "k/s", f"target {target / 1e3:g} k/s", rate / target),
        ]
    progress("the wall clock")
    rows += wall_clock(cfg, 200 if quick else 4000)
    return bench.Bench(rows, bench.machine(1))


def wall_clock(cfg: Config, count: int) -> list[Row]:
    """Return rows of a drive that is served from a thread.

    The rows are: time that a client at queue depth 1 waits beyond the modeled latency, delay of a
    bare timer, CPU time of an idle service, and time to simulate one idle virtual hour.
    """
    waits = null_client(cfg, count)
    with Service(Drive(cfg), "real"):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        time.sleep(1)
        busy = (time.process_time() - begin_cpu) / (time.perf_counter() - begin)
    with Service(Drive(cfg)) as served:
        begin = time.perf_counter()
        served.idle(3600).result()
        hour = time.perf_counter() - begin
    return [
        *wait_rows(*waits),
        Row("processor time of an idle second", busy, "s", "one CPU", busy),
        Row("time to simulate an idle hour", hour, "s", "target 1 s", hour),
    ]


def wait_rows(seen: np.ndarray, modeled: np.ndarray, bare: np.ndarray) -> list[Row]:
    """Return benchmark rows that compare the delays of reads beyond their modeled latency with the
    delays of a bare timer.

    ``seen``: waits of a client for reads. ``modeled``: modeled latencies of these reads. ``bare``:
    delays of a bare timer that waits for the modeled latencies. All are float64[n] in seconds.
    """
    beyond = (seen - modeled) * 1e6
    (served, served_99), (timer, timer_99) = (
        np.percentile(x, [50, 99]) for x in (beyond, bare * 1e6)
    )
    above = served - timer
    return [
        Row("modeled latency of a read, depth 1, median", float(np.median(modeled)) * 1e6, "us",
            "itself", 1),
        Row("delay of a bare timer, median", timer, "us", "itself", 1),
        Row("delay of a bare timer, 99th percentile", timer_99, "us", "itself", 1),
        Row("delay of a served read, median", served, "us", "itself", 1),
        Row("delay of a served read, 99th percentile", served_99, "us", "itself", 1),
        Row("median delay of a served read minus that of a bare timer", above, "us",
            f"target {ABOVE_US:g} us", above / ABOVE_US),
    ]  # fmt: skip


def null_client(cfg: Config, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read ``count`` times at queue depth 1 from this thread, with the clock ``real``, and measure
    bare timers between blocks of reads.

    Returns the waits of the client, the modeled latencies, and the delays of the timers, each
    float64[count] in seconds.
    """
    drive = Drive(cfg)
    drive.fill(0, 0, UNITS)
    seen, modeled, bare = np.zeros(count), np.zeros(count), np.zeros(count)
    command = np.zeros(1, COMMAND)
    command["size"], command["data"] = SIZE, -1
    offsets = np.random.default_rng(0).integers(0, UNITS, count) * SIZE
    bell = Doorbell()
    with Service(drive, "real") as served:
        client = served.connect()
        for first in range(0, count, BLOCK):
            for at in range(first, min(first + BLOCK, count)):
                command["offset"] = offsets[at]
                begin = time.perf_counter_ns()
                done = client.run(command)
                failed = done["status"][0]
                seen[at] = (time.perf_counter_ns() - begin) / 1e9
                modeled[at] = int(done["end"][0] - done["arrival"][0]) / 1e12
                assert not failed
            for at in range(first, min(first + BLOCK, count)):
                bare[at] = bare_timer(bell, modeled[at])
    return seen, modeled, bare


def bare_timer(bell: Doorbell, seconds: float) -> float:
    """Wait ``seconds`` for a doorbell that is never rung, in the same way as the service. Return
    the time (s) by which the wait took longer than ``seconds``."""
    begin = time.perf_counter_ns()
    wait_ns = round(seconds * 1e9)
    bell.wait(bell.rung, wait_ns, begin + wait_ns)
    return (time.perf_counter_ns() - begin - wait_ns) / 1e9


def engine_alone(cfg: Config, op: int, count: int) -> float:
    """Return the commands per second of CPU time of the event loop, for ``count`` commands in a
    closed loop of depth DEPTH, without a host."""
    arrays = build.build(cfg, devices=1, phases=1, pairs=1)
    player = Player(arrays, cfg, [Source(_requests(op, count), DEPTH, True, count=count)])
    if op == READ:
        write_frontier.fill(player.state, 0, 0, UNITS, 0)
    return count / player.run().loop_cpu_s


def _requests(op: int, count: int) -> Iterator[np.ndarray]:
    out = np.zeros(count, REQUEST)
    out["arrival"] = out["start"] = out["end"] = NOT_YET
    out["op"], out["size"] = op, SIZE
    out["offset"] = np.random.default_rng(0).integers(0, UNITS, count) * SIZE
    yield out


def service(cfg: Config, op: int, batch: int, payload: bool, count: int) -> float:
    """Return the commands per second of CPU time of a served drive.

    The drive receives ``batch`` commands, completes them and reports their completions. This
    repeats until ``count`` commands are complete. ``payload``: True if the commands transfer data.
    """
    drive = Drive(cfg, payload=payload, queue_depth=DEPTH)
    commands = np.zeros(batch, COMMAND)
    commands["op"], commands["size"] = op, SIZE
    commands["data"] = np.arange(batch) * SIZE if payload else -1
    if payload:
        drive.buffer = np.zeros((max(batch, 32), SIZE), np.uint8)
    if op == READ and payload:
        _write_all(drive)
    elif op == READ:
        drive.fill(0, 0, UNITS)
    rng = np.random.default_rng(0)
    offsets = rng.integers(0, UNITS, (-(-count // batch), batch)) * SIZE
    with MemoryAhead() as ahead:
        drive.prepare_memory(ahead)
        turn(drive, commands, offsets[:32])
        begin = time.thread_time()
        done = turn(drive, commands, offsets)
        return done / (time.thread_time() - begin)


def turn(drive: Drive, commands: np.ndarray, offsets: np.ndarray) -> int:
    """Submit ``commands`` (COMMAND[batch]) once for each row of ``offsets``, int64[n, batch], and
    wait for their completion; return the number of completions."""
    done = 0
    for each in offsets:
        commands["offset"] = each
        commands["arrival"] = drive.earliest_arrival
        drive.submit(commands)
        drive.run_until(completions=len(each))
        done += len(drive.completions())
    return done


def _write_all(drive: Drive) -> None:
    """Write every mapping unit once, in ascending order."""
    commands = np.zeros(32, COMMAND)
    commands["op"], commands["size"] = WRITE, SIZE
    commands["data"] = np.arange(32) * SIZE
    turn(drive, commands, np.arange(UNITS).reshape(-1, 32) * SIZE)
