"""`ondie validate`: rows of one suite or several, as tables and JSON.

Owns the check that each option belongs to the suite, and the output. Does not own the rows
(emu/validate). Source: this project.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ondie.emu import validate
from ondie.emu.cli.click_helpers import WHOLE, progress_bar
from ondie.emu.cli.output import OutputOptions, output_options
from ondie.emu.units import InputError

SWITCHES = {"runs": "--{value}"}
"""Template of the switch that sets a suite option, by name of the option. For example, --own sets
``runs`` to "own". An option that is not in this table is set by the switch with its name."""
MOVED = ("errors", "formats")
"""Names of former suites that are now studies, because they train models and have no published
results."""


class ValidateCommand(click.Command):
    """Click class of the command `ondie validate`. For the name of a former suite that is now a
    study, the error message names the command `ondie study`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError:
            refuse_studies(next((word for word in words if word in MOVED), None), words)
            raise
        refuse_studies(ctx.params.get("name"), words)
        return rest


def refuse_studies(name: str | None, words: list[str]) -> None:
    """Raise InputError, with the command `ondie study ...` to use instead, if ``name`` is a study.

    ``words``: the arguments that the user typed.
    """
    if name in MOVED:
        others = [word for word in words if word != name]
        raise InputError(
            f"validate {name}: this suite is a study now; use: ondie study "
            f"{shlex.join([name, *others])}"
        )


def check_options(name: str | None, given: Mapping[str, Any]) -> None:
    """Raise InputError for an option that does not belong to suite ``name``."""
    takes = {suite: named.options for suite, named in validate.NAMED.items()}
    for option, value in given.items():
        if option not in takes.get(name or "", ()):
            owners = " or ".join(
                f"ondie validate {suite}" for suite, options in takes.items() if option in options
            )
            flag = SWITCHES.get(option, "--{option}").format(option=option, value=value)
            raise InputError(f"{flag} can be used only with {owners}")


@click.command("validate", cls=ValidateCommand)
@click.argument("name", required=False)
@click.option("--cases", type=click.Path(path_type=Path),
              help="With mqsim, read the cases from this folder.  [default: the folder in the "
                   "source tree]")  # fmt: skip
@click.option("--recorded", "runs", flag_value="recorded",
              help="With mqsim, compare only runs with MQSim's recorded addresses.")  # fmt: skip
@click.option("--own", "runs", flag_value="own",
              help="With mqsim, compare only runs with addresses that ondie draws.")  # fmt: skip
@click.option(
    "--both", "runs", flag_value="both",
    help="With mqsim, compare runs with recorded addresses and runs with drawn addresses.  "
         "[default]",
)  # fmt: skip
@click.option("--model",
              help="With smart-infinity, simulate a model with this number of parameters in "
                   "billions, such as 8.4b.")  # fmt: skip
@click.option("--drives", type=WHOLE,
              help="With smart-infinity, put this number of drives behind the shared "
                   "link.")  # fmt: skip
@click.option(
    "--optimizer", help="With smart-infinity, simulate this optimizer (adam, momentum or adagrad)."
)
@click.option("--compression",
              help="With smart-infinity, send this percentage of the gradient; none turns "
                   "compression off.")  # fmt: skip
@click.option("--full", is_flag=True, default=None,
              help="With ecc, measure frame error rates down to 1e-5; this takes "
                   "minutes.")  # fmt: skip
@click.option("--live", is_flag=True, default=None,
              help="With tunnel, add runs that send real bytes through live tunnels; this takes "
                   "minutes.")  # fmt: skip
@click.option("--network", metavar="FILE.py:FUNCTION",
              help="With ndpipe, show only the cuts of the torch model that FUNCTION "
                   "returns.")  # fmt: skip
@output_options("the rows")
def run_validate(name: str | None, **values: Any) -> None:
    """Compare the simulation with published numbers and closed forms.

    Without NAME, the suites bytes, closed-forms and rates run. The other suites are: optimstore
    (numbers of the OptimStore paper), mqsim (results of MQSim for its own files), zero (host
    offload as in DeepSpeed, in every configuration), smart-infinity (the fitted run and the scaling
    of the paper, or one run with the options below), stannis (numbers of the Stannis paper, and
    other allocations), hypertune (new batch sizes for nodes that also run other programs),
    tunnel (commands and times of TCP/IP over NVMe), drives (data sheets of commercial drives), ecc
    (BCH and LDPC codes, and the limits that presets assume), ndpipe (fine-tuning with frozen layers
    in the storage servers), all (every suite). Exit code 1: a check row or an identity is outside
    its tolerance.
    """
    given = OutputOptions(**{key: values.pop(key) for key in ("json_path", "out", "quiet")})
    options = {option: value for option, value in values.items() if value is not None}
    check_options(name, options)
    given.check()
    with progress_bar(given.quiet) as progress:
        rows = validate.run(name, progress, options)
    files = given.write([row.data() for row in rows])
    if (screen := given.console) is not None:
        validate.show(rows, screen)
    given.list_files(files)
    if any(row.misses for row in rows):
        sys.exit(1)
