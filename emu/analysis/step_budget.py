"""Is the drive fast enough? A step time that is wanted, and the bandwidth that it takes.

Owns what of a step does not depend on the drive, and what rate of reads and writes would fit into
the rest. Does not own any simulated number (ledger.py).
Source: arithmetic on the ledger. Forward, backward and the host's update take what they take; the
bytes that the update reads and writes have what is left, those that are not moved beside the update
what it leaves; gradients written during backward have that time besides.
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
    """Does a path meet the target, and if not, what would?"""

    path: str
    step_s: float
    met: bool
    fixed_s: float
    """Of a step, what no drive makes shorter."""
    left_s: float
    """Of the target, for the drive."""
    where: str
    """Where bytes are counted: over the "link" or in the "flash"."""
    read_bytes: float
    written_bytes: float
    """Of a step outside forward and backward."""
    has_bytes_per_s: float | None
    """Rate of reads and writes together in the simulated run."""
    needed_bytes_per_s: float | None
    """The same to meet the target; None where no rate would."""


def duration(text: str, place: str) -> float:
    """Seconds of "3.5", "3.5 s", "500 ms". Raises InputError."""
    plain = text.strip().replace(".", "", 1).isdecimal()
    return parse(f"{text} s" if plain else text, KINDS["ps"], place) / 1e12


def seconds(text: str) -> float:
    """The value of --target-step. Raises InputError."""
    found = duration(text, "--target-step")
    if not found:
        raise InputError(f"--target-step {text}: no step takes no time; write for example 3.5")
    return found


def verdicts(c: Comparison, target_s: float) -> list[Verdict]:
    """One for each path that ran."""
    return [verdict(r, r.ledger, target_s) for r in c.results if r.ledger is not None]


def verdict(r: Result, book: Ledger, target_s: float) -> Verdict:
    """Of one path. A host that updates has its bytes moved over the link, others inside the
    drive."""
    spent, t, n = book.phases_s, book.totals, book.steps
    passes = [spent.get("forward", 0.0), spent.get("backward", 0.0)]
    spanned = sum(passes)
    if r.updates_weights:  # what the accelerator works, without what it waits for a drive meanwhile
        names = ("forward", "backward")
        passes = [t.busy_ps.get((name, "accelerator"), 0) / n / 1e12 for name in names]
    training, backward = sum(passes), passes[1]
    if r.work is not None and r.work.host_updates:
        where = "link"
        cpu = t.busy_ps.get(("update", "host CPU"), 0) / n / 1e12
        read, written = (_moved(book, way, "update") for way in ("link up", "link down"))
        beside = _moved(book, "link down", "gradients")
    else:
        where, cpu, beside = "flash", 0.0, 0.0
        c, page = t.counters, t.page_bytes / n
        read = (c["read_pages"] + c["bpr_pages"] + c["reservoir_read_pages"]) * page
        written = (c["program_pages"] + c["bpp_pages"]) * page
    alone_cpu = 0.0 if any(r.beside_cpu) else cpu
    fixed = training + alone_cpu
    took = book.step_s - spanned - alone_cpu - spent.get("gradients", 0.0)
    has = (read + written) / took if r.updates_weights and took > 0 else None
    needed = None
    room = target_s - training
    if r.updates_weights and room > cpu:
        alone = sum(0.0 if on else x for x, on in zip((read, written), r.beside_cpu, strict=True))
        needed = max((read + written) / room, alone / (room - cpu))
        if needed and beside / needed > backward:
            needed = max(
                (read + written + beside) / (room + backward),
                (alone + beside) / (room + backward - cpu),
            )
    met = book.step_s <= target_s
    return Verdict(
        r.name,
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
    """Bytes of a resource per step that belong to a phase, by the time it worked for each."""
    busy = {p: ps for (p, name), ps in book.totals.busy_ps.items() if name == resource}
    whole = sum(busy.values())
    if not whole:
        return 0.0
    return book.totals.bytes_by[resource] / book.steps * busy.get(phase, 0) / whole


def target_table(found: list[Verdict], target_s: float, table: Table) -> Table:
    """Fill ``table``."""
    table.title = f"Is the drive fast enough for a step of {fmt_time(target_s * 1e12)}?"
    for column in ("step", "answer", "no drive shortens", "left", "reads + writes", "it does"):
        table.add_column(column, justify="right")
    table.add_column("it would need", justify="right")
    for v in found:
        rates = ["-" if x is None else fmt_rate(x) for x in (v.has_bytes_per_s, needed(v))]
        table.add_row(
            v.path, fmt_time(v.step_s * 1e12), answer(v), fmt_time(v.fixed_s * 1e12),
            fmt_time(v.left_s * 1e12) if v.left_s > 0 else "nothing",
            f"{fmt_bytes(v.read_bytes)} + {fmt_bytes(v.written_bytes)}, {v.where}", *rates,
        )  # fmt: skip
    table.caption = (
        "no drive shortens: forward, backward and a host's update that nothing overlaps; reads and "
        "writes of states and gradients, over the link for host offload, else in the flash; rates: "
        "of both together in the update, gradients beside backward left out where it hides them"
    )
    return table


def needed(v: Verdict) -> float | None:
    """The rate to show: none where the target is met."""
    return None if v.met else v.needed_bytes_per_s


def answer(v: Verdict) -> str:
    """In a word or two."""
    if v.met:
        return "yes"
    return "no" if v.needed_bytes_per_s is not None else "no, nor any drive"


def target_data(c: Comparison, target_s: float) -> dict[str, Any]:
    """What result.json says of it."""
    return {"step_s": target_s, "paths": [asdict(v) for v in verdicts(c, target_s)]}
