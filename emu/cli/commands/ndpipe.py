"""`ondie ndpipe`: the group, and the options of npe and scale.

Owns the options. Does not own train, infer and relabel (ndpipe_live.py), the results
(ndpipe_models.py) or any model (emu/ndpipe). Source: NDPipe (ASPLOS 2024).
"""

from __future__ import annotations

from typing import Any

import click

from ondie.emu.cli.click_helpers import WHOLE, Group
from ondie.emu.cli.commands.ndpipe_live import infer, relabel, train
from ondie.emu.cli.output import output_options


@click.group(cls=Group)
def ndpipe() -> None:
    """Fine-tuning and inference where the photos are stored."""


network_argument = click.argument("network", default="resnet50")


@ndpipe.command()
@network_argument
@click.option("--device", default="gen4-tlc", show_default=True, metavar="PRESET",
              help="Drive of each store.")  # fmt: skip
@click.option("--stores", type=WHOLE, default=1, show_default=True, metavar="N",
              help="Number of stores.")  # fmt: skip
@click.option("--photos", type=WHOLE, default=5120, show_default=True, metavar="N",
              help="Number of photos in each store.")  # fmt: skip
@click.option("--batch", type=WHOLE, default=64, show_default=True, metavar="N",
              help="Photos per batch.")  # fmt: skip
@click.option("--large-batch", type=WHOLE, default=256, show_default=True, metavar="N",
              help="Photos per batch with the optimization batch.")  # fmt: skip
@click.option("--with", "optimizations", metavar="NAME[,NAME…]",
              default="pipelining,preprocessed,compressed,quantized,batch", show_default=True,
              help="Optimizations to add one by one, in this order; or none.")  # fmt: skip
@output_options("the rows")
def npe(**values: Any) -> None:
    """Simulate inference of NETWORK in the stores, and name its bottleneck.

    NETWORK is resnet50, inceptionv3, resnext101-32x4d or vit-b-16.
    """
    from ondie.emu.cli.commands.ndpipe_models import InferenceOptions, run_npe

    run_npe(InferenceOptions(**values))


@ndpipe.command()
@network_argument
@click.option("--stores", type=WHOLE, default=20, show_default=True, metavar="N",
              help="Largest number of stores.")  # fmt: skip
@click.option("--task", default="training", show_default=True, metavar="training|inference",
              help="Train the head, or run inference on all photos.")  # fmt: skip
@click.option("--sent", default="inputs", show_default=True, metavar="inputs|jpeg",
              help="Data that the typical system sends: FP16 inputs or JPEG files.")  # fmt: skip
@click.option("--cut", metavar="LAYER",
              help="Last layer that the stores run; best: that with the highest throughput.  "
                   "[default: the one before the head]")  # fmt: skip
@output_options("the rows", figure="throughput, traffic, energy and cost over the stores")
def scale(**values: Any) -> None:
    """Compare NDPipe with the typical and the ideal system over the number of stores.

    NETWORK is resnet50, inceptionv3, resnext101-32x4d or vit-b-16.
    """
    from ondie.emu.cli.commands.ndpipe_models import ScaleOptions, run_scale

    run_scale(ScaleOptions(**values))


for command in (train, infer, relabel):
    ndpipe.add_command(command)
