"""Options that several commands share: the drive and its overrides, the seed, lists of names.

Owns these options and the dataclass of the drive options. Does not own the options of a single
command, or those of the output (output.py). Source: this project.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from ondie.emu.cli.click_helpers import WHOLE, WholeRange
from ondie.emu.cluster.allocation import GIVEN, PAPER, TUNED, check_batches
from ondie.emu.config.config import Config, configuration
from ondie.emu.units import InputError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, kw_only=True)
class DriveOptions:
    """The options that describe the drive: a preset or a TOML file, and overrides."""

    device: str
    settings: tuple[str, ...] = ()
    devices: int | None = None

    def load_drive(self) -> Config:
        """Return the configuration of the drive with its overrides. Raises InputError if the
        preset, the file or an override is invalid."""
        return configuration(self.device, self.settings, self.devices)


def add_options(*options: Decorator) -> Decorator:
    """Return a decorator that adds ``options`` to a command; the help lists them in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def settings_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --set to a command."""
    return click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE",
        help="Override a key of the configuration; repeat for several keys.",
    )(command)  # fmt: skip


def drive_options(default: str, *, several: bool = True) -> Decorator:
    """Return a decorator that adds the options of DriveOptions; --devices is added only if
    ``several`` is True."""
    device = click.option(
        "--device", default=default, show_default=True, metavar="PRESET|FILE",
        help="Use the drive of this preset or TOML file.",
    )  # fmt: skip
    count = click.option(
        "--devices",
        type=WHOLE,
        metavar="N",
        help="Use N drives; equivalent to --set system.devices=N.",
    )
    return add_options(device, settings_option, *([count] if several else []))


def batch_options(*choices: str, default: str, what: str) -> Decorator:
    """Return a decorator that adds the options for the batches of a cluster's nodes and for taken
    cores.

    Taken cores are those that other programs use. ``what``: help text of --batch. ``default``:
    default of --batch, which the command passes to :func:`batches`.
    """
    return add_options(
        click.option("--batch", type=click.Choice(choices), help=f"{what}  [default: {default}]"),
        click.option("--host-batch", type=WHOLE, metavar="N",
                     help="Limit the batch of a host to N (only for traces); with --drive-batch, "
                          "set the batch of a host to N.  [default: that of the trace]"),
        click.option("--drive-batch", type=WHOLE, metavar="N",
                     help="Use batch N on every drive, in place of --batch. Without --host-batch, "
                          "the host's batch is tuned to that of the drives."),
        click.option("--cores-taken", type=float, default=0.0, show_default=True, metavar="N",
                     help="Let other programs use N cores of each training host during the whole "
                          "run."),
        click.option("--slowdown", metavar="NAME",
                     help="Compute a host's speed on the remaining cores with this model: "
                          "three-nodes, laguna-host or linear.  [default: laguna-host with "
                          "Lagunas, else three-nodes]"),
    )  # fmt: skip


def batches(
    batch: str | None, host_batch: int | None, drive_batch: int | None, *, default: str
) -> str:
    """Return the rule for the choice of a cluster's batches: one of the values of --batch, or GIVEN
    if ``drive_batch`` is given. Raises InputError for options that cannot be combined, and for
    numbers out of range."""
    given = {"host": host_batch, "drive": drive_batch}
    check_batches(given, "--{}-batch")
    node = next((node for node in ("drive", "host") if given[node] is not None), None)
    if node is None:
        return batch or default
    if batch not in ((None, TUNED) if node == "host" else (None,)):
        what = "the published batches" if batch == PAPER else "other batches"
        raise InputError(
            f"--{node}-batch {given[node]}: --batch {batch} uses {what}; remove one of these "
            "options"
        )
    return GIVEN if node == "drive" else TUNED


def seed_option(draws: str) -> Decorator:
    """Return a decorator that adds --seed.

    ``draws``: noun phrase in the help text for the values that are drawn at random.
    """
    return click.option(
        "--seed", type=WholeRange(min=0), default=0, show_default=True,
        help=f"Set the seed of the random number generator for {draws}.",
    )  # fmt: skip


EXAMPLES = {"--paths": "on_die,host_offload", "--constants": "flash.t_read,link.up"}


def split_names(text: str | None, option: str = "--paths") -> list[str] | None:
    """Split a list of names such as "a,b" at the commas; return None for None.

    ``option``: name of the option, for the error. Raises InputError for an empty name.
    """
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InputError(
            f"{option} {text!r}: a name is empty; separate names by single commas, for "
            f"example {EXAMPLES[option]}"
        )
    return names
