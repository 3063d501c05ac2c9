"""Arguments that several commands share: the configuration, names in a list, remarks.

Owns what they become. Does not own the options of one command. Source: none.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from ondie.emu.config.config import Config, load_preset
from ondie.emu.units import InputError


def split_names(text: str | None) -> list[str] | None:
    """ "a,b" as a list; None stays."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InputError(f"--paths {text!r}: an empty name; write for example on_die,host_offload")
    return names


def configuration(device: str, settings: tuple[str, ...], devices: int | None) -> Config:
    """A preset with --set and --devices applied."""
    extra = (f"system.devices={devices}",) if devices is not None else ()
    return load_preset(device, [*settings, *extra])


def remark_unless(quiet: bool) -> Callable[[str], None]:
    """Writes a line on standard error, or nothing."""

    def remark(line: str) -> None:
        if not quiet:
            click.echo(f"ondie: {line}", err=True)

    return remark
