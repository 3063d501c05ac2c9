"""`ondie record`: record a training run as a trace.

Owns the options. Does not own the recording (ondie.traces.record). Source: this project.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from ondie.emu.cli.click_helpers import WHOLE
from ondie.emu.units import InputError, fmt_bytes
from ondie.traces import record as recorder
from ondie.traces.hdf5_read import read


@click.command()
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT.h5")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--payload/--no-payload", default=True, show_default=True,
              help="Store the values of gradients and weights.")  # fmt: skip
@click.option("--steps", type=WHOLE, default=20, show_default=True, metavar="N",
              help="Record N optimizer steps.")  # fmt: skip
@click.option("--skip", type=WHOLE, default=0, show_default=True, metavar="N",
              help="Skip the first N optimizer steps.")  # fmt: skip
@click.option("--max-bytes", type=WHOLE, metavar="N",
              help="Stop recording before the trace exceeds N bytes.")  # fmt: skip
@click.option("--samples", type=WHOLE, metavar="N",
              help="State the number of samples per step, if the recorder cannot observe "
                   "it.")  # fmt: skip
@click.option(
    "--bytes-per-sample",
    type=WHOLE,
    metavar="N",
    help="State the size of a sample in the data set (bytes).",
)
@click.option(
    "--dataset-samples",
    type=WHOLE,
    metavar="N",
    help="State the number of samples in the data set.",
)
@click.option("--private-samples", type=WHOLE, default=0, show_default=True, metavar="N",
              help="State the number of samples in the data set that are private to one "
                   "node.")  # fmt: skip
@click.option("--macs-forward", type=WHOLE, metavar="N",
              help="State the number of multiply-accumulate operations per sample in the forward "
                   "pass.")  # fmt: skip
@click.option("--macs-backward", type=WHOLE, metavar="N",
              help="State the number of multiply-accumulate operations per sample in the backward "
                   "pass.")  # fmt: skip
@click.option("--count-macs", is_flag=True,
              help="Count the multiply-accumulate operations in the first step.")  # fmt: skip
@click.option("--optimizer", type=WHOLE, metavar="N",
              help="Record the optimizer with this number, if the script has several.")  # fmt: skip
@click.option(
    "--raw",
    is_flag=True,
    help="Store 16-bit gradients before unscaling, in addition to the unscaled gradients.",
)
@click.option("--stop", is_flag=True, help="End the training after the last recorded step.")
@click.option("--any-optimizer", is_flag=True,
              help="Record the optimizer even if no update path can replay it.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace OUT.h5 if it exists.")
@click.option("--name", help="Give the trace this name.  [default: name of the file]")
def record(out: Path, command: tuple[str, ...], force: bool, **options: Any) -> int:
    """Record a training run: ondie record OUT.h5 -- python train.py ..."""
    if out.exists() and not force:
        raise InputError(f"{out}: exists; use --force to replace it, or use another name")
    before = _stamp(out)
    code = recorder.main(out, list(command), **options)
    if _stamp(out) != before:
        _report(out)
    return code


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return the inode and the modification time (ns) of a file, or None if the file does not
    exist."""
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None


def _report(out: Path) -> None:
    """Print a summary of the trace, and the command that replays it."""
    trace = read(out)
    parts = [
        f"{len(trace.steps)} steps",
        f"{trace.n_params:,} parameters in {len(trace.tensors)} tensors",
        trace.op if trace.op != "other" else "an optimizer that no update path can replay",
        "gradients and weights" if trace.payload == "recorded" else "sizes and times only",
        fmt_bytes(out.stat().st_size),
    ]
    click.echo(f"ondie: wrote {out}: {', '.join(parts)}", err=True)
    click.echo(f"ondie: next: ondie compare {shlex.quote(str(out))} --device csd-pe", err=True)
