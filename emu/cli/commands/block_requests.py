"""Options of commands that read a file of block requests, and reading it.

Owns the options that say how the file is read. Does not own any format (ondie.traces).
Source: own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from ondie.traces import block, block_edit
from ondie.traces.block import BlockTrace


def reading_options(command: Callable[..., Any], volume: str = "--device") -> Callable[..., Any]:
    """The options that say how a file of block requests is read: arguments of `read_requests`."""
    for option in reversed((
        click.option("--time-unit", metavar="ps|ns|us", help="mqsim: unit of its times."),
        click.option("--event", metavar="D|Q|C", help="blkparse: which event counts, else D."),
        click.option("--wait", metavar="manual|program", help="fio 2: what its waits mean."),
        click.option(volume, "volume", help="Only the requests of this device."),
        click.option("--sort", is_flag=True, help="Order the requests by time."),
        click.option("--limit", type=click.IntRange(min=1), help="Only the first so many."),
    )):  # fmt: skip
        command = option(command)
    return command


def read_requests(
    name: str, form: str, *, time_unit: str | None = None, event: str | None = None,
    wait: str | None = None, volume: str | None = None, sort: bool = False,
    limit: int | None = None, progress: Callable[[str, float], None] | None = None,
) -> BlockTrace:  # fmt: skip
    """Read a file of block requests as `reading_options` say: sort, then device, then limit."""
    early = limit if not sort and volume is None else None
    requests = block.read_block(
        name, form, time_unit=time_unit, event=event, wait=wait, sort=sort, limit=early,
        progress=progress and partial(progress, "read"),
    )  # fmt: skip
    if volume is not None:
        requests = block_edit.only(requests, volume)
    return block_edit.head(requests, limit) if limit is not None else requests
