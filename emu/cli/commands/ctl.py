"""`ondie ctl`: one command to the control socket of a served drive.

Owns the options and the output. Does not own the commands (emu/serve/control_words.py).
Source: none.
"""

from __future__ import annotations

import json
import shlex

import click

from ondie.emu.cli.click_helpers import WHOLE
from ondie.emu.serve.control_words import COMMANDS, flat, send
from ondie.emu.units import InputError, known_names


@click.command()
@click.argument("socket", metavar="SOCKET")
@click.argument("command", metavar="COMMAND")
@click.option("--offset", type=WHOLE, metavar="BYTES",
              help="inject-media-error: first byte; a multiple of the mapping unit.")  # fmt: skip
@click.option("--size", type=WHOLE, metavar="BYTES",
              help="inject-media-error: bytes; a multiple of the mapping unit.")  # fmt: skip
@click.option("--after", type=WHOLE, metavar="EVENTS",
              help="power-cut: cut the power after EVENTS events.  [default: 0]")  # fmt: skip
@click.option("--die", type=WHOLE, metavar="N", help="replace-die: number of the die.")
@click.option("--restart", is_flag=True, default=None,
              help="power-cut: switch the power on again at once.")  # fmt: skip
@click.option("--raw", is_flag=True, help="Print the result as JSON.")
def run_ctl(
    socket: str,
    command: str,
    offset: int | None,
    size: int | None,
    after: int | None,
    die: int | None,
    restart: bool | None,
    raw: bool,
) -> None:
    """Send COMMAND to the drive of `ondie serve --ctl SOCKET` and print the result.

    counters: condition, requests and counters. power-cut: data that are not on flash are lost, and
    requests fail until power-on, which recovers the tables. inject-media-error: reads of the bytes
    fail until they are written again. wear-out: the drive becomes read-only.
    replace-die: the die's states are restored from the parities over dies, its other data are lost.
    """
    if command not in COMMANDS:
        raise InputError(f"COMMAND {command}: unknown; {known_names(command, COMMANDS)}")
    given = {"offset": offset, "size": size, "after": after, "die": die, "restart": restart}
    arguments = {name: value for name, value in given.items() if value is not None}
    known = COMMANDS[command]
    for name in arguments:
        if name not in known.types:
            raise InputError(f"--{name} cannot be combined with {command}")
    for name in known.required:
        if name not in arguments:
            raise InputError(f"{command} requires --{name}")
    result = send(socket, command, arguments)
    if raw:
        click.echo(json.dumps(result, indent=2))
        return
    for name, value in flat(result):
        click.echo(f"{name} {value}".rstrip())
    if command == "power-cut" and not restart:
        on = shlex.join(["ondie", "ctl", socket, "power-on"])
        click.echo(f"The power is off; `{on}` switches it on.", err=True)
