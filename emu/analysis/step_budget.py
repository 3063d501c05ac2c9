"""Step budget: the drive bandwidth that a target step time requires.

Owns the time of a step that does not depend on the drive, and the rate of reads and writes required
in the remaining time. Does not own the simulated times and bytes (analysis/ledger.py).
Source: this project; arithmetic on the ledger.

The times of forward, backward and the host's computation of the update are fixed. The bytes that
the update reads and writes must be transferred in the remaining time. If a transfer of states
overlaps the host's computation, or a transfer of gradients overlaps the backward pass, the
overlapped time is also available for this transfer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from ondie.emu.analysis.compare import Comparison, Result
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.units import KINDS, InputError, fmt_bytes, fmt_rate, fmt_time, parse


@dataclass(frozen=True)
class Verdict:
    """Verdict on a path: comparison of the simulated step time with the target step time, and the
    drive bandwidth that would meet the target."""

    path: str
    step_s: float
    met: bool
    fixed_s: float
    """Time of a step that does not depend on the drive (forward, backward and the host's
    computation), seconds."""
    left_s: float
    """Target step time minus ``fixed_s``, seconds: the time that remains for the drive."""
    where: str
    """Location at which bytes are counted: "link" or "flash"."""
    read_bytes: float
    """Number of bytes that the update reads per step."""
    written_bytes: float
    """Number of bytes that the update writes per step, including gradients written during
    backward."""
    has_bytes_per_s: float | None
    """Rate of reads and writes together in the simulated run, bytes per second; None if the update
    stage of the path cannot be compared with that of the baseline (``Result.updates_weights``) or
    if the drive's part of the step takes no time."""
    needed_bytes_per_s: float | None
    """Rate of reads and writes together that meets the target, bytes per second; None if no rate
    meets it."""


def duration(text: str, place: str) -> float:
    """Return a duration such as "3.5 s" or "500 ms" in seconds; "0" needs no unit. Raises
    InputError if ``text`` is not such a duration. The error message starts with ``place``."""
    number = text.strip()
    if number.replace(".", "", 1).isdecimal() and float(number):
        raise InputError(f'{place}: "{number}" has no unit; write for example "{number} ms"')
    return parse(text, KINDS["ps"], place) / 1e12


def seconds(text: str) -> float:
    """Return the value of --target-step in seconds. Raises InputError if the value is invalid or
    0."""
    found = duration(text, "--target-step")
    if not found:
        raise InputError(f'--target-step {text}: must be more than 0; write for example "3.5 s"')
    return found


def verdicts(comparison: Comparison, target_s: float) -> list[Verdict]:
    """Return one verdict for each path that ran. ``target_s``: target step time, seconds."""
    return [
        verdict(result, result.ledger, target_s)
        for result in comparison.results
        if result.ledger is not None
    ]


def verdict(result: Result, book: Ledger, target_s: float) -> Verdict:
    """Return the verdict on one path for a target step time of ``target_s`` seconds. Bytes are
    counted on the link if the host updates the weights, otherwise in the flash.
    """
    spent, totals, steps = book.phases_s, book.totals, book.steps
    passes = [spent.get("forward", 0.0), spent.get("backward", 0.0)]
    spanned = sum(passes)
    if result.updates_weights:  # the accelerator's busy time, without its waits for a drive
        names = ("forward", "backward")
        passes = [totals.busy_ps.get((name, "accelerator"), 0) / steps / 1e12 for name in names]
    training, backward = sum(passes), passes[1]
    if result.work is not None and result.work.host_updates:
        where = "link"
        cpu = totals.busy_ps.get(("update", "host CPU"), 0) / steps / 1e12
        read, written = (_moved(book, way, "update") for way in ("link up", "link down"))
        beside = _moved(book, "link down", "gradients")
    else:
        where, cpu, beside = "flash", 0.0, 0.0
        counters, page = totals.counters, totals.page_bytes / steps
        read = (
            counters["read_pages"] + counters["bpr_pages"] + counters["reservoir_read_pages"]
        ) * page
        written = (counters["program_pages"] + counters["bpp_pages"]) * page
    alone_cpu = 0.0 if any(result.beside_cpu) else cpu
    fixed = training + alone_cpu
    took = book.step_s - spanned - alone_cpu - spent.get("gradients", 0.0)
    has = (read + written) / took if result.updates_weights and took > 0 else None
    needed = None
    room = target_s - training
    if result.updates_weights and room > cpu:
        alone = sum(
            0.0 if on else rate for rate, on in zip((read, written), result.beside_cpu, strict=True)
        )
        needed = max((read + written) / room, alone / (room - cpu))
        if needed and beside / needed > backward:
            needed = max(
                (read + written + beside) / (room + backward),
                (alone + beside) / (room + backward - cpu),
            )
    met = book.step_s <= target_s
    return Verdict(
        result.name,
        book.step_s,
        met,
        fixed,
        target_s - fixed,
        where,
        read,
        written + beside,
        has,
        needed,
    )


def _moved(book: Ledger, resource: str, phase: str) -> float:
    """Return the bytes per step that a resource transfers in ``phase``. The total bytes of the
    resource are divided among the phases in proportion to its busy time in each.
    """
    busy = {
        phase_name: ps for (phase_name, name), ps in book.totals.busy_ps.items() if name == resource
    }
    whole = sum(busy.values())
    if not whole:
        return 0.0
    return book.totals.bytes_by[resource] / book.steps * busy.get(phase, 0) / whole


def target_table(found: list[Verdict], target_s: float, table: Table) -> Table:
    """Fill ``table`` with one row per verdict and return it. ``target_s``: target step time,
    seconds."""
    table.title = f"Drive bandwidth required for a step of {fmt_time(target_s * 1e12)}"
    for column in (
        "step", "fast enough", "fixed part", "left for drive", "reads + writes", "simulated rate",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    table.add_column("required rate", justify="right")
    for each in found:
        rates = [
            "-" if rate is None else fmt_rate(rate) for rate in (each.has_bytes_per_s, needed(each))
        ]
        table.add_row(
            each.path, fmt_time(each.step_s * 1e12), answer(each), fmt_time(each.fixed_s * 1e12),
            fmt_time(each.left_s * 1e12) if each.left_s > 0 else "nothing",
            f"{fmt_bytes(each.read_bytes)} + {fmt_bytes(each.written_bytes)}, {each.where}", *rates,
        )  # fmt: skip
    table.caption = (
        "The fixed part is forward, backward and the update on the host's CPU, unless a transfer "
        "overlaps this update. Reads and writes are those of states and gradients: over the link "
        "for host offload, otherwise in the flash. Rates count reads and writes together during "
        "the update, without the gradients that are written during backward."
    )
    return table


def needed(judged: Verdict) -> float | None:
    """Return the rate of reads and writes that meets the target, bytes per second; None if the run
    already meets the target or no rate meets it."""
    return None if judged.met else judged.needed_bytes_per_s


def answer(judged: Verdict) -> str:
    """Return the verdict on a path as the text of a table cell."""
    if judged.met:
        return "yes"
    return "no" if judged.needed_bytes_per_s is not None else "no, not with any drive"


def target_data(comparison: Comparison, target_s: float) -> dict[str, Any]:
    """Return the object "target" of result.json for a target step time of ``target_s`` seconds."""
    return {"step_s": target_s, "paths": [asdict(each) for each in verdicts(comparison, target_s)]}
