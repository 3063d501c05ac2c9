"""`ondie ndpipe`: the group of the commands of NDPipe.

Owns the group. Does not own its commands (ndpipe_live.py). Source: NDPipe (ASPLOS 2024).
"""

from __future__ import annotations

import click

from ondie.emu.cli.click_helpers import Group
from ondie.emu.cli.commands.ndpipe_live import infer, relabel, train


@click.group(cls=Group)
def ndpipe() -> None:
    """Fine-tuning and inference where the photos are stored."""


for command in (train, infer, relabel):
    ndpipe.add_command(command)
