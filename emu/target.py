"""Is the drive fast enough? A step time that is wanted, and the bandwidth that it takes.

Owns what of a step does not depend on the drive, and what rate of reads and writes would fit into
the rest. Does not own any simulated number (ledger.py).
Source: arithmetic on the ledger. Forward, backward and (where nothing overlaps it) the host's
update take what they take; the bytes that the update reads and writes have what is left; gradients
written during backward have that time besides.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from ondie.emu.compare import BASELINE, Comparison, Result
from ondie.emu.ledger import Ledger
from ondie.emu.units import KINDS, InputError, fmt_bytes, fmt_rate, fmt_time, parse

HOST_PATHS = "host_offload"
"""Paths whose names begin so read and write over the link; the others inside the drive."""


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
    pipelines = c.trace.n_params > c.cfg.host.subgroup_params
    return [
        verdict(r, r.ledger, target_s, r.name == BASELINE or not pipelines)
        for r in c.results
        if r.ledger is not None
    ]


def verdict(r: Result, book: Ledger, target_s: float, serial: bool) -> Verdict:
    """Of one path. ``serial``: a host that updates does so while it neither reads nor writes."""
    spent, t, n = book.phases_s, book.totals, book.steps
    backward = spent.get("backward", 0.0)
    if r.name.startswith(HOST_PATHS):
        where = "link"
        cpu = t.busy_ps.get(("update", "host CPU"), 0) / n / 1e12
        read, written = (_moved(book, way, "update") for way in ("link up", "link down"))
        beside = _moved(book, "link down", "gradients")
    else:
        where, cpu, beside = "flash", 0.0, 0.0
        c, page = t.counters, t.page_bytes / n
        read = (c["read_pages"] + c["bpr_pages"] + c["reservoir_read_pages"]) * page
        written = (c["program_pages"] + c["bpp_pages"]) * page
    fixed = spent.get("forward", 0.0) + backward + (cpu if serial else 0.0)
    left = target_s - fixed
    took = book.step_s - fixed - spent.get("gradients", 0.0)
    has = (read + written) / took if r.updates_weights and took > 0 else None
    needed = None
    if r.updates_weights and left > (0.0 if serial else cpu):
        needed = (read + written) / left
        if needed and beside / needed > backward:
            needed = (read + written + beside) / (left + backward)
    met = book.step_s <= target_s
    return Verdict(
        r.name, book.step_s, met, fixed, left, where, read, written + beside, has, needed
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
        "writes of states, over the link for host offload, else in the flash; rates: of both "
        "together"
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
