"""`ondie ndpipe`: the command group, and its commands npe and scale.

Owns the options, tables, JSON and figure of npe (inference in the stores) and scale (three systems
by number of stores). Does not own train, infer and relabel (ndpipe_live.py) or the models
(emu/ndpipe).
Source: NDPipe (ASPLOS 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.table import Table

from ondie.emu.cli.click_helpers import Group, whole_option
from ondie.emu.cli.commands.ndpipe_live import infer, relabel, train
from ondie.emu.cli.output import FigureOptions, OutputOptions, output_options
from ondie.emu.config.config import load_preset
from ondie.emu.ndpipe import cost
from ondie.emu.ndpipe import npe as inference
from ondie.emu.ndpipe.architectures import network
from ondie.emu.ndpipe.pipeline import RECEIVE
from ondie.emu.ndpipe.servers import server
from ondie.emu.units import InputError, fmt_count, whole_number

NONE = "none"
MOST_POINTS = 4096
PRINTED = (1, 2, 4, 6, 8, 10, 12, 16, 20)
"""Numbers of stores that the printed table shows in addition to the largest number. JSON, CSV and
the figure contain every number of stores."""


@dataclass(frozen=True, kw_only=True)
class InferenceOptions(OutputOptions):
    """Options of `ondie ndpipe npe`."""

    network: str
    device: str
    stores: int
    photos: int
    batch: int
    large_batch: int
    optimizations: str


@dataclass(frozen=True, kw_only=True)
class ScaleOptions(FigureOptions):
    """Options of `ondie ndpipe scale`."""

    network: str
    stores: int
    task: str
    sent: str
    cut: str | None


@click.group(cls=Group)
def ndpipe() -> None:
    """Simulate and run fine-tuning and inference on the servers that store the photos."""


network_argument = click.argument("network", default="resnet50")


@ndpipe.command()
@network_argument
@click.option("--device", default="gen4-tlc", show_default=True, metavar="PRESET",
              help="Use a drive of this preset in each store.")  # fmt: skip
@whole_option("--stores", 1, "Simulate this number of stores.")
@whole_option("--photos", 5120, "Place this number of photos in each store.")
@whole_option("--batch", 64, "Process this number of photos per batch.")
@whole_option(
    "--large-batch", 256, "Process this number of photos per batch with the optimization batch."
)
@click.option("--with", "optimizations", metavar="NAME[,NAME…]",
              default="pipelining,preprocessed,compressed,quantized,batch", show_default=True,
              help="Add these optimizations one by one, in this order; use none to add no "
                   "optimization.")  # fmt: skip
@output_options("the rows")
def npe(**values: Any) -> None:
    """Simulate inference of NETWORK in the stores, and report the bottleneck.

    NETWORK is resnet50, inceptionv3, resnext101-32x4d or vit-b-16.
    """
    run_npe(InferenceOptions(**values))


@ndpipe.command()
@network_argument
@whole_option("--stores", 20, "Compare each number of stores from 1 to this number.")
@click.option("--task", default="training", show_default=True, metavar="training|inference",
              help="Compare this task: train the head, or run inference on all "
                   "photos.")  # fmt: skip
@click.option("--sent", default="inputs", show_default=True, metavar="inputs|jpeg",
              help="Let the typical system send this data: FP16 inputs or JPEG files.")  # fmt: skip
@click.option("--cut", metavar="LAYER",
              help="Run the layers up to this one in the stores; best selects the layer with the "
                   "highest throughput.  [default: the last layer before the head]")  # fmt: skip
@output_options("the rows", figure="throughput, traffic, energy and cost over the stores")
def scale(**values: Any) -> None:
    """Compare NDPipe with the typical and the ideal system for each number of stores.

    NETWORK is resnet50, inceptionv3, resnext101-32x4d or vit-b-16.
    """
    run_scale(ScaleOptions(**values))


for command in (train, infer, relabel):
    ndpipe.add_command(command)


def run_npe(given: InferenceOptions) -> None:
    """Run `ondie ndpipe npe`: compute the inference speed of the stores with each added
    optimization, print the table, and write the files."""
    given.check()
    net, names = network(given.network), _names(given.optimizations)
    if given.large_batch < given.batch:
        raise InputError(
            f"--large-batch {given.large_batch}: must be at least --batch {given.batch}"
        )
    largest = given.large_batch if inference.BATCH in names else given.batch
    whole_number("--photos", given.photos, 2 * largest, 1 << 30)
    rows = list(
        inference.ladder(
            net, load_preset(given.device), names, given.stores, given.photos,
            (given.batch, given.large_batch),
        )
    )  # fmt: skip
    document = {
        "network": net.name, "device": given.device, "stores": given.stores,
        "photos": given.photos, "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    files = given.write(document)
    if (screen := given.console) is not None:
        screen.print(
            _npe_table(rows, f"{net.title} in {_stores(given.stores)} with {given.device}")
        )
    given.list_files(files)


def _names(text: str) -> tuple[str, ...]:
    """Return the optimizations of --with. Raises InputError if a name is unknown or occurs twice,
    or if an optimization requires another one that is missing."""
    try:
        return inference.chosen([] if text == NONE else text.split(","))
    except InputError as error:
        raise InputError(f"--with {text}: {error}") from None


def _npe_table(rows: Sequence[inference.Inference], title: str) -> Table:
    """Return a table with a row for each optimization: speed, times and bottleneck."""
    table = _table(f"Inference, {title}; times of the stages in us per photo")
    for column in (
        "optimization",
        "photos/s",
        "KB read",
        "batch",
        *inference.NPE_STAGES,
        "bottleneck",
    ):
        table.add_column(column, justify="left" if column in ("optimization", "bottleneck") else
                         "right")  # fmt: skip
    for row in rows:
        name = f"+ {row.optimizations[-1]}" if row.optimizations else "none"
        times = (f"{row.work_us[stage]:,.4g}" for stage in inference.NPE_STAGES)
        table.add_row(name, fmt_count(row.photos_per_s), f"{row.read_bytes / 1e3:,.4g}",
                      str(row.batch), *times, row.bottleneck)  # fmt: skip
    receive = rows[0].work_us[RECEIVE]
    table.caption = (
        f"Network of the Tuner: {receive:.4g} us per label. Each row adds one optimization."
    )
    return table


def run_scale(given: ScaleOptions) -> None:
    """Run `ondie ndpipe scale`: compute throughput, traffic, energy and price of the three systems
    for each number of stores, print the table, and write the files."""
    given.check()
    net = network(given.network)
    whole_number("--stores", given.stores, 1, MOST_POINTS)
    if given.cut is not None and given.task == cost.INFERENCE:
        raise InputError(
            f"--cut {given.cut}: inference runs all layers in the stores; remove this option"
        )
    points = [
        cost.point(system, net, count, given.task, given.sent, given.cut)
        for count in range(1, given.stores + 1)
        for system in cost.SYSTEMS
    ]
    servers = {name: asdict(server(name)) for name in ("host", "plain-store", "tuner", "store")}
    document = {
        "network": net.name, "task": given.task, "sent": given.sent, "servers": servers,
        "rows": [asdict(each) | {"dollars": each.dollars} for each in points],
    }  # fmt: skip
    words = {cost.INPUTS: "FP16 inputs", cost.JPEG: "JPEG files"}[given.sent]
    title = f"{given.task} with {net.title}; the typical system sends {words}"

    def draw() -> dict[str, bytes]:
        from ondie.emu.cli.figures.ndpipe import over_stores

        return over_stores(points, f"{title[0].upper()}{title[1:]}")

    files = given.write(document, draw)
    if (screen := given.console) is not None:
        screen.print(_scale_table(points, title, {*PRINTED, given.stores}))
    given.list_files(files)


def _scale_table(points: Sequence[cost.Point], title: str, counts: set[int]) -> Table:
    """Return a table of cost, speed and energy of the systems. ``points``: results for each number
    of stores. Only numbers of stores in ``counts`` get a row."""
    table = _table(f"{title[0].upper()}{title[1:]}")
    for column in (
        "stores", "system", "photos/s", "KB/photo", "J/photo", "$/hour", "$/million photos",
        "limited by",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column in ("system", "limited by") else "right")
    for each in points:
        if each.stores in counts:
            at = f", cut at {each.cut}" if each.cut else ""
            table.add_row(
                str(each.stores), each.system, fmt_count(each.photos_per_s),
                f"{each.traffic_bytes / 1e3:,.4g}", f"{each.joules:.4g}",
                f"{each.dollars_per_hour:.4g}", f"{1e6 * each.dollars:.4g}", each.limited_by + at,
            )  # fmt: skip
    date = server("host").date
    table.caption = f"Prices: on demand, {date}. Powers of the servers are assumed."
    return table


def _table(title: str) -> Table:
    """Return an empty table with the title ``title``, to which the caller adds columns and rows."""
    return Table(title=title, title_justify="left", title_style="bold", caption_justify="left")


def _stores(count: int) -> str:
    """Return the number of stores with its noun, such as "2 stores"."""
    return f"{count} store{'s' if count > 1 else ''}"
