"""`ondie store info|check|durability|export|import`: commands for the stored pages of a drive.

Owns the options and the tables. Does not own the format or the check (emu/nand/store_check.py) or
the transfer (emu/replay/disk_image.py). Source: this project.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ondie.emu.cli.click_helpers import Group, progress_bar
from ondie.emu.cli.options import drive_options, seed_option
from ondie.emu.cli.output import OutputOptions, output_options
from ondie.emu.config.config import configuration
from ondie.emu.nand.store_check import check_store, describe_store
from ondie.emu.nand.store_folder import StoreFolder
from ondie.emu.nand.superblock import DURABILITIES
from ondie.emu.replay.disk_image import FORMATS, export_image, import_image
from ondie.emu.results.tables.trace import trace_table
from ondie.emu.serve.served_states import describe_states


@click.group(cls=Group)
def store() -> None:
    """Describe and check the stored pages of a drive; export and import disk images."""


@store.command()
@click.argument("folder", metavar="DIR")
@output_options("the description", quiet="table")
def info(folder: str, **values: Any) -> None:
    """Describe the store in folder DIR: its superblock and its sizes.

    A drive may use the store during this command; the description states whether a drive does. If
    the store holds optimizer states, the description includes the number of parameters, the
    optimizer and its hyperparameters.
    """
    given = OutputOptions(**values)
    given.check()
    data = describe_store(folder) | describe_states(folder)
    files = given.write(data)
    if (screen := given.console) is not None:
        screen.print(trace_table(f"Store {folder}", data))
    given.list_files(files)


@store.command()
@click.argument("folder", metavar="DIR")
@output_options("the report", quiet="report")
def check(folder: str, **values: Any) -> None:
    """Check all records and pages of the store in folder DIR.

    The command recomputes every seal of out-of-band data and every checksum of a programmed page.
    No drive may use the store during the check. Exit code 1: the store is damaged.
    """
    given = OutputOptions(**values)
    given.check()
    with progress_bar(given.quiet) as progress:
        report = check_store(folder, progress)
    files = given.write(report.data())
    if (screen := given.console) is not None:
        for line in report.lines():
            screen.print(line, soft_wrap=True)
    given.list_files(files)
    if not report.intact:
        sys.exit(1)


@store.command("durability")
@click.argument("folder", metavar="DIR")
@click.argument("durability", type=click.Choice(DURABILITIES))
def durability_command(folder: str, durability: str) -> None:
    """Change the durability of the store in folder DIR.

    With the durability process, stored data survives the end of the process, but not a power loss
    of the host. With host, the data of a completed FLUSH survives both. The drive that uses the
    store must have been closed.
    """
    held = StoreFolder.set_durability(folder, durability)
    now = (
        f"has durability {durability}, as before"
        if held == durability
        else (f"has durability {durability} now, and had {held}")
    )
    click.echo(f"Store {folder}: {now}")


format_option = click.option(
    "--format", "image_format", type=click.Choice(FORMATS), default="raw", show_default=True,
    help="Read or write the image in this format; qcow2 needs the program qemu-img.",
)  # fmt: skip


@store.command("export")
@click.argument("folder", metavar="STORE")
@click.argument("image", metavar="FILE", type=click.Path(path_type=Path))
@format_option
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@output_options("the report", quiet="report")
def export_command(folder: str, image: Path, image_format: str, force: bool, **values: Any) -> None:
    """Write the contents of the drive with folder STORE to the image FILE.

    Parts of the drive without data become holes. The store does not change, and no drive may use it
    during the export. A store that is not clean is recovered in memory.
    """
    given = OutputOptions(**values)
    given.check(others=(image,))
    with progress_bar(given.quiet) as progress:
        report = export_image(folder, image, image_format, force=force, progress=progress)
    _show(given, f"Export of {folder}", report)


@store.command("import")
@click.argument("image", metavar="FILE", type=click.Path(path_type=Path))
@click.argument("folder", metavar="STORE", type=click.Path(path_type=Path))
@drive_options("gen4-tlc", several=False)
@format_option
@seed_option("bad blocks and failing operations")
@click.option("--durability", type=click.Choice(DURABILITIES), default=DURABILITIES[0],
              show_default=True,
              help="Make stored data survive the end of the process (process), or make data of a "
                   "completed FLUSH also survive a power loss of the host (host).")  # fmt: skip
@output_options("the report", quiet="report")
def import_command(
    image: Path,
    folder: Path,
    device: str,
    settings: tuple[str, ...],
    image_format: str,
    seed: int,
    durability: str,
    **values: Any,
) -> None:
    """Write the image FILE to a new drive with folder STORE.

    The drive programs the contents in simulated time. Holes of the image are not written. At the
    end, the drive is stopped cleanly.
    """
    given = OutputOptions(**values)
    given.check(image)
    cfg = configuration(device, settings)
    with progress_bar(given.quiet) as progress:
        report = import_image(
            image, folder, cfg, image_format, seed=seed, durability=durability, progress=progress
        )
    _show(given, f"Import of {image}", report)


def _show(given: OutputOptions, title: str, report: dict[str, Any]) -> None:
    files = given.write(report)
    if (screen := given.console) is not None:
        screen.print(trace_table(title, report))
    given.list_files(files)
