"""Owns: `ondie bench kernels`: how near the memory limit an update runs, beside its anchors.
Does not: know the contenders (bench_cases.py), or decide whether a figure is good enough.
Source: own.

DRAM bandwidth drifts by a factor of two with the neighbours, so an absolute time means little. All
contenders work on the same arrays in turn, round after round; a ratio is the median over rounds of
one contender's time over its anchor's in the same round. Below 1 is faster than the anchor (for
GB/s and Gop/s, above 1).
"""

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ondie.kernels import FORMATS, KernelError, isas
from ondie.kernels import native as native_kernels
from ondie.kernels.bench.contenders import LIMIT, PAGE, TORCH, Case, Contender, torch_module
from ondie.kernels.bench.peak_flops import OPERATIONS, PEAK, peak

SIZES = (1_000_000, 100_000_000)
LEAST_S = 5e-3  # a timing is made of as many calls as fill this time
TIMINGS = 3  # a sample is the least of so many timings,
MOST_S = 0.3  # or of those that fit into this time


@dataclass(frozen=True)
class Row:
    """One figure. `ratio` is value over the anchor's value, median over rounds."""

    name: str
    value: float
    unit: str
    anchor: str
    ratio: float


@dataclass(frozen=True)
class Bench:
    """What a run measured, and where; what was left out of it, and why."""

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
    """Measure update kernels against the memory limit and what else is importable: torch,
    DeepSpeed, bitsandbytes, torchao.

    sizes: parameters per call; by default 1e6, and 1e8 or what fits into half the free memory; a
    page has its own. repeat: rounds; by default 15, and 7 above 1e7 parameters. progress is told
    what runs next. Rows: for each op, format, shape, size and contender ns per parameter and GB/s
    of traffic against the memory limit (without C, which runs it, against the first contender), ns
    also against torch's operator, and Gop/s of arithmetic against the compute limit. Raises
    KernelError for a size or thread count that cannot run, and for an unknown name.
    """
    if threads < 1:
        raise KernelError(f"threads: {threads}, want 1 or more")
    if sizes is None:
        sizes = [min(n, max(SIZES[0], free_bytes() // 2 // need(1))) for n in SIZES]
    cases = []
    for op in ops:
        for form in formats:
            for shape in shapes:
                for n in (PAGE,) if shape == "page" else sizes:
                    n = n // PAGE * PAGE or n if shape == "pages" else n
                    if FORMATS.get(form) is not None and FORMATS[form].codes and op == "sgd":
                        continue  # it has no states
                    cases.append(Case(op, n, form, shape, threads))
    for case in cases:
        if need(case.n) > free_bytes():
            raise KernelError(
                f"size: {case.n} parameters need {need(case.n):,} bytes, {free_bytes():,} are "
                f"free; want at most {free_bytes() // need(1)}"
            )
    if not cases:
        raise KernelError(f"{', '.join(ops)} with {', '.join(formats)}: nothing to measure")
    bench = Bench([], machine(threads))
    for case in cases:
        rounds = repeat or (15 if case.n <= 10_000_000 else 7)
        bench.rows.extend(_one(case, rounds, progress or (lambda what: None), bench.remarks.append))
    return bench


def need(n: int) -> int:
    """Bytes for n parameters: four arrays, those of the memory limit, and as many temporaries in
    NumPy and torch's foreach."""
    return n * 4 * 12


def free_bytes() -> int:
    """Memory that can still be had, in bytes."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except FileNotFoundError:
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    line = next(line for line in text.splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024


def machine(threads: int) -> dict[str, str | int]:
    """What the figures depend on; no names of hosts or people."""
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
    return found


def compiler() -> str:
    """What the C kernels were compiled with, and its flags, as the extension says."""
    if native_kernels.lib is None:
        return "none"
    said = getattr(native_kernels.lib, "ondie_compiler", None)
    return "unknown" if said is None else native_kernels.ffi.string(said()).decode()


def _processor() -> str:
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
    """All contenders of one case, and the compute limit."""

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
    found = _rows(case.name, case.n, traffic, {k: v for k, v in samples.items() if k != PEAK})
    return found + _arithmetic(case, samples, done)


def _interleaved(
    contenders: dict[str, Contender], rounds: int, progress: Callable[[str], object]
) -> dict[str, list[float]]:
    """Seconds per call, one sample per contender and round; the order turns from round to round."""
    calls: dict[str, int] = {}
    for name, call in contenders.items():
        progress(f"{name}, warming up")
        call()  # compiles, and touches every page
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
                call()  # arrays that fit are in cache again after the others' temporaries
            samples[name].append(timed(call, calls[name]))
    return samples


def timed(call: Contender, calls: int) -> float:
    """Seconds per call: the least of a few timings, since being preempted only ever adds time."""
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


def _rows(op: str, n: int, traffic: int, samples: dict[str, list[float]]) -> list[Row]:
    def ratio(name: str, anchor: str) -> float:
        pairs = zip(samples[name], samples[anchor], strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)

    def row(name: str, anchor: str, unit: str = "ns/param") -> Row:
        seconds = statistics.median(samples[name]) / n
        value = seconds * 1e9 if unit == "ns/param" else traffic / seconds / 1e9
        relative = ratio(name, anchor) if unit == "ns/param" else ratio(anchor, name)
        return Row(f"{op} n={n} {name}", float(f"{value:.4g}"), unit, anchor, round(relative, 4))

    base = LIMIT if LIMIT in samples else next(iter(samples))
    rows = [row(name, base) for name in samples]
    rows += [row(name, base, "GB/s") for name in samples]
    if TORCH in samples:
        rows += [row(name, TORCH) for name in samples]
    return rows


def _arithmetic(case: Case, samples: dict[str, list[float]], done: int) -> list[Row]:
    """Operations of the update per second; of the memory limit, whose are others, none."""
    of = {name: sum(OPERATIONS[case.op]) * case.n for name in samples if name != LIMIT}
    of[PEAK] = done
    rows = []
    for name, operations in of.items():
        pairs = zip(samples[name], samples[PEAK], strict=True)
        share = statistics.median((operations / mine) / (done / best) for mine, best in pairs)
        rate = operations / statistics.median(samples[name]) / 1e9
        label = f"{case.name} n={case.n} {name}"
        rows.append(Row(label, float(f"{rate:.4g}"), "Gop/s", PEAK, float(f"{share:.4g}")))
    return rows


def as_json(bench: Bench) -> str:
    """The rows and the machine, as `ondie bench --json` writes them."""
    document = {
        "schema_version": 1,
        "machine": bench.machine,
        "rows": [asdict(row) for row in bench.rows],
    }
    return json.dumps(document, indent=2) + "\n"


def print_table(bench: Bench, console: Any) -> None:
    """The rows as a table on a rich console: one section per operation and size."""
    from rich.table import Table

    words = ", ".join(f"{key} {value}" for key, value in bench.machine.items())
    table = Table(title="Update kernels: medians of interleaved rounds", caption=words)
    table.add_column("")
    for heading in ("ns/param", "GB/s", "Gop/s", f"x {LIMIT}", f"x {TORCH}"):
        table.add_column(heading, justify="right")
    found = {(row.name, row.unit, row.anchor): row for row in bench.rows}
    section = ""
    for row in bench.rows:
        op, size, contender = row.name.split(" ", 2)
        if row.unit != "ns/param" or row.anchor == TORCH:
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
        table.add_row(
            f"  {contender}",
            f"{row.value:.3f}",
            f"{rate.value:.1f}",
            f"{done.value:.1f}" if done else "",
            f"{row.ratio:.3f}" if row.anchor == LIMIT else "",
            f"{beside.ratio:.3f}" if beside else "",
        )
    console.print(table)
