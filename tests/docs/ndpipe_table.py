"""The table of docs/ndpipe.md with the losses and accuracies of pipelined runs.

Owns measuring it (minutes: three new systems), its form, and reading it. Run as a program, it
writes the table anew: `python -m tests.docs.ndpipe_table [RESULT.json...]`, with results of
`ondie ndpipe train --runs 1,2,5,10 --json` of the seeds or without them. Does not own how far a
measurement may be from it (tests/live/test_ndpipe_learning.py).
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.docs.generate import ROOT

PAGE = ROOT / "docs" / "ndpipe.md"
SEEDS, RUNS = (1, 2, 3), (1, 2, 5, 10)
MARK = "<!-- measured: ondie ndpipe train system --seed 1|2|3 --runs 1,2,5,10 -->\n\n"
HEAD = (
    "| runs | training loss of the last run | held-out loss | held-out accuracy | mean |\n"
    "|---|---|---|---|---|\n"
)
Row = tuple[float | None, float, float]
"""Training loss (None: not trained), held-out loss and accuracy of one seed."""


def rows_of(document: dict[str, Any]) -> dict[str, Row]:
    """The rows of one seed, from the JSON of `ondie ndpipe train --runs 1,2,5,10`."""
    trainings = document["trainings"]
    rows: dict[str, Row] = {"not trained": (None, *trainings[0]["tested_before"])}
    for each in trainings:
        rows[str(each["runs"])] = each["losses"][-1][-1], *each["tested"]
    central = trainings[0]["central"]
    rows["central"] = central["losses"][-1], *central["tested"]
    return rows


def table(seeds: list[dict[str, Row]]) -> str:
    """The table of the rows of all seeds."""
    lines = []
    for name in seeds[0]:
        losses, tests, rates = zip(*(rows[name] for rows in seeds), strict=True)
        shown = ["" if None in values else ", ".join(f"{value:.3f}" for value in values)
                 for values in (losses, tests, rates)]  # fmt: skip
        lines.append(f"| {name} | {' | '.join(shown)} | {mean(shown[-1])} |\n")
    return HEAD + "".join(lines)


def mean(cell: str) -> str:
    """Mean and standard deviation of the values of a cell."""
    values = [float(value) for value in cell.split(", ")]
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def body(text: str) -> str:
    """The table of the page ``text``."""
    (found,) = re.findall(re.escape(MARK + HEAD) + r"((?:\|.*\n)+)", text)
    return str(found)


def read(text: str) -> tuple[list[dict[str, Row]], list[tuple[str, str]]]:
    """The rows of each seed on the page ``text``, and the accuracies and mean of each line."""
    seeds: list[dict[str, Row]] = [{} for _ in SEEDS]
    means = []
    for line in body(text).splitlines():
        name, *cells, average = (cell.strip() for cell in line.strip("|").split("|"))
        means.append((cells[-1], average))
        values = [[float(each) for each in cell.split(", ")] if cell else None for cell in cells]
        for number, rows in enumerate(seeds):
            loss, test, rate = (each and each[number] for each in values)
            assert test is not None and rate is not None
            rows[name] = loss, test, rate
    return seeds, means


def measure(folder: Path, seed: int) -> dict[str, Any]:
    """The JSON of `ondie ndpipe train` for a new system in ``folder``."""
    words = [sys.executable, "-m", "ondie.emu.cli", "ndpipe", "train", str(folder), "--quiet",
             "--seed", str(seed), "--runs", ",".join(map(str, RUNS)), "--json", "-"]  # fmt: skip
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    results = [json.loads(Path(name).read_text("utf-8")) for name in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as name:
        results = results or [measure(Path(name) / str(seed), seed) for seed in SEEDS]
    page = PAGE.read_text("utf-8")
    new = table([rows_of(each) for each in results])
    PAGE.write_text(page.replace(MARK + HEAD + body(page), MARK + new), "utf-8")
