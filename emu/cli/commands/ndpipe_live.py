"""`ondie ndpipe train|infer|relabel`: stores and a Tuner as processes on this machine.

Owns the options and the output. Does not own the processes (emu/live/ndpipe). Source: NDPipe
(ASPLOS 2024).
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from ondie.emu.cli.click_helpers import whole_option
from ondie.emu.cli.ending import effect_of_interruption
from ondie.emu.cli.output import OutputOptions, output_options
from ondie.emu.units import InputError, digits, plural

folder_argument = click.argument("folder", type=click.Path(path_type=Path))
photos_argument = click.argument("photos", nargs=-1, required=True)
NEW = ("stores", "photos", "pretrain")
"""Options of `ondie ndpipe train` that apply only if the command creates a new system."""


@click.command()
@folder_argument
@whole_option("--stores", None, "Create a new system with this number of stores.  [default: 3]")
@whole_option("--photos", None, "Create a new system with this number of photos.  [default: 600]")
@click.option("--runs", default="1", show_default=True, metavar="N,N,...",
              help="Divide the training into this number of pipelined runs, 1 to 10. With several "
                   "numbers, train once with each number, always from the same version, and print "
                   "a table.")  # fmt: skip
@click.option("--cut", default="avgpool", show_default=True, metavar="LAYER",
              help="Run the layers up to this one in the stores: stem, layer1, layer2 or "
                   "avgpool.")  # fmt: skip
@click.option("--format", default="fp32", show_default=True, metavar="fp32|fp16",
              help="Send features from the stores in this number format.")  # fmt: skip
@whole_option("--epochs", 10, "Train for this number of epochs in pretraining and in each run.")
@whole_option(
    "--pretrain",
    None,
    "Pretrain the network of a new system on this number of crops.  [default: 2400]",
)
@whole_option("--held-out", 2000, "Test with this number of crops, from other photographs.")
@whole_option("--base", None, "Start the training from this version.  [default: the latest]",
              "VERSION")  # fmt: skip
@whole_option("--seed", 1, "Set the seed of the crops, the weights and the order of training.")
@click.option("--kill", metavar="STORE:PHOTOS",
              help="Kill STORE after it has sent the features of PHOTOS photos.")  # fmt: skip
@output_options("the result")
def train(folder: Path, runs: str, kill: str | None, **values: Any) -> None:
    """Fine-tune the head of a network on the photos of the system in FOLDER.

    If FOLDER has no system, the command creates one, with crops of photographs in the drives of its
    stores. The stores compute features; the Tuner trains the head and distributes the new version.
    The losses are compared with those of central fine-tuning on the same photos in the same order.
    """
    from ondie.emu.live.ndpipe.holdings import added, holdings
    from ondie.emu.live.ndpipe.jobs import Train
    from ondie.emu.live.ndpipe.system import central, refuse_ignored, run_job

    given = OutputOptions(**{each.name: values.pop(each.name) for each in fields(OutputOptions)})
    given.check()
    options = {name: value for name, value in values.items() if value is not None}
    killed = _killed(kill)
    jobs = [Train(**options, kill=killed, runs=each) for each in _runs(runs)]
    refuse_ignored(folder, {name: options[name] for name in NEW if name in options})
    results: list[dict[str, Any]] = []
    before = holdings(folder)
    with effect_of_interruption(lambda: added(folder, before)):
        for job in jobs:
            if results:  # all start from the same version
                job = replace(job, base=results[0]["base"])
            found = run_job(folder, job)
            trained = found.pop("trained")
            if not results:
                compared = central(folder, job, trained)
            results.append({"runs": job.runs, **found, "photos": len(trained), "central": compared})
        files = given.write(results[0] if len(results) == 1 else {"trainings": results})
    if (screen := given.console) is not None:
        for line in trained_lines(results[0]) if len(results) == 1 else runs_lines(results):
            screen.print(line, highlight=False, markup=False, soft_wrap=True)
    if killed is not None and not any(killed[0] in each["deaths"] for each in results):
        given.remark(f"--kill {kill}: store {killed[0]} sent fewer photos and was not killed")
    given.list_files(files)


def _runs(text: str) -> list[int]:
    """Return the numbers of pipelined training runs that --runs lists, such as "1,2,5". Raises
    InputError if a number is invalid or occurs twice."""
    try:
        found = [digits(part.strip()) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--runs {text!r}: use whole numbers, such as 1 or 1,2,5,10") from None
    if len(set(found)) < len(found):
        raise InputError(f"--runs {text}: a number occurs twice; use each number once")
    return found


def runs_lines(results: list[dict[str, Any]]) -> list[str]:
    """Return the lines that `ondie ndpipe train` prints if --runs lists several numbers: a table
    with one line for each number, then dead stores and skipped photos."""
    first = results[0]
    lines = [
        f"from version {first['base']}: held-out loss {{:.4f}}, accuracy {{:.3f}}".format(
            *first["tested_before"]
        ),
        "runs  version  loss of the last run  held-out loss  accuracy",
    ]
    rows = [(f"{each['runs']:4}", f"{each['versions'] - 1:7}", each) for each in results]
    for name, version, each in [*rows, ("central", " " * 4, first["central"])]:
        losses = each["losses"] if name == "central" else each["losses"][-1]
        loss, accuracy = each["tested"]
        lines.append(f"{name}  {version}  {losses[-1]:20.4f}  {loss:13.4f}  {accuracy:8.3f}")
    for each in results:
        lines += [f"{plural(each['runs'], 'run')}: {line}" for line in _losses(each)]
    return lines


def trained_lines(found: dict[str, Any]) -> list[str]:
    """Return the lines that `ondie ndpipe train` prints if --runs is a single number: losses,
    accuracies, number of photos, bytes on the network, and dead stores."""
    last, compared = found["losses"][-1][-1], found["central"]["losses"][-1]
    lines = [f"version {found['versions'] - 1}, from version {found['base']}"]
    lines += [
        f"run {number}: loss {losses[0]:.6f} to {losses[-1]:.6f}"
        for number, losses in enumerate(found["losses"])
    ]
    lines += [
        f"loss {last:.6f}, central fine-tuning {compared:.6f}, difference "
        f"{abs(last - compared) / compared:.1e}",
        "held out, before: loss {:.6f}, accuracy {:.3f}".format(*found["tested_before"]),
        "held out: loss {:.6f}, accuracy {:.3f}".format(*found["tested"])
        + "; central: loss {:.6f}, accuracy {:.3f}".format(*found["central"]["tested"]),
        f"{plural(found['photos'], 'photo')} trained, each at most "
        f"{plural(found['most_often'], 'time')}",
        f"features: {found['feature_bytes']:,} bytes on the network, {found['model_bytes']:,} by "
        f"the layer table; headers, fields and photo numbers: {found['overhead_bytes']:,} bytes",
        "updates: "
        + ", ".join(f"{count} x {form}" for form, count in found["updates"].items())
        + f"; {found['update_bytes_sent']:,} bytes on the network, {found['update_bytes']:,} by "
        "their messages",
    ]
    return lines + _losses(found)


def _losses(found: dict[str, Any]) -> list[str]:
    """Return lines that list the dead stores and the skipped photos of a run."""
    lines = [f"store {number} died" for number in found["deaths"]]
    if found["lost"]:
        lines.append(f"{plural(len(found['lost']), 'photo')} skipped")
        lines += [found["lost"][photo] for photo in sorted(found["lost"])]
    return lines


def _killed(text: str | None) -> tuple[int, int] | None:
    """Return the store and the number of photos of --kill, or None without --kill. Raises
    InputError for an invalid value."""
    if text is None:
        return None
    try:
        store, photos = (digits(part) for part in text.split(":"))
    except ValueError:
        raise InputError(f"--kill {text!r}: must be STORE:PHOTOS, such as 1:100") from None
    if not photos:
        raise InputError(f"--kill {text}: the number of photos must be 1 or more")
    return store, photos


@click.command()
@folder_argument
@photos_argument
@output_options("the labels")
def infer(folder: Path, photos: tuple[str, ...], **values: Any) -> None:
    """Store PHOTOS (JPEG files) in the system in FOLDER and label them.

    Each photo is stored in two stores. If a file is not a JPEG file, no photo is stored.
    """
    from ondie.emu.live.ndpipe.holdings import added, holdings
    from ondie.emu.live.ndpipe.jobs import Infer
    from ondie.emu.live.ndpipe.system import run_job

    given = OutputOptions(**values)
    given.check(*photos)
    before = holdings(folder)
    with effect_of_interruption(lambda: added(folder, before)):
        _print(given, run_job(folder, Infer(_files(photos))), [])


@click.command()
@folder_argument
@click.option("--insert", "photos", multiple=True, metavar="PHOTO",
              help="Store this JPEG file while the labels are replaced; repeat for several "
                   "files.")  # fmt: skip
@output_options("the result")
def relabel(folder: Path, photos: tuple[str, ...], **values: Any) -> None:
    """Replace the labels that earlier versions of the network gave to the photos in FOLDER.

    The stores run the latest version on their photos and send only the labels to the Tuner.
    """
    from ondie.emu.live.ndpipe.holdings import added, holdings
    from ondie.emu.live.ndpipe.jobs import Relabel
    from ondie.emu.live.ndpipe.system import run_job

    given = OutputOptions(**values)
    given.check(*photos)
    before = holdings(folder)
    with effect_of_interruption(lambda: added(folder, before)):
        found = run_job(folder, Relabel(_files(photos)))
        count = found["wire"].get("LABELS", {"body": 0})["body"]
        _print(given, found, [
            f"{plural(found['outdated'], 'label')} outdated, {found['replaced']:,} replaced, "
            f"{found['left']:,} left; {count:,} bytes of labels on the network",
        ])  # fmt: skip


def _files(photos: tuple[str, ...]) -> tuple[str, ...]:
    """Return the absolute paths of the files ``photos``. Raises InputError if a file is missing or
    too large."""
    from ondie.emu.live.ndpipe.wire import MOST_JPEG

    for photo in photos:
        if not Path(photo).is_file():
            raise InputError(f"{photo}: no such file")
        if (size := Path(photo).stat().st_size) > MOST_JPEG:
            raise InputError(
                f"{photo}: {size:,} bytes; a photo must have at most {MOST_JPEG:,} bytes"
            )
    return tuple(str(Path(photo).resolve()) for photo in photos)


def _print(given: OutputOptions, found: dict[str, Any], lines: list[str]) -> None:
    """Write the result, and print ``lines`` and the labels of new photos."""
    from ondie.emu.live.ndpipe.pictures import CLASSES

    files = given.write(found)
    lines = lines + [
        f"{Path(name).name}: photo {number}, {CLASSES[label]}"
        for name, number, label in found["labels"]
    ]
    if (screen := given.console) is not None:
        for line in lines + _losses(found):
            screen.print(line, highlight=False, markup=False, soft_wrap=True)
    given.list_files(files)
