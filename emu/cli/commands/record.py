"""`ondie record`: record a training run as a trace.

Owns the options. Does not own the recording (ondie.traces.record). Source: own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ondie.traces import record as recorder


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--payload/--no-payload", default=True, show_default=True, help="Gradients, weights.")
@click.option("--steps", type=int, default=20, show_default=True, help="Optimizer steps to keep.")
@click.option("--skip", type=int, default=0, show_default=True, help="Steps to let pass first.")
@click.option("--max-bytes", type=int, help="End earlier rather than store more.")
@click.option("--samples", type=int, help="Samples per step, where they cannot be seen.")
@click.option("--bytes-per-sample", type=int, help="Bytes of one sample in the data set.")
@click.option("--dataset-samples", type=int, help="Samples in the data set.")
@click.option("--private-samples", type=int, default=0, help="Of them, private to a node.")
@click.option("--macs-forward", type=int, help="Multiply-accumulates per sample, forward.")
@click.option("--macs-backward", type=int, help="The same, backward.")
@click.option("--count-macs", is_flag=True, help="Count them in the first step.")
@click.option("--optimizer", type=int, help="Which optimizer, if the script has several.")
@click.option("--raw", is_flag=True, help="Keep 16-bit gradients before unscaling too.")
@click.option("--stop", is_flag=True, help="End the run after the last recorded step.")
@click.option("--name", help="Name of the trace, else the file's.")
def record(out: Path, command: tuple[str, ...], **options: Any) -> int:
    """Record a training run: ondie record OUT.h5 -- python train.py ..."""
    return recorder.main(out, list(command), **options)
