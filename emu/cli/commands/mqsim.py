"""`ondie mqsim`: MQSim's two files in, its result files and lines out.

Owns where results go, what is said on the way, and that nothing is written unless all scenarios
have run. Does not own a run (run.py) or the tables (printed.py).
Source: MQSim's command line: scenarios in the workload's order, each result beside the workload.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console

from ondie.emu.cli.arguments import remark_unless
from ondie.emu.cli.click_helpers import progress_bar
from ondie.emu.cli.console import console as screen
from ondie.emu.cli.files import check_target, write_atomically
from ondie.emu.cli.tables import replay as printed
from ondie.emu.replay.mqsim.flow import Flow, total
from ondie.emu.replay.mqsim.run import (
    Outcome,
    Run,
    Simulate,
    read_pair,
    remarks,
    result_path,
    run_scenario,
)
from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.mqsim.to_engine import simulate
from ondie.emu.replay.mqsim.workload_xml import Scenario

Progress = Callable[[str, float], None] | None


def command(
    ssdconfig: Path,
    workload: Path,
    *,
    json_path: Path | None,
    out: Path | None,
    quirks: bool,
    remark: Callable[[str], None],
    console: Console | None,
    progress: Progress,
) -> None:
    """Run the scenarios and write their results.

    ``json_path``: one object, or a list of them when there are several scenarios. ``out``: folder
    of the result files, that of the workload by default; where that one cannot be written,
    ``remark`` is told so and they are left out. ``console``: where results are shown.
    InputError, TraceError: nothing is written. SimulationError: a run does not balance.
    """
    drive, scenarios = read_pair(ssdconfig, workload)
    if json_path is not None:
        check_target(json_path, ssdconfig, workload)
    beside = _check_results(scenarios, out, remark)
    several = len(scenarios) > 1
    outcomes = []
    for scenario in scenarios:
        name = f"scenario {scenario.number}" if several else "mqsim"
        said = [f"{name}: {line}" if several else line for line in remarks(drive, scenario, quirks)]
        simulation = _simulation(name, said, remark, progress)
        outcomes.append(run_scenario(drive, scenario, simulation, asked=quirks))
    files: dict[Path, bytes] = {}
    if beside:
        for outcome in outcomes:
            files |= {_place(path, out): data for path, data in outcome.files.items()}
    if json_path is not None:
        files[json_path] = as_json(outcomes)
    write_atomically(files)
    if console is not None:
        show(outcomes, console)
        if files:
            console.print("written: " + ", ".join(map(str, files)))


def _check_results(
    scenarios: Sequence[Scenario], out: Path | None, remark: Callable[[str], None]
) -> bool:
    """Can the result files be written? InputError if not where the user wants them."""
    for scenario in scenarios:
        path = result_path(scenario)
        if out is None and not os.access(path.parent, os.W_OK | os.X_OK):
            remark(f"{path}: not written: no permission in {path.parent}; --out DIR is another")
            return False
        check_target(_place(path, out))
    return True


def _place(path: Path, out: Path | None) -> Path:
    return path if out is None else out / path.name


def _simulation(
    name: str, said: Sequence[str], remark: Callable[[str], None], progress: Progress
) -> Simulate:
    """The simulation of a scenario, which makes its remarks first, now that nothing is wrong with
    its input, and tells ``progress`` how far it is."""

    def run(drive: Drive, flows: Sequence[Flow], quirks: frozenset[str]) -> Run:
        for line in said:
            remark(line)
        requests = total(flows)
        stops = [flow.stop_ps for flow in flows if flow.stop_ps is not None]

        def at(done: int, now_ps: int) -> None:
            assert progress is not None
            share = done / requests if requests else now_ps / max(stops)
            progress(name, min(share, 1.0))

        return simulate(drive, flows, quirks, None if progress is None else at)

    return run


def as_json(outcomes: Sequence[Outcome]) -> bytes:
    """What --json writes: an object for one scenario, a list for several."""
    data = [outcome.statistics for outcome in outcomes]
    document = data[0] if len(data) == 1 else data
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """Flows and totals of each scenario, in MQSim's terms, then its latencies and its flash."""
    for outcome in outcomes:
        if len(outcomes) > 1:
            console.print(f"Scenario {outcome.scenario.number} of {outcome.scenario.source}")
        for line in outcome.text:
            console.print(line, soft_wrap=True)
        for item in printed.tables(outcome.statistics):
            console.print(item)
        console.print(printed.run_words(outcome.statistics))


@click.command("mqsim")
@click.option("-i", "ssdconfig", required=True, type=click.Path(path_type=Path), help="The drive.")
@click.option("-w", "workload", required=True, type=click.Path(path_type=Path), help="The flows.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    help="Statistics as JSON: an object, or a list of them for several scenarios.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of MQSim's result files, else that of the workload.",
)
@click.option("--quirks", is_flag=True, help="Reproduce MQSim's known defects.")
@click.option("--quiet", is_flag=True, help="No progress bar, no tables and no remarks.")
def run_mqsim(
    ssdconfig: Path, workload: Path, json_path: Path | None, out: Path | None, quirks: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """Run MQSim's own files: ondie mqsim -i ssdconfig.xml -w workload.xml"""
    with progress_bar(quiet) as progress:
        command(
            ssdconfig, workload, json_path=json_path, out=out, quirks=quirks,
            remark=remark_unless(quiet), console=None if quiet else screen(), progress=progress,
        )  # fmt: skip
