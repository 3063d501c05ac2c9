"""Options of the commands that read a file of block requests, and the selection of requests by
these options.

Owns the options. Does not own the file formats (ondie.traces). Source: this project.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import click

from ondie.emu.cli.click_helpers import WholeRange
from ondie.emu.cli.options import Decorator, add_options
from ondie.emu.units import InputError
from ondie.traces import block, block_edit
from ondie.traces.block import BlockTrace

FORMATS = "mqsim, msr, fio (fio2, fio3) or blkparse"


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options for reading a file of block requests: format, units, sorting, device and limit."""

    form: str | None = None
    time_unit: str | None = None
    event: str | None = None
    wait: str | None = None
    volume: str | None = None
    sort: bool = False
    limit: int | None = None

    def read_requests(
        self, name: str, progress: Callable[[str, float], None] | None = None
    ) -> BlockTrace:
        """Return the requests of file ``name`` that the options select.

        The options apply in this order: sort by time (--sort), keep one device (--device), keep the
        first requests (--limit). Raises InputError if the format is missing, and TraceError if the
        file cannot be read.
        """
        if self.form is None and name not in block.SAMPLES:
            raise InputError(
                f"{name}: --from FORMAT is required: {FORMATS}; only the samples "
                f"({', '.join(block.SAMPLES)}) can be read without it"
            )
        early = self.limit if not self.sort and self.volume is None else None
        requests = block.load_block(
            name, self.form, time_unit=self.time_unit, event=self.event, wait=self.wait,
            sort=self.sort, limit=early, progress=progress and partial(progress, "read"),
        )  # fmt: skip
        if self.volume is not None:
            requests = block_edit.only(requests, self.volume)
        return requests if self.limit is None else block_edit.head(requests, self.limit)


def read_options(*, volume: str = "--device", required: bool = True) -> Decorator:
    """Return a decorator that adds the options of ReadOptions to a command.

    ``volume``: name of the option that selects a device. ``required``: True if the argument of the
    command is always a file of block requests, so that its format is required.
    """
    words = "Format of the file" if required else "Format of a file of block requests"
    return add_options(
        click.option("--from", "form", metavar="FORMAT", help=f"{words}: {FORMATS}."),
        click.option("--time-unit", metavar="ps|ns|us", help="With --from mqsim, read the file's "
                                                             "timestamps in this unit."),
        click.option("--event", metavar="D|Q|C",
                     help="With --from blkparse, read events of this type as requests: D, Q or C.  "
                          "[default: D]"),
        click.option("--wait", metavar="manual|program", help="With --from fio2, or fio and a "
                                                              "file of version 2, interpret the "
                                                              "wait lines as in fio's manual "
                                                              "(manual) or as the fio program does "
                                                              "(program)."),
        click.option(volume, "volume", metavar="NAME", help="Read only this device's requests."),
        click.option("--sort", is_flag=True, help="Sort the requests by time."),
        click.option("--limit", type=WholeRange(min=1), metavar="N",
                     help="Read only the first N requests."),
    )  # fmt: skip
