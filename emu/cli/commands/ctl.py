"""`ondie ctl`: sends one command to the control socket of a served drive.

Owns the options and the output. Does not own the commands (emu/serve/control_words.py). Source:
this project.
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
              help="With inject-media-error, damage the bytes from this offset, a multiple of the "
                   "mapping unit.")  # fmt: skip
@click.option("--size", type=WHOLE, metavar="BYTES",
              help="With inject-media-error, damage this number of bytes, a multiple of the "
                   "mapping unit.")  # fmt: skip
@click.option("--after", type=WHOLE, metavar="EVENTS",
              help="With power-cut, cut the power after EVENTS simulated events.  "
                   "[default: 0]")  # fmt: skip
@click.option("--die", type=WHOLE, metavar="N", help="With replace-die, replace die N.")
@click.option("--restart", is_flag=True, default=None,
              help="With power-cut, switch the power on again immediately after the "
                   "cut.")  # fmt: skip
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

    counters: show the operating condition, the requests and the counters of the drive. power-cut:
    cut the power; data that is not on flash is lost, and requests fail until the command power-on,
    which recovers the mapping tables. inject-media-error: make reads of the bytes given with
    --offset and --size fail until the bytes are written again. wear-out: make the drive read-only.
    replace-die: replace a die; the optimizer states of the die are restored from the parity over
    dies, and all other data of the die is lost.
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
