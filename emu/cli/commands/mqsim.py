"""`ondie mqsim`: reads MQSim's two input files and writes result files and text in MQSim's format.

Owns the options and the paths of the results. Does not own a run (replay/mqsim/run.py) or the
tables (tables/replay.py).
Source: MQSim's command line. Scenarios run in the order of the workload file. Each result file is
next to the workload file.

If a scenario cannot run, the command reports this and runs the remaining scenarios. It writes no
file before the last scenario has run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ondie.emu.cli.click_helpers import progress_bar
from ondie.emu.cli.output import OutputOptions, output_options
from ondie.emu.files import check_target
from ondie.emu.replay.mqsim.flow import Flow, total
from ondie.emu.replay.mqsim.run import (
    Outcome,
    Run,
    Simulate,
    check,
    read_files,
    remarks,
    result_path,
    run_scenario,
)
from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.mqsim.to_engine import simulate
from ondie.emu.replay.mqsim.workload_xml import Scenario
from ondie.emu.results.result import rows_of
from ondie.emu.results.tables import replay
from ondie.emu.units import InputError
from ondie.traces.errors import TraceError

Progress = Callable[[str, float], None] | None


@dataclass(frozen=True, kw_only=True)
class MqsimOptions(OutputOptions):
    """The options of `ondie mqsim`."""

    ssdconfig: Path
    workload: Path
    quirks: bool

    def result_file(self, scenario: Scenario) -> Path:
        """Return the path of the result file of a scenario."""
        path = result_path(scenario)
        return path if self.out is None else self.out / path.name

    def check_results(self, scenarios: Sequence[Scenario]) -> bool:
        """Return True if the result files can be written.

        Returns False, with a remark, if --out is not given and the workload's folder is not
        writable. Raises InputError if a file cannot be written for another reason, or if it cannot
        be written to the folder of --out.
        """
        for scenario in scenarios:
            path = result_path(scenario)
            if self.out is None and not os.access(path.parent, os.W_OK | os.X_OK):
                self.remark(
                    f"{path}: not written, because {path.parent} is not writable; use --out DIR "
                    "to write to another folder"
                )
                return False
            check_target(self.result_file(scenario))
        return True


def run_scenarios(given: MqsimOptions, progress: Progress) -> int:
    """Run the scenarios, write their results and print the tables. Return the exit code.

    If some of the scenarios cannot run, the reasons are printed on standard error, the results of
    the other scenarios are written, and the exit code is 2. Raises InputError or TraceError if the
    drive or the options are invalid, or if no scenario can run. Raises SimulationError if the
    requests and operations of a run do not balance. If an exception is raised, nothing is written.
    """
    drive, scenarios = read_files(given.ssdconfig, given.workload)
    given.check(given.ssdconfig, given.workload)
    several = len(scenarios) > 1
    refused: dict[int, Exception] = {}
    for scenario in scenarios:
        with refusal(scenario, refused, several):
            check(drive, scenario)
    writable = given.check_results([each for each in scenarios if each.number not in refused])
    outcomes = []
    for scenario in scenarios:
        if scenario.number in refused:
            continue
        name = f"scenario {scenario.number}" if several else "mqsim"
        lines = remarks(scenario)
        lines = [f"{name}: {line}" if several else line for line in lines]
        simulation = _simulation(name, lines, given.remark, progress)
        with refusal(scenario, refused, several):
            outcome = run_scenario(drive, scenario, simulation, asked=given.quirks)
            outcomes.append(outcome)
            if outcome.difference is not None:
                start = f"{name}: " if several else ""
                given.remark(f"{start}{outcome.difference}")
    if not outcomes:
        raise InputError(
            f"{given.workload}: no scenario of this file can run (see the reasons "
            "above); nothing was written"
        )
    files: dict[Path, bytes] = {}
    if writable:
        for outcome in outcomes:
            files |= {
                path if given.out is None else given.out / path.name: data
                for path, data in outcome.files.items()
            }
    # One scenario is one object, several are a list.
    ran = [outcome.statistics for outcome in outcomes]
    found = {outcome.scenario.number: outcome.statistics for outcome in outcomes}
    found |= {number: {"scenario": number, "refused": str(e)} for number, e in refused.items()}
    whole = [found[scenario.number] for scenario in scenarios]
    written = given.write(
        whole if several else whole[0],
        others=files,
        rows=lambda: rows_of(ran if several else ran[0]),
    )
    if (screen := given.console) is not None:
        show(outcomes, screen)
    given.list_files(written)
    return 2 if refused else 0


@contextmanager
def refusal(scenario: Scenario, refused: dict[int, Exception], several: bool) -> Iterator[None]:
    """Context that handles an input error of ``scenario``.

    With ``several`` scenarios, the error is added to ``refused`` under the number of the scenario
    and printed on standard error, so that the remaining scenarios can run. The error of a single
    scenario is raised.
    """
    try:
        yield
    except (InputError, TraceError) as error:
        if not several:
            raise
        refused[scenario.number] = error
        line = " ".join(str(error).split())
        click.echo(f"ondie: scenario {scenario.number} cannot run: {line}", err=True)


def _simulation(
    name: str, lines: Sequence[str], remark: Callable[[str], None], progress: Progress
) -> Simulate:
    """Return a function that simulates one scenario.

    The function first passes ``lines`` to ``remark``; at that time, the input has been checked.
    During the run it reports the fraction of completed requests to ``progress``.
    """

    def run(drive: Drive, flows: Sequence[Flow], quirks: frozenset[str]) -> Run:
        for line in lines:
            remark(line)
        requests = total(flows)
        stops = [flow.stop_ps for flow in flows if flow.stop_ps is not None]

        def at(done: int, now_ps: int) -> None:
            assert progress is not None
            share = done / requests if requests else now_ps / max(stops)
            progress(name, min(share, 1.0))

        return simulate(drive, flows, quirks, None if progress is None else at)

    return run


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print the flows and totals of each scenario with MQSim's names, then the tables."""
    for outcome in outcomes:
        if len(outcomes) > 1:
            console.print(f"Scenario {outcome.scenario.number} of {outcome.scenario.source}")
        for line in outcome.text:
            console.print(line, soft_wrap=True)
        for item in replay.tables(outcome.statistics):
            console.print(item)
        console.print(replay.run_words(outcome.statistics))


@click.command("mqsim")
@click.option("-i", "ssdconfig", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="Read MQSim's SSD configuration from this XML file.")  # fmt: skip
@click.option("-w", "workload", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="Read MQSim's workload from this XML file.")  # fmt: skip
@click.option("--quirks", is_flag=True, help="Reproduce the known defects of MQSim.")
@output_options("the statistics (a list if there are several scenarios)",
                out="Write MQSim's result files and result.json to this folder.  [default: result "
                    "files next to the workload]", quiet="tables or remarks")  # fmt: skip
def run_mqsim(**values: Any) -> None:
    """Run simulations from MQSim's input files: ondie mqsim -i ssdconfig.xml -w workload.xml

    Exit code 2: at least one scenario cannot run; the results of the other scenarios are written.
    """
    given = MqsimOptions(**values)
    with progress_bar(given.quiet) as progress:
        code = run_scenarios(given, progress)
    if code:
        raise click.exceptions.Exit(code)
