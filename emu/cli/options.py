"""Options that several commands share: the drive and its overrides, the seed, lists of names.

Owns these options and the record that holds them. Does not own the options of a single command, or
those of the output (output.py). Source: none.
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
        """Return the configuration of the drive with its overrides. Raises InputError."""
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
    """Return a decorator that adds the options of DriveOptions; --devices only if ``several``."""
    device = click.option(
        "--device", default=default, show_default=True, metavar="PRESET|FILE",
        help="Preset, or TOML file, of the drive.",
    )  # fmt: skip
    count = click.option(
        "--devices", type=WHOLE, metavar="N", help="Number of drives, as --set system.devices=N."
    )
    return add_options(device, settings_option, *([count] if several else []))


def batch_options(*choices: str, default: str, what: str) -> Decorator:
    """Return a decorator that adds the options of batches and of taken cores on a cluster's nodes.

    Taken cores are those that other programs use. ``what``: help text of --batch. ``default``: its
    default, which the command gives to :func:`batches`.
    """
    return add_options(
        click.option("--batch", type=click.Choice(choices), help=f"{what}  [default: {default}]"),
        click.option("--host-batch", type=WHOLE, metavar="N",
                     help="Largest batch of a host (traces only); with --drive-batch, the batch of "
                          "a host.  "
                          "[default: the trace's]"),
        click.option("--drive-batch", type=WHOLE, metavar="N",
                     help="Batch of every drive, instead of --batch. Without --host-batch, the "
                          "host's batch is tuned to this one."),
        click.option("--cores-taken", type=float, default=0.0, show_default=True, metavar="N",
                     help="Cores of a training host that other programs use all the time."),
        click.option("--slowdown", metavar="NAME",
                     help="Speed of a host on the cores that are left: three-nodes, laguna-host or "
                          "linear.  [default: laguna-host with Lagunas, else three-nodes]"),
    )  # fmt: skip


def batches(
    batch: str | None, host_batch: int | None, drive_batch: int | None, *, default: str
) -> str:
    """Return how batches are chosen: one of the values of --batch, or GIVEN. Raises InputError for
    options that exclude each other, and for numbers out of range."""
    given = {"host": host_batch, "drive": drive_batch}
    check_batches(given, "--{}-batch")
    node = next((node for node in ("drive", "host") if given[node] is not None), None)
    if node is None:
        return batch or default
    if batch not in ((None, TUNED) if node == "host" else (None,)):
        what = "the published batches" if batch == PAPER else "other batches"
        raise InputError(
            f"--{node}-batch {given[node]}: --batch {batch} takes {what}; remove one of these "
            "options"
        )
    return GIVEN if node == "drive" else TUNED


def seed_option(draws: str) -> Decorator:
    """Return a decorator that adds --seed.

    ``draws``: noun for the values that are drawn, for the help text.
    """
    return click.option(
        "--seed", type=WholeRange(min=0), default=0, show_default=True,
        help=f"Seed of the random number generator for {draws}.",
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
            f"{option} {text!r}: a name is empty; separate names by single commas, such as "
            f"{EXAMPLES[option]}"
        )
    return names
