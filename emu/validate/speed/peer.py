"""Speed of MQSim and of this engine on the same input files, measured in the same run.

Owns the process that runs MQSim, the rows, and the increase of the number of requests of short
cases. Does not own the cases (validate/mqsim_cases.py) or MQSim, which the user has built. Source:
MQSim's command line.

If the MQSim build prints a line "PEER {json}" with loop_wall_s, loop_cpu_s and transactions, the
event loops are compared in addition to the commands.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ondie.emu import validate
from ondie.emu.replay.mqsim.flash_counts import counters
from ondie.emu.replay.mqsim.flows import flows
from ondie.emu.replay.mqsim.run import read_pair
from ondie.emu.replay.mqsim.to_engine import played
from ondie.emu.units import InputError
from ondie.emu.validate import mqsim_cases
from ondie.emu.validate.speed.process import run
from ondie.kernels.bench.run import Row

LEAST_S = 5.0
"""Minimum run time of MQSim in a case (s). The number of requests is multiplied until the run takes
this long."""
QUICK_S = 0.5
COLLECTING, OTHER = 20.0, 10.0
"""Targets for the flash transactions per second, relative to MQSim: with garbage collection, and
without garbage collection."""
FLASH = ("user_reads", "user_writes", "gc_reads", "gc_writes", "map_reads", "map_writes", "erases")


@dataclass(frozen=True)
class Run:
    """Times of one run of MQSim or of this engine (s).

    ``loop_s``, ``loop_cpu_s``: wall time and CPU time of the event loop; None if unknown.
    """

    wall_s: float
    cpu_s: float
    loop_s: float | None
    loop_cpu_s: float | None
    transactions: int | None


def check(peer: Path, folder: Path | None) -> None:
    """Raise InputError unless ``peer`` is an executable file and ``folder`` is a folder of MQSim
    cases (see mqsim_cases.read_cases)."""
    if not peer.is_file() or not os.access(peer, os.X_OK):
        raise InputError(f"--peer {peer}: is not an executable program")
    if folder is None:
        raise InputError(f"--peer {peer} requires --cases DIR, a folder of MQSim cases")
    mqsim_cases.read_cases(folder)


def rows(peer: Path, folder: Path, quick: bool, progress: Callable[[str], object]) -> list[Row]:
    """Return the rows of every case in ``folder``: flash transactions per second of this engine,
    relative to those of MQSim."""
    made = []
    for case in mqsim_cases.read_cases(folder):
        with tempfile.TemporaryDirectory() as name:
            made += case_rows(peer, case, Path(name), quick, progress)
    return made


def case_rows(
    peer: Path, case: mqsim_cases.Case, folder: Path, quick: bool, progress: Callable[[str], object]
) -> list[Row]:
    """Run MQSim and this engine on a case, and return the rows. The number of requests of the case
    is multiplied so that MQSim runs for at least LEAST_S (QUICK_S if ``quick``): its event loop, or
    the whole command if MQSim does not report the time of the loop.

    Each time of a program is the smaller time of two runs, or that of one run if ``quick`` is True.
    """
    least = QUICK_S if quick else LEAST_S
    progress(f"{case.name}: MQSim")
    config, workload = pair_in(case, folder, 1)
    theirs = _run_peer(peer, config, workload)
    times = math.ceil(1.1 * least / (theirs.loop_s or theirs.wall_s))
    if times > 1:
        config, workload = pair_in(case, folder, times)
        theirs = _run_peer(peer, config, workload)
    ours = None
    for number in range(1 if quick else 2):
        progress(f"{case.name} x {times}: run {number + 1}")
        if number:
            theirs = _best(theirs, _run_peer(peer, config, workload))
        mine = _run_here(config, workload)
        ours = mine if ours is None else _best(ours, mine)
    assert ours is not None
    return compared(case, times, ours, theirs)


def compared(case: mqsim_cases.Case, times: int, ours: Run, theirs: Run) -> list[Row]:
    """Return rows of the transactions per second of this engine, by wall time and by CPU time,
    relative to those of MQSim. ``times``: factor by which the number of requests of the case was
    multiplied, for the names of the rows."""
    target = COLLECTING if case.collects else OTHER
    name = f"{case.name} x {times}"
    made = []
    for what, mine, other in (
        ("loop", ours.loop_s, theirs.loop_s),
        ("loop, processor time", ours.loop_cpu_s, theirs.loop_cpu_s),
        ("command", ours.wall_s, theirs.wall_s),
        ("command, processor time", ours.cpu_s, theirs.cpu_s),
    ):
        if not mine or not other:
            continue
        assert ours.transactions is not None
        rate = ours.transactions / mine / 1e6
        their_rate = (theirs.transactions or ours.transactions) / other / 1e6
        words = f"MQSim {their_rate:.3g} M/s, target {target:g} x"
        made.append(Row(f"{name}: {what}", rate, "M transactions/s", words, rate / their_rate))
    return made


def _best(a: Run, b: Run) -> Run:
    """Return a run with the smaller value of each time of ``a`` and ``b``."""

    def least(x: float | None, y: float | None) -> float | None:
        return None if x is None or y is None else min(x, y)

    return Run(
        min(a.wall_s, b.wall_s), min(a.cpu_s, b.cpu_s), least(a.loop_s, b.loop_s),
        least(a.loop_cpu_s, b.loop_cpu_s), a.transactions,
    )  # fmt: skip


# --- files


def pair_in(case: mqsim_cases.Case, folder: Path, times: int) -> tuple[Path, Path]:
    """Write the two input files of a case and its traces to ``folder``; return the paths of the two
    files.

    ``times``: factor by which the number of requests is multiplied.
    """
    base = case.folder / "configs"
    config, workload = folder / "ssd.xml", folder / "workload.xml"
    shutil.copyfile(base / f"{case.name}.ssdconfig.xml", config)
    text = (base / f"{case.name}.workload.xml").read_text()
    for element in ("Total_Requests_To_Generate", "Relay_Count", "Stop_Time"):
        text = _scaled(text, element, times)
    workload.write_text(text)
    for path in re.findall(r"<File_Path>\s*(.*?)\s*</File_Path>", text):
        _unpack(case.folder, path, folder)
    return config, workload


def _scaled(text: str, element: str, times: int) -> str:
    """Return the text of the workload file with the integer of the XML element ``element``
    multiplied by ``times``."""
    pattern = rf"(<{element}>\s*)(\d+)(\s*</{element}>)"
    return re.sub(pattern, lambda m: f"{m[1]}{int(m[2]) * times}{m[3]}", text)


def _unpack(source: Path, path: str, folder: Path) -> None:
    """Copy a trace of the case to ``folder`` under the path that MQSim opens; decompress it if it
    is stored as .gz."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if (source / path).is_file():
        shutil.copyfile(source / path, target)
    elif (source / f"{path}.gz").is_file():
        with gzip.open(source / f"{path}.gz") as packed:
            target.write_bytes(packed.read())
    else:
        raise InputError(f"{source / path}: neither this file nor its compressed form (.gz) exists")


def shortened(folder: Path, requests: int) -> tuple[Path, Path] | None:
    """Write the first MQSim case of this project's checkout (tests/fidelity/mqsim) to ``folder``,
    with ``requests`` requests per flow.

    Returns the paths of the two files that were written, or None if there is no checkout.
    """
    cases = validate.cases_folder()
    if cases is None:
        return None
    case = mqsim_cases.read_cases(cases)[0]
    config, workload = pair_in(case, folder, 1)
    pattern = r"(<Total_Requests_To_Generate>\s*)\d+"
    workload.write_text(re.sub(pattern, rf"\g<1>{requests}", workload.read_text()))
    return config, workload


# --- runs


def _run_peer(peer: Path, config: Path, workload: Path) -> Run:
    """Run MQSim on the two files, in their folder. Raises InputError if MQSim fails or does not
    serve all requests."""
    command = [str(peer.resolve()), "-i", str(config), "-w", str(workload)]
    ended = run(command, workload.parent)
    said: dict[str, Any] = {}
    for line in ended.out.splitlines():
        if line.startswith("PEER {"):
            said = json.loads(line.removeprefix("PEER "))
    if said and said["served"] != said["generated"]:
        raise InputError(
            f"{peer}: only {said['served']} of {said['generated']} requests were served, so the "
            "times cannot be compared; use an MQSim build with corrected garbage collection"
        )
    return Run(
        ended.wall_s, ended.cpu_s, said.get("loop_wall_s"), said.get("loop_cpu_s"),
        said.get("transactions"),
    )  # fmt: skip


def _run_here(config: Path, workload: Path) -> Run:
    """Run this engine on the two files: the event loop in this process, the command in a separate
    process."""
    drive, scenarios = read_pair(config, workload)
    done = played(drive, flows(drive, scenarios[0], folders=[workload.parent]), frozenset())
    count = counters(done.counters)
    command = [sys.executable, "-m", "ondie.emu.cli", "mqsim", "-i", str(config), "-w",
               str(workload), "--json", str(workload.parent / "out.json"), "--quiet"]  # fmt: skip
    ended = run(command, workload.parent)
    transactions = sum(count[name] for name in FLASH)
    return Run(ended.wall_s, ended.cpu_s, done.loop_s, done.loop_cpu_s, transactions)
