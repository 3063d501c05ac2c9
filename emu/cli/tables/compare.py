"""Reports: a comparison as tables, as result.json and as a figure.

Owns words, units and files; writes a file whole or not at all. Does not own any number.
Source: this project's contract of results: no time of day, path, wall time or measurement of this
host.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ondie.emu.analysis import perfetto as timeline
from ondie.emu.analysis.compare import Comparison, Result
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.analysis.lifetime import (
    RATED_RETENTION,
    RESERVOIR_RETENTION,
    RETENTION,
    cycles,
    gain,
    lifetime,
    programmed_bytes,
    spread,
)
from ondie.emu.analysis.sensitivity import IDLE, Swing, sample_params, unfelt
from ondie.emu.analysis.step_budget import target_data, target_table, verdicts
from ondie.emu.cli.tables.energy_uncertainty import odds_data, odds_table, odds_words
from ondie.emu.clock import PS_PER_S
from ondie.emu.config import nominal_capacity as nominal
from ondie.emu.config.config import Config
from ondie.emu.paths.base import Options
from ondie.emu.paths.offload.path import HostOffload, PipelinedOffload
from ondie.emu.units import InputError, fmt_bytes, fmt_energy, fmt_time, fmt_update_rate

SCHEMA_VERSION = 1
LATENCY_BOUND = 0.5
"""Below this share of the busiest resource, the stage waits for latency."""
PHASE_TITLES = {
    "samples": "samples",
    "forward": "forward",
    "backward": "backward",
    "levelling": "levelling",
    "gradients": "gradients",
    "synchronise": "sync",
    "update": "update",
    "weights_up": "weights up",
}
SELDOM = ("levelling",)
"""Phases that are shown where a path had them."""
UNEVEN = 1e-4
"""Share by which the fullest die may be above the mean without a word."""
UNUSUAL = 0.2
"""Of the usual time of forward and backward: what is further off is said."""
SHOWN_SWINGS = 8


def seconds(value: float) -> str:
    """Seconds with three digits and a fitting unit."""
    return fmt_time(value * 1e12)


def joules(span: tuple[float, float, float], steps: int) -> str:
    """typical, and low .. high below it, per step."""
    low, typical, high = (fmt_energy(x / steps * 1e15) for x in span)
    return f"{typical}\n{low} .. {high}"


def speedup(base: Result, rival: Result) -> float:
    """Update stage of the baseline over that of the rival."""
    assert base.ledger is not None and rival.ledger is not None
    return base.ledger.update_s / rival.ledger.update_s


def update_speedup(c: Comparison, r: Result) -> float | None:
    """Update stage of the comparison's baseline over that of a path; None where they are not of a
    kind."""
    base = c.result(c.swing_pair[0]) if c.swing_pair else None
    if base is None or not r.updates_weights or r.ledger is None or not r.ledger.update_s:
        return None
    return speedup(base, r)


def energy_ratio(base: Result, rival: Result) -> float:
    """Joules of drive and host outside forward and backward, baseline over rival, typical."""
    assert base.energy is not None and rival.energy is not None
    return base.energy.storage_and_host[1] / rival.energy.storage_and_host[1]


def bound_words(result: Result) -> str:
    """What binds the update stage, by the simulation: the resource that works most, and its
    share."""
    assert result.ledger is not None
    name, share = result.ledger.bound_by()
    if share < LATENCY_BOUND:
        return f"latency ({name} {share:.0%})"
    return f"{name} {share:.0%}"


def tables(c: Comparison) -> list[Table]:
    """All tables of a comparison, in order."""
    out = [_overview(c), _phases(c), _traffic(c), _lifetimes(c), _arithmetic(c)]
    if any(r.weights for r in c.results):
        out.append(_weights(c))
    if c.swings:
        out.append(_swings(c))
    if c.odds is not None:
        out.append(odds_table(c.odds, _table("", "energy")))
    return out


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=i == 0)
    return table


def _overview(c: Comparison) -> Table:
    stored = "" if c.options.format == "fp32" else f" in {c.options.format}"
    table = _table(
        f"{c.trace.name} on {c.cfg.system.name} x {c.cfg.system.devices}: "
        f"{c.trace.n_params:,} parameters{stored}, {c.trace.op}, mean of {c.steps} step(s)",
        "path", "step", "samples/s", "update stage", "rate", "speedup", "J drive", "J drive+host",
        "bound by",
    )  # fmt: skip
    for r in c.results:
        if r.ledger is None or r.energy is None:
            table.add_row(r.name, "n/a", *[""] * 7)
            continue
        book = r.ledger
        rate = c.trace.n_params / book.update_s if book.update_s else 0.0
        faster = update_speedup(c, r)
        table.add_row(
            r.name,
            seconds(book.step_s),
            f"{book.samples / book.step_s:.4g}",
            seconds(book.update_s),
            fmt_update_rate(rate),
            "" if faster is None else f"{faster:.2f}x",
            joules(r.energy.drive, c.steps),
            joules(r.energy.storage_and_host, c.steps),
            bound_words(r),
        )
    table.caption = (
        "update stage: first gradient byte down (host offload: first state read) to last program; "
        "speedup: of that stage;\nJ: per step, outside forward and backward, with every constant "
        "at its low .. high end below"
    )
    return table


def _phases(c: Comparison) -> Table:
    shown = {
        phase: title
        for phase, title in PHASE_TITLES.items()
        if phase not in SELDOM or any(phase in r.ledger.phases_s for r in c.results if r.ledger)
    }
    table = _table(
        "Time per step by phase", "path", *shown.values(), "step", "update share", "overlap",
    )  # fmt: skip
    pairs: dict[tuple[str, str], list[str]] = {}
    for r in c.results:
        if r.ledger is not None:
            book = r.ledger
            cells = [_spent(book.phases_s.get(phase)) for phase in shown]
            hidden = seconds(book.overlapped_s) if book.overlapped_s else "-"
            table.add_row(r.name, *cells, seconds(book.step_s), f"{book.update_share:.1%}", hidden)
            for pair, took in book.overlaps().items():
                pairs.setdefault(pair, []).append(f"{r.name} {seconds(took)}")
    words = [
        f"{PHASE_TITLES[later]} beside {PHASE_TITLES[earlier]}: {', '.join(who)}"
        for (later, earlier), who in pairs.items()
    ]
    words.append(
        "Update share: update and synchronisation over step; overlap: what phases take at once."
    )
    table.caption = "\n".join(words)
    return table


def _count(value: float) -> str:
    """A large number with three digits: 12.4 M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def _spent(value: float | None) -> str:
    """Seconds of a phase; "hidden" when other phases cover all of it, "-" when there is none."""
    if value is None:
        return "-"
    return seconds(value) if value else "hidden"


def _traffic(c: Comparison) -> Table:
    table = _table(
        "Traffic and operations per step", "path", "host link", "channels", "into flash", "tunnel",
        "page operations", "array operations", "blocks erased", "WAF",
    )  # fmt: skip
    for r in c.results:
        if r.ledger is None:
            continue
        m = metrics(c, r)
        table.add_row(
            r.name,
            *[
                fmt_bytes(m[name]["value"])
                for name in ("link_bytes", "channel_bytes", "flash_written_bytes", "tunnel_bytes")
            ],
            f"{m['page_operations']['value']:,.0f}",
            f"{m['array_operations']['value']:,.0f}",
            f"{m['erased_blocks']['value']:,.0f}",
            "-" if r.ledger.waf is None else f"{r.ledger.waf:.3f}",
        )
    return table


def _lifetimes(c: Comparison) -> Table:
    f = c.cfg.flash
    drives = f"{c.cfg.system.devices} x " if c.cfg.system.devices > 1 else ""
    low, typical, high = cycles(c.cfg)
    own = cycles(c.cfg, RESERVOIR_RETENTION)
    reserved = own != (low, typical, high) and c.result("on_die") is not None
    aside = f", {own[1]:,.0f} in the reservoir" if reserved else ""
    span = "low .. high" if reserved else f"at {low:,.0f} .. {high:,.0f}"
    table = _table(
        f"Lifetime and capacity: {drives}{fmt_bytes(c.cfg.system.capacity_bytes)} of {f.cell}, "
        f"rated for {typical:,.0f} cycles{aside}",
        "path", "written per step", "steps", "years of 8,760 h",
        f"years {span}", "states on flash", "of the drive", "in pSLC, of TLC",
    )  # fmt: skip
    for r in c.results:
        if r.ledger is None:
            continue
        x = lifetime(c.cfg, r.ledger, r.updates_weights, r.share)
        worn = ["-"] * 3
        if x.steps is not None and x.years is not None:
            years = [_count(y) for y in x.years]
            worn = [_count(x.steps[1]), years[1], f"{years[0]} .. {years[2]}"]
        held = ["-"] * 3
        if x.state_bytes:
            held = [fmt_bytes(x.state_bytes), f"{100 * x.share:.2g}%", fmt_bytes(x.pslc_bytes)]
        table.add_row(r.name, fmt_bytes(x.written_bytes), *worn, *held)
    mode = "are" if f.cell == "pSLC" else "would be"
    words = [
        f"Written: WAF included. {_cycle_words(c.cfg, RETENTION)}.",
        f"In pSLC, as the states {mode}, they take three times the capacity of TLC.",
    ]
    if reserved:
        words.append(f"In the reservoir: {_cycle_words(c.cfg, RESERVOIR_RETENTION)}.")
    if c.result("on_die") is not None:
        words.append(
            f"All blocks worn alike: on_die writes its reservoir alone "
            f"({c.cfg.ftl.reservoir_fraction:.0%} of the drive), and lives that share where no "
            "block changes sides."
        )
    words += [_wear_words(c, r) for r in c.results if r.share is not None]
    table.caption = " ".join(words)
    return table


def _cycle_words(cfg: Config, key: str) -> str:
    """The rated cycles, and what the retention that is required makes of them."""
    leaf, need, rated = (cfg.leaf(k) for k in ("flash.endurance_cycles", key, RATED_RETENTION))
    words = f"Cycles: {leaf.ref}; rated for a retention of {rated.value}"
    factor = gain(cfg, str(need.value), str(rated.value))[1]
    if factor == 1:
        return words
    return f"{words}, x {factor:.3g} at {need.value} ({need.ref})"


def _wear_words(c: Comparison, r: Result) -> str:
    """How the blocks wear that a path has to itself: with levelling and without, and so far."""
    assert r.ledger is not None and r.share is not None
    share, own = r.share, lifetime(c.cfg, r.ledger, share=r.share).reservoir_steps
    if own is None:
        return ""
    how, why = [], []
    if share.rotate:
        how.append(f"planes change roles every {share.rotate:,} cycles")
    if share.migrate:
        how.append(f"super-pages move between dies that are {share.migrate:,} apart")
    if share.used < share.planes:
        why.append(f"{share.planes - share.used} of {share.planes} planes idle")
    uneven = share.as_laid_out / share.mean - 1
    if uneven > UNEVEN:
        why.append(f"the fullest die {100 * uneven:.3g}% above the mean")
    words = f"The reservoir of {r.name} alone lasts {_count(own[1])} steps as laid out"
    if why:
        words += f" ({', '.join(why)})"
    if how:
        words += f", {_count(own[0])} as {' and '.join(how)}"
    if share.rotate:
        each = _count(share.turn_steps)
        words += f"; a change of roles takes {seconds(share.turn_s)}, once in {each} steps"
    found = spread(r.ledger.totals.worn)
    if not found["die"][2]:
        return f"{words}. None of its blocks was erased in the run."
    spans = [
        f"{found[name][0]:,} .. {found[name][1]:,.3g} .. {found[name][2]:,} a {name}"
        for name in ("plane", "die")
    ]
    return f"{words}. Erased in the run, least .. mean .. most: {', '.join(spans)}."


def _arithmetic(c: Comparison) -> Table:
    table = _table(
        "Update stage against the arithmetic of its own bottleneck",
        "path", "simulated", "arithmetic", "difference", "bottleneck", "in words",
    )  # fmt: skip
    for r in c.results:
        if r.ledger is None or r.bound is None:
            continue
        simulated = r.ledger.update_s
        gap = simulated / r.bound.seconds - 1 if r.bound.seconds else 0.0
        table.add_row(
            r.name,
            seconds(simulated),
            seconds(r.bound.seconds),
            f"{gap:+.1%}",
            r.bound.name,
            r.bound.text,
        )
    return table


def _weights(c: Comparison) -> Table:
    table = _table(
        f"Weights after {c.steps} steps through the emulated pages",
        "path", "equal to the reference", "arrived at the host", "distance to recorded (max)",
        "equal bits to recorded",
    )  # fmt: skip
    for r in c.results:
        w = r.weights
        if r.ledger is None:
            continue
        if w is None:
            table.add_row(r.name, "timing only", "-", "-", "-")
            continue
        table.add_row(
            r.name,
            f"{w.equal_bits:,} of {w.elements:,}",
            "-" if w.delivered_equal_bits is None else f"{w.delivered_equal_bits:,}",
            "-" if w.recorded_distance is None else f"{w.recorded_distance:.3g} units",
            "-" if w.recorded_equal_share is None else f"{w.recorded_equal_share:.2%}",
        )
    table.caption = "unit: 2^-24 max(|w|, sum of learning rates); limit 16"
    return table


def _swings(c: Comparison) -> Table:
    assert c.swing_pair is not None
    base, rival = c.swing_pair
    table = _table(
        f"Swing of the headline ({rival} over {base}) with each assumed constant, widest first,\n"
        f"simulated on a sample of {sample_params(c.trace, c.cfg):,} parameters",
        "assumed constant", "low", "high", "speedup at low", "at high", "energy ratio at low",
        "at high",
    )  # fmt: skip
    for s in c.swings[:SHOWN_SWINGS]:
        cells = (s.speedup_at_low, s.speedup_at_high, s.energy_at_low, s.energy_at_high)
        table.add_row(s.key, s.low, s.high, *("n/a" if x is None else f"x {x:.3f}" for x in cells))
    notes = []
    rest = c.swings[SHOWN_SWINGS:]
    if rest:
        most = max(s.width for s in rest)
        notes.append(f"{len(rest)} more change either by at most {most - 1:.1%}")
    idle = unfelt(c.cfg)
    for rule in IDLE:
        covered = sum(rule.covers(key) for key in idle)
        if covered:
            notes.append(f"{covered} are not felt while {rule.key} = {rule.value}")
    path = (PipelinedOffload if rival == PipelinedOffload.name else HostOffload)(
        c.cfg, c.trace, c.options
    )
    if path.lone_part(sample_params(c.trace, c.cfg)):
        notes.append("the sample fits one sub-group, so that nothing in it is pipelined")
    table.caption = "; ".join(notes) or None
    return table


def headline_words(c: Comparison) -> str:
    """One sentence: the result, and on how many assumptions it rests."""
    assumed = len(c.cfg.assumed())
    tail = f"{assumed} of {len(c.cfg.leaves())} constants are assumed"
    if c.swing_pair is None:
        return f"No two update paths to compare; {tail}."
    base, rival = (c.result(name) for name in c.swing_pair)
    assert base is not None and rival is not None
    ratios = headline_numbers(c)
    words = (
        f"{rival.name} over {base.name}: update stage {ratios['update_stage']:.2f}x, all outside "
        f"forward and backward {ratios['outside_training']:.2f}x, whole step "
        f"{ratios['step']:.2f}x; energy outside forward and backward "
        f"{ratios['energy_outside_training']:.2f}x, of the whole step {ratios['energy']:.2f}x; "
        f"{tail}"
    )
    if c.swings:
        fast = max(c.swings, key=lambda s: s.speedup_width)
        lean = max(c.swings, key=lambda s: s.energy_width)
        words += (
            f"; the speedup swings most with {fast.key} (x {fast.speedup_width:.2f}), the energy "
            f"with {lean.key} (x {lean.energy_width:.2f})"
        )
    return words + "."


def headline_numbers(c: Comparison) -> dict[str, float]:
    """Baseline over rival: times of the update stage, of all outside forward and backward and of
    the whole step, and typical energies. Empty when there are not two to compare."""
    if c.swing_pair is None:
        return {}
    base, rival = (c.result(name) for name in c.swing_pair)
    assert base is not None and rival is not None
    assert base.ledger is not None and rival.ledger is not None
    assert base.energy is not None and rival.energy is not None
    outside = [outside_training_s(r.ledger) for r in (base, rival) if r.ledger is not None]
    return {
        "update_stage": speedup(base, rival),
        "outside_training": outside[0] / outside[1],
        "step": base.ledger.step_s / rival.ledger.step_s,
        "energy_outside_training": energy_ratio(base, rival),
        "energy": base.energy.all[1] / rival.energy.all[1],
    }


def outside_training_s(book: Ledger) -> float:
    """Mean seconds of a step that are neither forward nor backward."""
    spent = book.phases_s
    return book.step_s - spent.get("forward", 0.0) - spent.get("backward", 0.0)


def metrics(c: Comparison, r: Result) -> dict[str, dict[str, Any]]:
    """Everything measured of a path, per step: name -> value and unit."""
    assert r.ledger is not None and r.energy is not None and r.bound is not None
    book, t, n = r.ledger, r.ledger.totals, c.steps
    counters = t.counters
    written, worn = programmed_bytes(t) / n, lifetime(c.cfg, book, r.updates_weights)
    array = counters["array_reads"] + counters["array_programs"] + counters["array_erases"]
    name, share = book.bound_by()
    out: dict[str, tuple[Any, str]] = {
        "step_s": (book.step_s, "s"),
        "samples_per_step": (book.samples, "samples"),
        "samples_per_s": (book.samples / book.step_s, "samples/s"),
        "update_s": (book.update_s, "s"),
        "update_share": (book.update_share, "1"),
        "update_speedup": (update_speedup(c, r), "1"),
        "overlapped_s": (book.overlapped_s, "s"),
        "update_params_per_s": (
            c.trace.n_params / book.update_s if book.update_s else None,
            "param/s",
        ),
        "link_bytes": ((t.bytes_by["link down"] + t.bytes_by["link up"]) / n, "B"),
        "link_down_bytes": (t.bytes_by["link down"] / n, "B"),
        "link_up_bytes": (t.bytes_by["link up"] / n, "B"),
        "channel_bytes": ((t.bytes_by["channels in"] + t.bytes_by["channels out"]) / n, "B"),
        "flash_written_bytes": (written, "B"),
        "tunnel_bytes": (counters["tunnel_bytes"] / n, "B"),
        "tunnel_commands": (counters["tunnel_commands"] / n, "operations"),
        "host_relay_cpu_s": (
            t.busy_sum_ps.get("host relay", 0) * c.cfg.tunnel.relay_threads / n / PS_PER_S,
            "s",
        ),
        "page_operations": (book.page_operations / n, "pages"),
        "array_operations": (array / n, "operations"),
        "erased_blocks": (counters["erased_blocks"] / n, "blocks"),
        "most_erases_of_a_super_block": (t.erases[1], "erases"),
        "waf": (book.waf, "1"),
        "steps_to_wear_out": (worn.wear_out_steps, "steps"),
        "state_bytes": (worn.state_bytes, "B"),
        "state_share_of_capacity": (worn.share, "1"),
        "state_cells_as_tlc_bytes": (worn.tlc_bytes, "B"),
        "state_in_pslc_as_tlc_bytes": (worn.pslc_bytes, "B"),
        "bound_by": (name, "resource"),
        "bound_by_share": (share, "1"),
        "latency_bound": (share < LATENCY_BOUND, "bool"),
    }
    for i, end in enumerate(("low", "typical", "high")):
        out[f"rated_write_{end}_bytes"] = (worn.rated_bytes[i], "B")
        out[f"lifetime_steps_{end}"] = (worn.steps and worn.steps[i], "steps")
        out[f"lifetime_years_{end}"] = (worn.years and worn.years[i], "years")
    for group, span in (
        ("drive", r.energy.drive),
        ("drive_and_host", r.energy.storage_and_host),
        ("all", r.energy.all),
    ):
        for end, value in zip(("low", "typical", "high"), span, strict=True):
            out[f"energy_{group}_{end}_j"] = (value / n, "J/step")
            if book.samples:
                out[f"energy_{group}_{end}_j_per_sample"] = (value / n / book.samples, "J/sample")
    return {key: {"value": value, "unit": unit} for key, (value, unit) in out.items()}


def result_data(c: Comparison, seed: int, target_s: float | None = None) -> dict[str, Any]:
    """The content of result.json."""
    asked = {} if target_s is None else {"target": target_data(c, target_s)}
    return asked | {
        "schema_version": SCHEMA_VERSION,
        "ondie_version": version("ondie"),
        "seed": seed,
        "trace": {
            "name": c.trace.name,
            "sha256": c.trace.sha256,
            "payload": c.trace.payload,
            "timing_source": c.trace.timing_source,
            "op": c.trace.op,
            "n_params": c.trace.n_params,
            "steps": c.steps,
        },
        "options": options_data(c.options),
        "configuration": c.cfg.resolved(),
        "configuration_sha256": c.cfg.sha256,
        "assumed": {
            "count": len(c.cfg.assumed()),
            "of": len(c.cfg.leaves()),
            "headline": list(c.swing_pair) if c.swing_pair else None,
            "sample_params": sample_params(c.trace, c.cfg) if c.swings else None,
            "swing": [_swing_data(s) for s in c.swings],
            "unfelt": list(unfelt(c.cfg)) if c.swings else [],
        },
        "uncertainty": odds_data(c),
        "headline": headline_words(c),
        "headline_ratios": headline_numbers(c),
        "notes": notes(c),
        "paths": [_path_data(c, r) for r in c.results],
    }


HIDDEN = ("seed", "pairs", "host_batch", "shares")


def options_data(o: Options) -> dict[str, Any]:
    """What was asked of the paths, as results have it. (The seed stands beside it.)"""
    return {name: x for name, x in asdict(o).items() if name not in HIDDEN}


def _swing_data(s: Swing) -> dict[str, Any]:
    return {
        "key": s.key,
        "low": s.low,
        "high": s.high,
        "speedup_factor_at_low": s.speedup_at_low,
        "speedup_factor_at_high": s.speedup_at_high,
        "energy_factor_at_low": s.energy_at_low,
        "energy_factor_at_high": s.energy_at_high,
    }


def _reservoir_data(c: Comparison, r: Result) -> dict[str, Any] | None:
    """Wear of the blocks that a path has to itself."""
    if r.ledger is None or r.share is None:
        return None
    own = lifetime(c.cfg, r.ledger, share=r.share).reservoir_steps or (None, None)
    erases = {
        name: dict(zip(("least", "mean", "most"), its, strict=True))
        for name, its in spread(r.ledger.totals.worn).items()
    }
    return {
        "lifetime_steps": {"levelled": own[0], "as_laid_out": own[1]},
        "planes": r.share.planes,
        "planes_in_use": r.share.used,
        "fullest_die_over_mean": r.share.as_laid_out / r.share.mean if own[1] else None,
        "change_of_roles": {"seconds": r.share.turn_s, "steps_between": r.share.turn_steps}
        if r.share.rotate and own[1]
        else None,
        "erases_of_a_plane": erases["plane"],
        "erases_of_a_die": erases["die"],
    }


def _path_data(c: Comparison, r: Result) -> dict[str, Any]:
    if r.ledger is None or r.energy is None or r.bound is None:
        return {"name": r.name, "title": r.title, "status": "n/a", "reason": r.reason}
    w = r.weights
    return {
        "name": r.name,
        "title": r.title,
        "status": "ok",
        "metrics": metrics(c, r),
        "notes": list(r.notes),
        "sampled": r.sampled and {"params": r.sampled.params, "error": r.sampled.error},
        "phases_s": r.ledger.phases_s,
        "overlaps_s": [
            {"phase": later, "beside": earlier, "seconds": took}
            for (later, earlier), took in r.ledger.overlaps().items()
        ],
        "utilisation_of_update": r.ledger.utilisation("update"),
        "arithmetic": {
            "seconds": r.bound.seconds,
            "bottleneck": r.bound.name,
            "text": r.bound.text,
        },
        "reservoir": _reservoir_data(c, r),
        "counters": dict(r.ledger.totals.counters),
        "planned": dict(r.ledger.totals.planned),
        "energy_j_per_step": {
            name: [x / c.steps for x in span] for name, span in r.energy.by_component.items()
        },
        "weights": None
        if w is None
        else {
            "equal_bits_to_reference": w.equal_bits,
            "elements": w.elements,
            "equal_bits_at_host": w.delivered_equal_bits,
            "distance_to_recorded_units": w.recorded_distance,
            "equal_bits_to_recorded_share": w.recorded_equal_share,
        },
    }


def write_atomically(files: Mapping[Path, bytes]) -> None:
    """Write all files whole or none: each beside its place, then renamed. Raises InputError."""
    staged: list[tuple[str, Path]] = []
    made: list[Path] = []
    try:
        for path, data in files.items():
            check_target(path)
            with _writing(path):
                _make_folder(path.parent, made)
                handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
                staged.append((name, path))
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.chmod(name, 0o644)
        while staged:
            with _writing(staged[0][1]):
                os.replace(*staged[0])
            del staged[0]
    except BaseException:
        for name, _ in staged:
            os.unlink(name)
        for folder in reversed(made):
            with suppress(OSError):  # somebody else may have put something there
                folder.rmdir()
        raise


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def _make_folder(folder: Path, made: list[Path]) -> None:
    """Make a folder and its parents, noting the new ones in ``made``."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    for p in reversed(missing):
        p.mkdir(exist_ok=True)
        made.append(p)


def check_apart(path: str | Path, *read: str | Path) -> None:
    """Raise InputError when a file that is to be written is one of those that are ``read``."""
    if any(os.path.realpath(path) == os.path.realpath(each) for each in read):
        raise InputError(f"{path}: is read, and would be lost; another name is right")


def check_target(path: Path, *read: str | Path) -> None:
    """Raise InputError when a file cannot be written at ``path``: before a long run, not after; or
    when it is one of those that are ``read``."""
    check_apart(path, *read)
    with _writing(path):
        if path.is_dir():
            raise InputError(f"{path}: cannot be written: it is a folder")
        parent = next(p for p in path.parents if p.exists())
        if not parent.is_dir():
            raise InputError(f"{path}: cannot be written: {parent} is not a folder")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise InputError(f"{path}: cannot be written: no permission in {parent}")


def targets(out: Path) -> tuple[Path, Path, Path]:
    """The files of every comparison in its folder: result and figure."""
    return out / "result.json", out / "figure.png", out / "figure.pdf"


def tornado_targets(out: Path) -> tuple[Path, Path]:
    """The files of the tornado figure, of comparisons that vary their constants."""
    return out / "tornado.png", out / "tornado.pdf"


def write(
    c: Comparison,
    out: Path,
    seed: int,
    timeline_file: Path | None,
    target_s: float | None = None,
    more: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write result.json with ``more`` beside what it has, the figures as PNG and PDF, and the
    timeline if asked. Returns the files."""
    from ondie.emu.cli.figures.compare import draw  # matplotlib takes a second to import

    content = {**result_data(c, seed, target_s), **(more or {})}
    text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"
    images = draw(c)
    contents = text.encode(), images["png"], images["pdf"]
    files = dict(zip(targets(out), contents, strict=True))
    if c.odds is not None:
        from ondie.emu.cli.figures import tornado

        images = tornado.draw(c)
        files |= dict(zip(tornado_targets(out), (images["png"], images["pdf"]), strict=True))
    if timeline_file is not None:
        runs = [(r.timeline, r.dropped) for r in c.results if r.timeline is not None]
        files[timeline_file] = timeline.merge(runs).encode()
    write_atomically(files)
    return list(files)


def notes(c: Comparison) -> list[str]:
    """What a reader has to know of the whole comparison."""
    words = nominal.note(c.cfg.leaf(nominal.CAPACITY)), unusual(c)
    return [note for note in words if note is not None]


def unusual(c: Comparison) -> str | None:
    """That the steps which ran train for another time than most of those recorded, as the first of
    a run does while the accelerator warms up."""
    every = [s.forward_s + s.backward_s for s in c.trace.steps]
    ran, usual = sum(every[: c.steps]) / c.steps, float(np.median(every))
    if not usual or abs(ran / usual - 1) <= UNUSUAL:
        return None
    which = "the first step" if c.steps == 1 else f"the first {c.steps} steps, on average,"
    return (
        f"forward and backward: {which} took {seconds(ran)}, the median of the {len(every)} "
        f"recorded is {seconds(usual)} (--steps {len(every)} runs all of them)"
    )


def remarks(c: Comparison) -> list[str]:
    """What a reader has to know of single rows: why one is missing, what another leaves out."""
    out = notes(c)
    out += [f"{r.name}: n/a: {r.reason}" for r in c.results if r.reason is not None]
    out += [f"{r.name}: {note}" for r in c.results for note in r.notes]
    return out + [
        f"{r.name}: the timeline has no room for {r.dropped:,} more intervals"
        for r in c.results
        if r.timeline is not None and r.dropped
    ]


def show(c: Comparison, console: Console, target_s: float | None = None) -> None:
    """Print the tables, the remarks and the headline."""
    for i, table in enumerate(tables(c)):
        console.print(table)
        for line in remarks(c) if i == 0 else ():
            console.print(line)
        console.print()
    if c.odds is not None:
        console.print(odds_words(c.odds) + "\n")
    if target_s is not None:
        console.print(target_table(verdicts(c, target_s), target_s, _table("", "path")))
        console.print()
    console.print(headline_words(c))
