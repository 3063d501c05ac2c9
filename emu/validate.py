"""Validation: rows that hold the simulation against published numbers and closed forms.

Owns the row format, the runner and the suites. Does not own the models under test.
Source: the papers and programs named in each row. Fit rows were used to set a free parameter and
are only shown; check rows were not, and one outside its tolerance fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ondie.emu.compare import run_path
from ondie.emu.config import Config, load_preset
from ondie.emu.paths.base import Options
from ondie.emu.units import InputError, nearest
from ondie.traces import Step, Trace, flat_tensors

FIT, CHECK, SHOWN = "fit", "check", "shown"
MQSIM, FORMATS = "mqsim", "formats"
RUNS = ("recorded", "own", "both")
"""With which addresses MQSim's cases are run."""
SAMPLE_PARAMS = 40_000_000
Progress = Callable[[str, float], None] | None


@dataclass(frozen=True)
class Row:
    """One number: published (or by closed form) and predicted by the simulation.

    ``tolerance`` is relative; 0 means equal, None that the row is only shown.
    """

    suite: str
    name: str
    kind: str
    published: float
    predicted: float
    unit: str
    tolerance: float | None
    source: str

    @property
    def difference(self) -> float:
        """Relative difference of predicted to published; infinite where that is 0 and the other
        is not."""
        if not self.published:
            return math.inf if self.predicted else 0.0
        return self.predicted / self.published - 1

    @property
    def misses(self) -> bool:
        """Is this a check row outside its tolerance, or without a number?"""
        if self.kind != CHECK:
            return False
        assert self.tolerance is not None
        gap = abs(self.predicted - self.published)
        return not gap <= self.tolerance * abs(self.published)

    def data(self) -> dict[str, Any]:
        """The row as --json writes it."""
        return {
            "suite": self.suite,
            "name": self.name,
            "kind": self.kind,
            "published": self.published,
            "predicted": self.predicted,
            "unit": self.unit,
            "tolerance": self.tolerance,
            "source": self.source,
        }


HYPER: dict[str, dict[str, float | bool]] = {
    "sgd": {"lr": 1e-3},
    "momentum": {"lr": 1e-3, "momentum": 0.9},
    "adagrad": {"lr": 1e-3, "eps": 1e-10},
    "adam": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
}


def model(op: str, n_params: int) -> Trace:
    """A model of so many parameters in one tensor, one step, no payload, no computation."""
    step = Step(
        index=0, loss=None, samples=1, forward_s=0.0, backward_s=0.0, optimizer_s=0.0,
        ready_s=None, hyper=(HYPER[op],), count=1,
    )  # fmt: skip
    return Trace(
        name=f"{op} {n_params:,}", payload="none", timing_source="synthetic", op=op,
        form="canonical", gradient_dtype="float32", groups=1,
        tensors=flat_tensors([("w", (n_params,), 0, 0)]), steps=(step,), samples_per_step=1,
        bytes_per_sample=0, macs_forward=0, macs_backward=0, dataset_samples=0, private_samples=0,
    )  # fmt: skip


def traffic_rows(progress: Progress) -> list[Row]:
    """Bytes per parameter, counted at the device."""
    cfg = load_preset("optimstore-r1")
    offload = "NVMe bytes per parameter and step of ZeRO-Infinity, from DeepSpeed's sources"
    rows = []
    for op, total in (("adam", 32), ("momentum", 24), ("adagrad", 24), ("sgd", 16)):
        c = _counters("host_offload", cfg, op)
        moved = (c["host_read_bytes"] + c["host_write_bytes"]) / SAMPLE_PARAMS
        rows.append(Row("bytes", f"host offload, {op}", CHECK, total, moved, "B/param", 0, offload))
        for name, way, column in (
            ("gradient and states written", "host_write_bytes", total // 2),
            ("states and gradient read", "host_read_bytes", total // 2),
        ):
            rows.append(
                Row(
                    "bytes", f"host offload, {op}: {name}", CHECK, column,
                    c[way] / SAMPLE_PARAMS, "B/param", 0, offload,
                )
            )  # fmt: skip
    c = _counters("in_storage", cfg, "adam")
    flash = (c["isp_read_bytes"] + c["isp_write_bytes"]) / SAMPLE_PARAMS
    link = (c["down_bytes"] + c["up_bytes"]) / SAMPLE_PARAMS
    text = (
        "C-ISP: 24 B over the channels (OptimStore, HPCA 2023), 8 B over the link (Smart-Infinity)"
    )
    rows += [
        Row("bytes", "in storage, adam: states over the channels", CHECK, 24, flash, "B/param", 0,
        text), Row("bytes", "in storage, adam: over the link", CHECK, 8, link, "B/param", 0, text),
    ]  # fmt: skip
    c = _counters("on_die", cfg, "adam")
    page = cfg.flash.page_bytes
    padded = -(-SAMPLE_PARAMS // (page // 4)) * (page // 4)
    channel = (c["load_bytes"] + c["reservoir_up_bytes"]) / padded
    array = (c["bpr_pages"] + c["bpp_pages"]) * page / padded
    text = (
        "Gradients down, weights up; w, m, v read and programmed in place (OptimStore, HPCA 2023)"
    )
    rows += [
        Row("bytes", "on die, adam: over the channels", CHECK, 8, channel, "B/param", 0, text),
        Row("bytes", "on die, adam: arrays, without a channel", CHECK, 24, array, "B/param", 0,
        text),
    ]  # fmt: skip
    return rows


def _counters(path: str, cfg: Config, op: str) -> dict[str, int]:
    result = run_path(path, cfg, model(op, SAMPLE_PARAMS), Options(), steps=1, payload=False)
    assert result.ledger is not None
    return dict(result.ledger.totals.counters)


CLOSED_SOURCE = (
    "serial T = N(16/R + 12/W + 1/c) (ZeRO-Infinity); C-ISP channels x rate / 24 B and stripe time "
    "tR + passes x page/bus + tPROG + dies x page/bus (OptimStore, HPCA 2023), with the preset's "
    "commands, erases and queue depth"
)
CLOSED = (
    ("host_offload", "optimstore-r1", "adam", ()),
    ("host_offload", "optimstore-r1", "momentum", ()),
    ("host_offload", "optimstore-r2", "adam", ()),
    ("host_offload", "gen4-tlc", "adam", ()),
    ("host_offload_pipelined", "optimstore-r1", "adam", ("host.subgroup_params=1000000",)),
    ("host_offload_pipelined", "optimstore-r2", "adam", ("host.subgroup_params=1000000",)),
    ("host_offload_pipelined", "newport", "adam", ("host.subgroup_params=1000000",)),
    ("in_storage", "optimstore-r1", "adam", ()),
    ("in_storage", "optimstore-r2", "adam", ()),
    ("in_storage", "newport", "adam", ()),
    ("on_die", "optimstore-r1", "adam", ("pe.dispatch=lockstep",)),
    ("on_die", "optimstore-r1", "momentum", ("pe.dispatch=lockstep",)),
    ("on_die", "optimstore-r1", "adam", ("pe.dispatch=free",)),
    ("on_die", "optimstore-r1", "momentum", ("pe.dispatch=free",)),
    ("on_die", "optimstore-r1", "adam", ("pe.dispatch=double_buffered",)),
    ("on_die", "optimstore-r2", "adam", ("pe.dispatch=lockstep",)),
    ("on_die", "optimstore-r2", "adam", ("pe.dispatch=free",)),
)


def closed_form_rows(progress: Progress) -> list[Row]:
    """The simulated update stage against the closed form of its bottleneck."""
    rows = []
    for i, (path, preset, op, settings) in enumerate(CLOSED):
        if progress is not None:
            progress("closed-forms", i / len(CLOSED))
        cfg = load_preset(preset, settings)
        result = run_path(path, cfg, model(op, SAMPLE_PARAMS), Options(), steps=1, payload=False)
        assert result.bound is not None and result.ledger is not None
        extra = f", {settings[0].split('=')[1]}" if path == "on_die" else ""
        rows.append(
            Row(
                "closed-forms",
                f"{path} on {preset}, {op}{extra} ({result.bound.name})",
                CHECK,
                result.bound.seconds,
                result.ledger.update_s,
                "s",
                0.05,
                CLOSED_SOURCE,
            )
        )
    return rows


def rate_rows(progress: Progress) -> list[Row]:
    """Update rates that the preset R1 was chosen to meet: shown, not checked."""
    cfg = load_preset("optimstore-r1")
    rates = {}
    for path in ("host_offload", "in_storage", "on_die"):
        result = run_path(
            path, cfg, model("adam", SAMPLE_PARAMS), Options(), steps=1, payload=False
        )
        assert result.ledger is not None
        rates[path] = SAMPLE_PARAMS / result.ledger.update_s
    text = "Reading R1 of OptimStore (HPCA 2023)"
    return [
        Row("rates", "baseline, adam", FIT, 177e6, rates["host_offload"], "param/s", 0.1, text),
        Row("rates", "C-ISP, adam", FIT, 267e6, rates["in_storage"], "param/s", 0.1, text),
        Row("rates", "on die in lockstep, adam", FIT, 498e6, rates["on_die"], "param/s", 0.1, text),
    ]


def mqsim_cases() -> Path | None:
    """The cases of this checkout; None where the package is installed without them."""
    folder = Path(__file__).resolve().parent.parent / "tests" / "fidelity" / "mqsim"
    return folder if (folder / "cases.json").is_file() else None


def mqsim_rows(progress: Progress, folder: Path | None = None, runs: str = "both") -> list[Row]:
    """MQSim's results on its own files beside ours, whole runs and request by request.

    ``folder``: of cases (mqsim/cases.py), by default those of the checkout. ``runs``: one of RUNS;
    cases without recorded requests run with their own addresses alone.
    InputError where there are no cases, or none with recorded requests.
    """
    from ondie.emu.mqsim import cases as mq
    from ondie.emu.mqsim.simulate import simulate

    folder = folder or mqsim_cases()
    if folder is None:
        raise InputError("mqsim: this installation is without MQSim's cases; --cases DIR is needed")
    found = mq.read_cases(folder)
    if runs == "recorded":
        found = [case for case in found if case.recorded is not None]
        if not found:
            raise InputError(f"{folder}: no case has recorded requests; --own is right")
    rows = []
    for at, case in enumerate(found):
        if progress is not None:
            progress(MQSIM, at / len(found))
        made = []
        if runs != "own" and case.recorded is not None:
            made += mq.run_recorded(case, simulate)
        if runs != "recorded":
            made += mq.run_own(case, simulate)
        source = f"{case.name}: {case.description}; MQSim (A. Tavakkol et al., FAST 2018)"
        rows += [
            Row(
                MQSIM, f"{row.case}, {row.run}: {row.name}",
                SHOWN if row.tolerance is None else CHECK,
                row.theirs, row.ours, row.unit, row.tolerance, source,
            )
            for row in made
        ]  # fmt: skip
    return rows


SUITES: dict[str, Callable[[Progress], list[Row]]] = {
    "bytes": traffic_rows,
    "closed-forms": closed_form_rows,
    "rates": rate_rows,
}


def run(
    name: str | None, progress: Progress = None, folder: Path | None = None, runs: str = "both"
) -> list[Row]:
    """Run one suite, or all of SUITES. ``folder``, ``runs``: of mqsim_rows(), which only runs when
    it is named. Raises InputError for an unknown name."""
    if name == MQSIM:
        return mqsim_rows(progress, folder, runs)
    if name is not None and name not in SUITES:
        known = [*SUITES, MQSIM, FORMATS]
        raise InputError(
            f"unknown validation {name!r}; nearest: {nearest(name, known) or 'none'} "
            f"(of {', '.join(known)})"
        )
    rows = []
    for suite in [name] if name is not None else SUITES:
        rows += SUITES[suite](progress)
    return rows


TITLES = {
    CHECK: "check: predicted, never fitted",
    FIT: "fit: the preset was chosen to meet them; shown, not checked",
}


def tables(rows: list[Row]) -> list[Table]:
    """A table per suite, kind and source; check rows, among them those only shown, before fit
    rows."""
    out = []
    for kind, title in TITLES.items():
        mine = [r for r in rows if r.kind == kind or (r.kind == SHOWN and kind == CHECK)]
        for suite, source in dict.fromkeys((r.suite, r.source) for r in mine):
            table = Table(
                title=f"{suite} ({title})\n{source}", title_justify="left", title_style="bold"
            )
            for column in ("row", "expected", "predicted", "difference", "tolerance", "unit", ""):
                table.add_column(column, justify="left" if column == "row" else "right")
            for row in mine:
                if (row.suite, row.source) != (suite, source):
                    continue
                verdict = "" if row.kind != CHECK else "MISS" if row.misses else "ok"
                tolerance = "" if row.tolerance is None else f"{row.tolerance:.0%}"
                table.add_row(
                    row.name, f"{row.published:.6g}", f"{row.predicted:.6g}",
                    f"{row.difference:+.2%}", tolerance, row.unit, verdict,
                )  # fmt: skip
            out.append(table)
    return out


def show(rows: list[Row], console: Console) -> None:
    """Print the tables and how many check rows miss."""
    for table in tables(rows):
        console.print(table)
        console.print()
    missed = sum(row.misses for row in rows)
    console.print(f"{len(rows)} rows, {missed} check rows outside their tolerance")
