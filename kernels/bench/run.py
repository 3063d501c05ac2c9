"""Timing of `ondie bench kernels`: speed of updates relative to the memory limit and other anchors.

This module owns the measurement and its output. It does not own the contenders (contenders.py) or a
verdict on the results.
Source: this project.

On a shared machine the DRAM bandwidth drifts by a factor of two, so an absolute time means little.
All contenders therefore alternate on the same arrays, round after round. A ratio is the median over
rounds of a contender's time divided by its anchor's time in the same round. A contender is faster
than the anchor if its time ratio is below 1, or its ratio of GB/s or Gop/s is above 1.
"""

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ondie.kernels import ECC, FORMATS, OPS, KernelError, isas, native
from ondie.kernels.bench import codecs
from ondie.kernels.bench.contenders import (
    LIMIT,
    OPERATIONS,
    PAGE,
    PEAK,
    TORCH,
    Case,
    Contender,
    peak,
    torch_module,
)

SIZES = (1_000_000, 100_000_000)
IN_RUN = "in-run limit"
LEAST_S = 5e-3  # a timing repeats the call until it takes at least this time
TIMINGS = 3  # a sample is the minimum of this many timings,
MOST_S = 0.3  # or of those that fit into this time


@dataclass(frozen=True)
class Row:
    """One result of a bench: a measured value of a contender.

    `ratio` is the median over rounds of the value divided by the value of `anchor`.
    """

    name: str
    value: float
    unit: str
    anchor: str
    ratio: float


@dataclass(frozen=True)
class Bench:
    """Result of a bench: measured rows, properties of the machine, and remarks about omitted
    contenders."""

    rows: list[Row]
    machine: dict[str, str | int]
    remarks: list[str] = field(default_factory=list)


def run_kernels(
    sizes: Sequence[int] | None = None,
    threads: int = 1,
    ops: Sequence[str] = ("adam", "sgd"),
    repeat: int | None = None,
    progress: Callable[[str], object] | None = None,
    formats: Sequence[str] = ("fp32",),
    shapes: Sequence[str] = ("flat",),
) -> Bench:
    """Measure update kernels relative to the memory limit and to other packages, if they are
    installed.

    The packages are torch, DeepSpeed, bitsandbytes and torchao. The error correcting codes
    (operations "bch" and "ldpc") have fixed word sizes and ignore `sizes`, `threads`, `formats` and
    `shapes`. They are measured in microseconds per word, relative to bchlib if it is installed,
    else to the first contender.

    sizes: parameters per call; the default is 1e6 and 1e8, but at most the number that fits into
    half of the free memory. The shape "page" ignores `sizes`. repeat: number of rounds; the default
    is 15, or 7 above 1e7 parameters. progress: callback that receives the name of the next
    measurement.

    Each combination of op, format, shape, size and contender gets rows for ns per parameter and for
    GB/s of traffic, relative to the memory limit (or to the first contender if the C extension is
    not built). It also gets rows for ns relative to torch's operator, Gop/s relative to the compute
    limit, and ns relative to the in-run limit. The in-run limit of a round is the longer of the
    times that memory and arithmetic need in this round. Raises KernelError for a size or thread
    count that cannot run, for an unknown name, and if no case remains to be measured.
    """
    if threads < 1:
        raise KernelError(f"threads: {threads}; must be at least 1")
    if sizes is None:
        sizes = [min(count, max(SIZES[0], free_bytes() // 2 // need(1))) for count in SIZES]
    cases = []
    known = (*OPS, *ECC)
    for op in ops:
        if op not in known:
            raise KernelError(f"unknown operation {op!r} (known: {', '.join(known)})")
        for form in () if op in ECC else formats:
            for shape in shapes:
                for count in (PAGE,) if shape == "page" else sizes:
                    count = count // PAGE * PAGE or count if shape == "pages" else count
                    if FORMATS.get(form) is not None and FORMATS[form].codes and op == "sgd":
                        continue  # SGD has no states
                    cases.append(Case(op, count, form, shape, threads))
    for case in cases:
        if need(case.n) > free_bytes():
            raise KernelError(
                f"size: {case.n} parameters need {need(case.n):,} bytes, but only "
                f"{free_bytes():,} are free; use at most {free_bytes() // need(1)} parameters"
            )
    words = [case for op in ops if op in ECC for case in codecs.CASES[op]]
    if not cases and not words:
        raise KernelError(
            f"{', '.join(ops)} with {', '.join(formats)}: no case to "
            "measure; choose other operations or formats"
        )
    bench = Bench([], machine(threads))
    for case in cases:
        rounds = repeat or (15 if case.n <= 10_000_000 else 7)
        bench.rows.extend(_one(case, rounds, progress or (lambda what: None), bench.remarks.append))
    for code in words:
        bench.rows.extend(_code(code, repeat or 15, progress or (lambda what: None)))
    return bench


def _told(progress: Callable[[str], object], label: str, what: str) -> object:
    """Call ``progress`` with the name of the next measurement."""
    return progress(f"{label} {what}")


def _code(case: codecs.CodeCase, rounds: int, progress: Callable[[str], object]) -> list[Row]:
    """Measure all contenders of an error correcting code; return the result rows."""
    rows = []
    for operation, contenders in case.operations():
        label = f"{case.name} {operation}"
        samples = _interleaved(contenders, rounds, partial(_told, progress, label))
        anchor = codecs.OTHER if codecs.OTHER in samples else next(iter(samples))
        for name, times in samples.items():
            pairs = zip(times, samples[anchor], strict=True)
            ratio = statistics.median(mine / theirs for mine, theirs in pairs)
            value = statistics.median(times) / case.words_per_call * 1e6
            rows.append(
                Row(f"{label}, {name}", float(f"{value:.4g}"), codecs.UNIT, f"{label}, {anchor}",
                    float(f"{ratio:.4g}"))
            )  # fmt: skip
    return rows


def need(count: int) -> int:
    """Return the memory in bytes that a case of ``count`` parameters needs.

    A case has twelve float32 arrays: four that the kernels use, four with which the memory limit
    is measured, and four temporary arrays of NumPy and of torch's foreach optimizers.
    """
    return count * 4 * 12


def free_bytes() -> int:
    """Return the available memory in bytes, or half of the physical memory if the system does not
    report the available memory."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except FileNotFoundError:
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    line = next(line for line in text.splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024


def machine(threads: int) -> dict[str, str | int]:
    """Return the properties of the machine that affect results; host and user names are omitted."""
    found: dict[str, str | int] = {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": threads,
        "isa": isas()[-1] if isas() else "none",
        "compiler": compiler(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": str(import_module("numba").__version__),
    }
    torch = torch_module()
    if torch is not None:
        found["torch"] = str(torch.__version__)
    if find_spec(codecs.OTHER) is not None:
        found[codecs.OTHER] = version(codecs.OTHER)
    return found


def compiler() -> str:
    """Return the compiler of the C kernels and its flags, as the extension reports them."""
    if native.lib is None:
        return "none"
    said = getattr(native.lib, "ondie_compiler", None)
    return "unknown" if said is None else native.ffi.string(said()).decode()


def _processor() -> str:
    """Return the model name of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def _one(
    case: Case,
    rounds: int,
    progress: Callable[[str], object],
    remark: Callable[[str], object],
) -> list[Row]:
    """Measure all contenders of one case and the compute limit; return the result rows."""

    def told(what: str) -> object:
        return progress(f"{case.name} n={case.n} {what}")

    torch = torch_module()
    before = None if torch is None else torch.get_num_threads()
    if torch is not None:
        torch.set_num_threads(case.threads)
    limit, done = peak(case.threads)
    try:
        told("contenders")
        samples = _interleaved(case.contenders(remark) | {PEAK: limit}, rounds, told)
    finally:
        if torch is not None:
            torch.set_num_threads(before)
    traffic = case.kernel("numpy").bytes_per_param()
    found = _rows(
        case.name,
        case.n,
        traffic,
        {contender: times for contender, times in samples.items() if contender != PEAK},
    )
    return found + _arithmetic(case, samples, done)


def _interleaved(
    contenders: dict[str, Contender], rounds: int, progress: Callable[[str], object]
) -> dict[str, list[float]]:
    """Return the seconds per call of each contender, one sample for each round.

    The contenders alternate, in an order that rotates from round to round.
    """
    calls: dict[str, int] = {}
    for name, call in contenders.items():
        progress(f"{name}, warming up")
        call()  # compiles the code and touches every page
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        calls[name] = max(1, min(1000, int(LEAST_S / max(took, 1e-7))))
    names = list(contenders)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            call = contenders[name]
            if calls[name] > 1:
                call()  # refill the cache, which other contenders' temporaries have evicted
            samples[name].append(timed(call, calls[name]))
    return samples


def timed(call: Contender, calls: int) -> float:
    """Return the seconds per call: the minimum of a few timings, because preemption only adds
    time."""
    best, spent = math.inf, 0.0
    for _ in range(TIMINGS):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        took = time.perf_counter() - start
        best, spent = min(best, took / calls), spent + took
        if spent > MOST_S:
            break
    return best


def _rows(op: str, count: int, traffic: int, samples: dict[str, list[float]]) -> list[Row]:
    """Return the result rows of all contenders: time per parameter (ns) and traffic (GB/s)."""

    def ratio(name: str, anchor: str) -> float:
        pairs = zip(samples[name], samples[anchor], strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)

    def row(name: str, anchor: str, unit: str = "ns/param") -> Row:
        seconds = statistics.median(samples[name]) / count
        value = seconds * 1e9 if unit == "ns/param" else traffic / seconds / 1e9
        relative = ratio(name, anchor) if unit == "ns/param" else ratio(anchor, name)
        return Row(
            f"{op} n={count} {name}", float(f"{value:.4g}"), unit, anchor, round(relative, 4)
        )

    base = LIMIT if LIMIT in samples else next(iter(samples))
    rows = [row(name, base) for name in samples]
    rows += [row(name, base, "GB/s") for name in samples]
    if TORCH in samples:
        rows += [row(name, TORCH) for name in samples]
    return rows


def _arithmetic(case: Case, samples: dict[str, list[float]], done: int) -> list[Row]:
    """Return the result rows of all contenders except the memory limit: their rate of operations
    (Gop/s) and their time relative to the in-run limit."""
    of = {name: sum(OPERATIONS[case.op]) * case.n for name in samples if name != LIMIT}
    of[PEAK] = done
    rows = []
    for name, operations in of.items():
        pairs = zip(samples[name], samples[PEAK], strict=True)
        share = statistics.median((operations / mine) / (done / best) for mine, best in pairs)
        rate = operations / statistics.median(samples[name]) / 1e9
        label = f"{case.name} n={case.n} {name}"
        rows.append(Row(label, float(f"{rate:.4g}"), "Gop/s", PEAK, float(f"{share:.4g}")))
    if LIMIT not in samples:
        return rows
    need = sum(OPERATIONS[case.op]) * case.n / done  # of a call of the compute limit
    limit = [
        max(memory, need * best) for memory, best in zip(samples[LIMIT], samples[PEAK], strict=True)
    ]
    for name in of:
        if name == PEAK:
            continue
        pairs = zip(samples[name], limit, strict=True)
        distance = statistics.median(mine / least for mine, least in pairs)
        ns = statistics.median(samples[name]) / case.n * 1e9
        label = f"{case.name} n={case.n} {name}"
        rows.append(Row(label, float(f"{ns:.4g}"), "ns/param", IN_RUN, round(distance, 4)))
    return rows


def as_json(bench: Bench) -> str:
    """Return the rows and the machine in the format of `ondie bench --json`."""
    document = {
        "schema_version": 1,
        "machine": bench.machine,
        "rows": [asdict(row) for row in bench.rows],
    }
    return json.dumps(document, indent=2) + "\n"


def print_table(bench: Bench, console: Any) -> None:
    """Print the rows as tables on a rich console.

    The table of updates has one section per operation and size; the table of error correcting codes
    has one section per operation.
    """
    words = ", ".join(f"{key} {value}" for key, value in bench.machine.items())
    codes = [row for row in bench.rows if row.unit == codecs.UNIT]
    if len(codes) < len(bench.rows):
        _print_updates(bench, words, console)
    if codes:
        _print_codes(codes, words, console)


def _print_codes(rows: Sequence[Row], words: str, console: Any) -> None:
    """Print the table of error correcting codes with the caption ``words``."""
    from rich.table import Table

    table = Table(
        title="Time of error-correcting codes, medians of interleaved rounds (us/word)",
        caption=words,
    )
    table.add_column("")
    for heading in (codecs.UNIT, "relative to", "ratio"):
        table.add_column(heading, justify="right")
    section = ""
    for row in rows:
        label, _, contender = row.name.partition(", ")
        if label != section:
            section = label
            table.add_section()
            table.add_row(label, style="bold")
        anchor = row.anchor.removeprefix(f"{label}, ")
        table.add_row(f"  {contender}", f"{row.value:.3f}", anchor, f"{row.ratio:.3f}")
    console.print(table)


def _print_updates(bench: Bench, words: str, console: Any) -> None:
    """Print the table of updates with the caption ``words``."""
    from rich.table import Table

    table = Table(
        title="Time and throughput of update kernels, medians of interleaved rounds", caption=words
    )
    table.add_column("")
    for heading in ("ns/param", "GB/s", "Gop/s", f"x {LIMIT}", f"x {IN_RUN}", f"x {TORCH}"):
        table.add_column(heading, justify="right")
    found = {(row.name, row.unit, row.anchor): row for row in bench.rows}
    section = ""
    for row in bench.rows:
        if row.unit == codecs.UNIT:
            continue
        op, size, contender = row.name.split(" ", 2)
        if row.unit != "ns/param" or row.anchor in (TORCH, IN_RUN):
            continue
        if section != f"{op} {size}":
            section = f"{op} {size}"
            table.add_section()
            best = found.get((f"{op} {size} {PEAK}", "Gop/s", PEAK))
            words = f", {PEAK} {best.value:.1f} Gop/s" if best else ""
            table.add_row(f"{op} n={int(size[2:]):,}{words}", style="bold")
        rate = found[row.name, "GB/s", row.anchor]
        beside = found.get((row.name, "ns/param", TORCH))
        done = found.get((row.name, "Gop/s", PEAK))
        limit = found.get((row.name, "ns/param", IN_RUN))
        table.add_row(
            f"  {contender}",
            f"{row.value:.3f}",
            f"{rate.value:.1f}",
            f"{done.value:.1f}" if done else "",
            f"{row.ratio:.3f}" if row.anchor == LIMIT else "",
            f"{limit.ratio:.3f}" if limit else "",
            f"{beside.ratio:.3f}" if beside else "",
        )
    console.print(table)
