"""Content of result.json: the numbers of a comparison with their units, and the headline.

Owns names and units of the stored values. Does not own tables or figures (ondie.emu.cli).
Source: none.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np

from ondie.emu.analysis.compare import Comparison, Result
from ondie.emu.analysis.energy import bounds
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.analysis.lifetime import (
    lifetime,
    programmed_bytes,
    spread,
)
from ondie.emu.analysis.monte_carlo import (
    DRAWS,
    TOGETHER,
    Ends,
    rounded,
)
from ondie.emu.analysis.sensitivity import Swing, sample_params, unfelt
from ondie.emu.analysis.step_budget import target_data
from ondie.emu.clock import PS_PER_S
from ondie.emu.config import nominal_capacity as nominal
from ondie.emu.config.config import shown
from ondie.emu.paths.base import Options
from ondie.emu.units import fmt_time


def odds_data(c: Comparison) -> dict[str, Any] | None:
    """Return the content of result.json for the uncertainty; None if it was not computed."""
    if c.odds is None:
        return None
    o = c.odds
    return {
        "baseline": o.pair[0],
        "rival": o.pair[1],
        "draws": DRAWS,
        "seed": c.options.seed,
        "constants_drawn": o.drawn,
        "share_a_draw": [list(group) for group in TOGETHER],
        "energy_ratio": {
            law: {
                scope: {
                    "typical": a.typical,
                    "probability_rival_takes_less": a.probability,
                    "standard_error": a.error,
                    "quantiles_5_50_95": list(a.quantiles),
                }
                for scope, a in answers.items()
            }
            for law, answers in o.answers.items()
        },
        "host_power_where_the_winner_changes": [
            {
                "keys": list(x.keys),
                "watts": None if x.watts is None else list(x.watts),
                "takes_less_below": x.below,
                "takes_less_above": x.above,
                "quantiles_5_50_95": None if x.quantiles is None else list(x.quantiles),
                "ranges_watts": [[y / 1e3 for y in bounds(c.cfg, key)] for key in x.keys],
            }
            for x in o.crossings
        ],
        "tornado": [
            {
                "key": b.key,
                "low": b.low,
                "typical": shown(c.cfg.leaf(b.key).value, c.cfg.leaf(b.key).unit),
                "high": b.high,
                "source": c.cfg.leaf(b.key).source,
                "energy_ratio_drive_and_host": _rounded(b.energy),
                "energy_ratio_drive": _rounded(b.drive),
                "speedup": _rounded(b.speedup),
            }
            for b in o.bars
        ],
    }


def _rounded(ends: Ends) -> list[float | None]:
    return [None if x is None else rounded(x) for x in ends]


SCHEMA_VERSION = 1
LATENCY_BOUND = 0.5


UNUSUAL = 0.2
"""Relative deviation from the median time of forward and backward above which a note is given."""


def seconds(value: float) -> str:
    """Format seconds with three digits and a suitable unit."""
    return fmt_time(value * 1e12)


def speedup(base: Result, rival: Result) -> float:
    """Return the time of the baseline's update stage over that of the rival."""
    assert base.ledger is not None and rival.ledger is not None
    return base.ledger.update_s / rival.ledger.update_s


def update_speedup(c: Comparison, r: Result) -> float | None:
    """Return the time of the baseline's update stage over that of a path.

    None if there is no baseline, or the two stages are not of the same kind.
    """
    base = c.result(c.swing_pair[0]) if c.swing_pair else None
    if base is None or not r.updates_weights or r.ledger is None or not r.ledger.update_s:
        return None
    return speedup(base, r)


def energy_ratio(base: Result, rival: Result) -> float:
    """Return the typical energy of drive and host outside forward and backward, baseline over
    rival."""
    assert base.energy is not None and rival.energy is not None
    return base.energy.storage_and_host[1] / rival.energy.storage_and_host[1]


def headline_words(c: Comparison) -> str:
    """Return one sentence with the result and the number of assumed constants."""
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
    """Return the ratios of baseline to rival; empty if there are not two paths to compare.

    Times of the update stage, of the step outside forward and backward, and of the whole step;
    typical energies outside forward and backward, and of the whole step.
    """
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
    """Return the mean seconds of a step outside forward and backward."""
    spent = book.phases_s
    return book.step_s - spent.get("forward", 0.0) - spent.get("backward", 0.0)


def metrics(c: Comparison, r: Result) -> dict[str, dict[str, Any]]:
    """Return the metrics of a path, per step: name -> value and unit."""
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
    """Return the content of result.json."""
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
    """Return the path options for result.json, without HIDDEN (the seed is stored separately)."""
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
    """Return the wear of the blocks reserved for a path; None if it has none or did not run."""
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


def notes(c: Comparison) -> list[str]:
    """Return the notes on the whole comparison."""
    words = nominal.note(c.cfg.leaf(nominal.CAPACITY)), unusual(c)
    return [note for note in words if note is not None]


def unusual(c: Comparison) -> str | None:
    """Return a note if forward and backward of the steps that ran take an unusual time.

    The reference is the median of the recorded steps. The first step of a run differs, for example,
    while the accelerator warms up. None if the deviation is at most UNUSUAL.
    """
    every = [s.forward_s + s.backward_s for s in c.trace.steps]
    ran, usual = sum(every[: c.steps]) / c.steps, float(np.median(every))
    if not usual or abs(ran / usual - 1) <= UNUSUAL:
        return None
    which = "the first step" if c.steps == 1 else f"the first {c.steps} steps, on average,"
    return (
        f"forward and backward: {which} took {seconds(ran)}, the median of the {len(every)} "
        f"recorded is {seconds(usual)} (--steps {len(every)} runs all of them)"
    )
