"""The group of all commands, and the exit codes of their errors.

Owns the table of commands and the exit codes: 2 for bad input (one line, nothing written), 1 for a
failed check, 130 for an interrupt, 143 and 129 for SIGTERM and SIGHUP. Does not own any command
(cli/commands): the module of a command is imported when the command is called, so that `ondie
--help` stays fast.
Source: this project; it uses click to parse and rich to draw.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module

import click

from ondie.emu.cli.click_helpers import Group
from ondie.emu.cli.console import compiling
from ondie.emu.cli.ending import interruption


@dataclass(frozen=True)
class Entry:
    """A command: its location, "module:attribute" in cli/commands, and its line in `ondie
    --help`."""

    place: str
    help: str


TABLE = {
    "ablation": Entry(
        "ablation:run_ablation", "List the protections that an on-die update bypasses."
    ),
    "bench": Entry("bench:bench", "Measure the speed of kernels, engine, served drive and tunnel."),
    "calibrate": Entry("calibrate:run_calibrate", "Fit a preset to fio measurements."),
    "compare": Entry("compare:compare", "Replay a trace through the update paths."),
    "ctl": Entry("ctl:run_ctl", "Control a served drive: power, faults, counters."),
    "mqsim": Entry("mqsim:run_mqsim", "Run simulations from MQSim's input files."),
    "ndpipe": Entry("ndpipe:ndpipe", "Simulate and run fine-tuning on servers that store photos."),
    "preset": Entry("preset:preset", "List, show and compare configurations."),
    "record": Entry("record:record", "Record a training run as a trace."),
    "replay": Entry("replay:run_replay", "Replay a block trace through a drive."),
    "serve": Entry("serve:run_serve", "Serve a drive to other programs: NBD, NVMe/TCP, vfio-user."),
    "stannis": Entry("cluster:stannis", "Plan and simulate training on a cluster of drives."),
    "store": Entry("store:store", "Check, export and import the stored pages of a drive."),
    "study": Entry("study:study", "Study number formats and bit errors in training."),
    "trace": Entry("trace:trace", "Describe traces, and convert block traces between formats."),
    "tunnel": Entry("tunnel:tunnel", "Run drives that programs reach by TCP/IP over NVMe."),
    "validate": Entry("validate:run_validate", "Compare the simulation with published numbers."),
    "warmup": Entry("warmup:warmup", "Compile the engine and the kernels into the cache."),
}
DEFECTS = (
    ("ondie.emu.engine.core.conservation", "Imbalance"),
    ("ondie.emu.analysis.weight_check", "Mismatch"),
    ("ondie.emu.engine.run.errors", "SimulationError"),
)
"""Classes of errors that are defects of the program, by module and name; the exit code is 1."""
INPUT_ERRORS = (
    ("ondie.emu.units", "InputError"),
    ("ondie.kernels.errors", "KernelError"),
    ("ondie.traces.errors", "TraceError"),
)
"""Classes of errors that the user can correct, by module and name; the exit code is 2."""


class LazyGroup(Group):
    """The command group `ondie`. It imports the module of a command only when the command is
    called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(TABLE)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in TABLE:
            return None
        report_compilation()
        module, _, attribute = TABLE[cmd_name].place.partition(":")
        command = getattr(import_module(f"ondie.emu.cli.commands.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, TABLE[name].help) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ondie")
def commands() -> None:
    """Emulate a computational storage drive and replay training runs on it."""


def report_compilation() -> None:
    """Register the functions that show the progress of compilation and the messages of the code
    cache."""
    from ondie.kernels import code_cache, jit

    code_cache.say = lambda message: click.echo(f"ondie: {message}", err=True)
    jit.on_compile = compiling


def loaded_classes(places: tuple[tuple[str, str], ...]) -> tuple[type[Exception], ...]:
    """Return the exception classes whose modules are loaded.

    An exception of a class whose module is not loaded cannot have been raised. ``places``: module
    and name of each class.
    """
    found = (getattr(sys.modules.get(module), name, None) for module, name in places)
    return tuple(each for each in found if each is not None)


def main(arguments: list[str] | None = None) -> None:
    """Run a command of `ondie`.

    For an error that the user can correct, print one line and exit with code 2.
    """
    try:
        code = commands.main(arguments, prog_name="ondie", standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        fail(usage_message(error), 2)
    except loaded_classes(INPUT_ERRORS) as error:
        fail(str(error), 2)
    except MemoryError as error:
        fail(f"not enough memory: {error or 'allocation failed'}; use fewer or smaller drives", 2)
    except loaded_classes(DEFECTS) as error:
        fail(f"defect: {error}", 1)
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        fail(*interruption(error))
    sys.exit(code if isinstance(code, int) else 0)


def usage_message(error: click.ClickException) -> str:
    """Return the message of a usage error. If --json or --csv has no value, the message also states
    the values that the option accepts."""
    message = error.format_message()
    context = getattr(error, "ctx", None)
    named = getattr(error, "option_name", None)
    for option, field in (("--json", "json_path"), ("--csv", "csv_path")):
        took_argument = (
            isinstance(error, click.MissingParameter)
            and context is not None
            and context.params.get(field) is not None
        )
        if named == option or took_argument:
            return f"{message} {option} takes a file, or - for standard output: {option} -"
    return message


def fail(message: str, code: int) -> None:
    """Print ``message`` as one line on standard error and exit with ``code``."""
    click.echo(f"ondie: {' '.join(message.split())}", err=True)
    sys.exit(code)
