"""Content of result.json: the numbers of a comparison with their units, and the headline.

Owns names and units of the stored values. Does not own their descriptions (result_keys.py), tables
or figures (ondie.emu.cli).
Source: this project.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np

from ondie.emu.analysis.answer import answer
from ondie.emu.analysis.compare import Comparison, Result
from ondie.emu.analysis.energy import bounds
from ondie.emu.analysis.error_notes import wrong_data, wrong_words
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
from ondie.emu.config import nominal_capacity
from ondie.emu.config.config import shown
from ondie.emu.paths.base import Options
from ondie.emu.units import fmt_time


def odds_data(comparison: Comparison) -> dict[str, Any] | None:
    """Return the uncertainty of the energy ratio for result.json; None if it was not computed."""
    if comparison.odds is None:
        return None
    odds = comparison.odds
    return {
        "baseline": odds.pair[0],
        "rival": odds.pair[1],
        "draws": DRAWS,
        "seed": comparison.options.seed,
        "constants_drawn": odds.drawn,
        "share_a_draw": [list(group) for group in TOGETHER],
        "energy_ratio": {
            law: {
                scope: {
                    "typical": answer.typical,
                    "probability_rival_takes_less": answer.probability,
                    "standard_error": answer.error,
                    "quantiles_5_50_95": list(answer.quantiles),
                }
                for scope, answer in answers.items()
            }
            for law, answers in odds.answers.items()
        },
        "host_power_where_the_winner_changes": [
            {
                "keys": list(crossing.keys),
                "vary": crossing.vary,
                "watts": None if crossing.watts is None else list(crossing.watts),
                "takes_less_below": crossing.below,
                "takes_less_above": crossing.above,
                "quantiles_5_50_95": None
                if crossing.quantiles is None
                else list(crossing.quantiles),
                "ranges_watts": [
                    [milliwatts / 1e3 for milliwatts in bounds(comparison.cfg, key)]
                    for key in crossing.keys
                ],
            }
            for crossing in odds.crossings
        ],
        "tornado": [
            {
                "key": bar.key,
                "low": bar.low,
                "typical": shown(
                    comparison.cfg.leaf(bar.key).value, comparison.cfg.leaf(bar.key).unit
                ),
                "high": bar.high,
                "source": comparison.cfg.leaf(bar.key).source,
                "energy_ratio_drive_and_host": _rounded(bar.energy),
                "energy_ratio_drive": _rounded(bar.drive),
                "energy_ratio_step": _rounded(bar.step),
                "speedup": _rounded(bar.speedup),
            }
            for bar in odds.bars
        ],
    }


def _rounded(ends: Ends) -> list[float | None]:
    return [None if value is None else rounded(value) for value in ends]


SCHEMA_VERSION = 1
LATENCY_BOUND = 0.5


UNUSUAL = 0.2
"""Relative deviation of the time of forward and backward in the simulated steps from the median of
all recorded steps, above which a note is added."""


def seconds(value: float) -> str:
    """Return a time given in seconds as text, with three significant digits and a suitable unit."""
    return fmt_time(value * 1e12)


def speedup(base: Result, rival: Result) -> float:
    """Return the speedup: time of the baseline's update stage divided by that of the rival."""
    assert base.ledger is not None and rival.ledger is not None
    return base.ledger.update_s / rival.ledger.update_s


def update_speedup(comparison: Comparison, result: Result) -> float | None:
    """Return the speedup of a path's update stage over that of the baseline.

    Returns None if there is no baseline, or if the two stages cannot be compared.
    """
    base = comparison.result(comparison.swing_pair[0]) if comparison.swing_pair else None
    if (
        base is None
        or not result.updates_weights
        or result.ledger is None
        or not result.ledger.update_s
    ):
        return None
    return speedup(base, result)


def energy_ratio(base: Result, rival: Result) -> float:
    """Return the typical energy of ``base`` divided by the typical energy of ``rival``. Both are
    energies of the drives and the host, excluding the forward and backward passes."""
    assert base.energy is not None and rival.energy is not None
    return base.energy.storage_and_host[1] / rival.energy.storage_and_host[1]


def headline_words(comparison: Comparison) -> str:
    """Return the headline: one sentence with the ratios of the two compared paths and the number of
    assumed constants."""
    assumed = len(comparison.cfg.assumed())
    tail = f"{assumed} of {len(comparison.cfg.leaves())} constants are assumed"
    if comparison.swing_pair is None:
        return f"No two update paths to compare; {tail}."
    base, rival = (comparison.result(name) for name in comparison.swing_pair)
    assert base is not None and rival is not None
    ratios = headline_numbers(comparison)
    words = (
        f"{rival.name} compared with {base.name}: speedup of the update stage "
        f"{ratios['update_stage']:.2f}x, of the time outside forward and backward "
        f"{ratios['outside_training']:.2f}x, of the whole step {ratios['step']:.2f}x; energy "
        f"divided by {ratios['energy_outside_training']:.2f} outside forward and backward, by "
        f"{ratios['energy']:.2f} in the whole step; "
        f"{tail}"
    )
    for result in (base, rival):
        assert result.ledger is not None
        used = wrong_words(*wrong_data(result.ledger.totals, comparison.steps))
        words += f"; the result of {result.name} is wrong, with {used}" if used else ""
    if comparison.swings:
        fast = max(comparison.swings, key=lambda swing: swing.speedup_width)
        lean = max(comparison.swings, key=lambda swing: swing.energy_width)
        words += (
            f"; the speedup is most sensitive to {fast.key} (x {fast.speedup_width:.2f}), the "
            f"energy to {lean.key} (x {lean.energy_width:.2f})"
        )
    return words + "."


def headline_numbers(comparison: Comparison) -> dict[str, float]:
    """Return the ratios of the headline, baseline divided by rival, by name; an empty dictionary if
    the headline does not compare two paths.

    Ratios of times: update stage, time outside forward and backward, whole step. Ratios of typical
    energies: outside forward and backward, whole step.
    """
    if comparison.swing_pair is None:
        return {}
    base, rival = (comparison.result(name) for name in comparison.swing_pair)
    assert base is not None and rival is not None
    assert base.ledger is not None and rival.ledger is not None
    assert base.energy is not None and rival.energy is not None
    outside = [
        outside_training_s(result.ledger) for result in (base, rival) if result.ledger is not None
    ]
    return {
        "update_stage": speedup(base, rival),
        "outside_training": outside[0] / outside[1],
        "step": base.ledger.step_s / rival.ledger.step_s,
        "energy_outside_training": energy_ratio(base, rival),
        "energy": base.energy.all[1] / rival.energy.all[1],
    }


def outside_training_s(book: Ledger) -> float:
    """Return the mean time per step outside forward and backward, in seconds."""
    spent = book.phases_s
    return book.step_s - spent.get("forward", 0.0) - spent.get("backward", 0.0)


def metrics(comparison: Comparison, result: Result) -> dict[str, dict[str, Any]]:
    """Return the metrics of a path by name, each as {"value": ..., "unit": ...}. Times, bytes,
    operations and energies are means per step."""
    assert result.ledger is not None and result.energy is not None and result.work is not None
    book, totals, steps = result.ledger, result.ledger.totals, comparison.steps
    counters = totals.counters
    written, worn = (
        programmed_bytes(totals) / steps,
        lifetime(comparison.cfg, book, result.updates_weights),
    )
    array = counters["array_reads"] + counters["array_programs"] + counters["array_erases"]
    name, share = book.bound_by()
    out: dict[str, tuple[Any, str]] = {
        "step_s": (book.step_s, "s"),
        "samples_per_step": (book.samples, "samples"),
        "samples_per_s": (book.samples / book.step_s, "samples/s"),
        "update_s": (book.update_s, "s"),
        "update_share": (book.update_share, "1"),
        "update_speedup": (update_speedup(comparison, result), "1"),
        "overlapped_s": (book.overlapped_s, "s"),
        "update_params_per_s": (
            comparison.trace.n_params / book.update_s if book.update_s else None,
            "param/s",
        ),
        "link_bytes": ((totals.bytes_by["link down"] + totals.bytes_by["link up"]) / steps, "B"),
        "link_down_bytes": (totals.bytes_by["link down"] / steps, "B"),
        "link_up_bytes": (totals.bytes_by["link up"] / steps, "B"),
        "channel_bytes": (
            (totals.bytes_by["channels in"] + totals.bytes_by["channels out"]) / steps,
            "B",
        ),
        "flash_written_bytes": (written, "B"),
        "tunnel_bytes": (counters["tunnel_bytes"] / steps, "B"),
        "tunnel_commands": (counters["tunnel_commands"] / steps, "operations"),
        "drive_dram_bytes": (totals.bytes_by["DRAM"] / steps, "B"),
        "host_dram_bytes": (result.work.host_dram_bytes / steps, "B"),
        "host_relay_cpu_s": (
            totals.busy_sum_ps.get("host relay", 0)
            * comparison.cfg.tunnel.relay_threads
            / steps
            / PS_PER_S,
            "s",
        ),
        "host_cpu_busy_s": (
            sum(ps for (_, name), ps in totals.worked_ps.items() if name == "host CPU")
            / steps
            / PS_PER_S,
            "s",
        ),
        "page_operations": (book.page_operations / steps, "pages"),
        "array_operations": (array / steps, "operations"),
        "erased_blocks": (counters["erased_blocks"] / steps, "blocks"),
        "most_erases_of_a_super_block": (totals.erases[1], "erases"),
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
        out[f"drives_power_{end}_w"] = (result.drives_w(steps)[i], "W")
    for group, span in (
        ("drive", result.energy.drive),
        ("drive_and_host", result.energy.storage_and_host),
        ("all", result.energy.all),
    ):
        for end, value in zip(("low", "typical", "high"), span, strict=True):
            out[f"energy_{group}_{end}_j"] = (value / steps, "J/step")
            if book.samples:
                out[f"energy_{group}_{end}_j_per_sample"] = (
                    value / steps / book.samples,
                    "J/sample",
                )
    return {key: {"value": value, "unit": unit} for key, (value, unit) in out.items()}


def result_data(comparison: Comparison, seed: int, target_s: float | None = None) -> dict[str, Any]:
    """Return the content of result.json for a comparison. ``target_s``: target step time in
    seconds, or None."""
    asked = {} if target_s is None else {"target": target_data(comparison, target_s)}
    return asked | {
        "schema_version": SCHEMA_VERSION,
        "ondie_version": version("ondie"),
        "seed": seed,
        "trace": {
            "name": comparison.trace.name,
            "sha256": comparison.trace.sha256,
            "payload": comparison.trace.payload,
            "timing_source": comparison.trace.timing_source,
            "op": comparison.trace.op,
            "n_params": comparison.trace.n_params,
            "steps": comparison.steps,
        },
        "options": options_data(comparison.options),
        "step_times": {
            "rule": comparison.step_times.rule,
            "text": comparison.step_times.text,
            "flop_per_s": comparison.step_times.flop_per_s,
        },
        "configuration": comparison.cfg.resolved(),
        "configuration_sha256": comparison.cfg.sha256,
        "assumed": {
            "count": len(comparison.cfg.assumed()),
            "of": len(comparison.cfg.leaves()),
            "headline": list(comparison.swing_pair) if comparison.swing_pair else None,
            "sample_params": sample_params(comparison.trace, comparison.cfg)
            if comparison.swings
            else None,
            "swing": [_swing_data(swing) for swing in comparison.swings],
            "unfelt": list(unfelt(comparison.cfg)) if comparison.swings else [],
        },
        "uncertainty": odds_data(comparison),
        "answer": answer(comparison).data(),
        "headline": headline_words(comparison),
        "headline_ratios": headline_numbers(comparison),
        "notes": notes(comparison),
        "paths": [_path_data(comparison, result) for result in comparison.results],
    }


HIDDEN = ("seed", "pairs", "shares")


def options_data(options: Options) -> dict[str, Any]:
    """Return the options of the paths for result.json, except those in HIDDEN, which are internal
    or stored elsewhere. result.json contains the seed under a separate key."""
    return {name: value for name, value in asdict(options).items() if name not in HIDDEN}


def _swing_data(swing: Swing) -> dict[str, Any]:
    return {
        "key": swing.key,
        "low": swing.low,
        "high": swing.high,
        "speedup_factor_at_low": swing.speedup_at_low,
        "speedup_factor_at_high": swing.speedup_at_high,
        "energy_factor_at_low": swing.energy_at_low,
        "energy_factor_at_high": swing.energy_at_high,
    }


def _reservoir_data(comparison: Comparison, result: Result) -> dict[str, Any] | None:
    """Return the lifetime and erases of the blocks that only this path uses, for result.json; None
    if the path has no such blocks or did not run."""
    if result.ledger is None or result.share is None:
        return None
    own = lifetime(comparison.cfg, result.ledger, share=result.share).reservoir_steps or (
        None,
        None,
    )
    erases = {
        name: dict(zip(("least", "mean", "most"), its, strict=True))
        for name, its in spread(result.ledger.totals.worn).items()
    }
    return {
        "lifetime_steps": {"levelled": own[0], "as_laid_out": own[1]},
        "planes": result.share.planes,
        "planes_in_use": result.share.used,
        "fullest_die_over_mean": result.share.as_laid_out / result.share.mean if own[1] else None,
        "change_of_roles": {
            "seconds": result.share.turn_s,
            "steps_between": result.share.turn_steps,
        }
        if result.share.rotate and own[1]
        else None,
        "erases_of_a_plane": erases["plane"],
        "erases_of_a_die": erases["die"],
    }


def _path_data(comparison: Comparison, result: Result) -> dict[str, Any]:
    if (
        result.ledger is None or result.energy is None or result.bound is None
        or result.work is None
    ):  # fmt: skip
        return {
            "name": result.name,
            "title": result.title,
            "status": "n/a",
            "reason": result.reason,
        }
    weights = result.weights
    return {
        "name": result.name,
        "title": result.title,
        "status": "ok",
        "metrics": metrics(comparison, result),
        "notes": list(result.notes),
        "sampled": result.sampled
        and {"params": result.sampled.params, "error": result.sampled.error},
        "phases_s": result.ledger.phases_s,
        "overlaps_s": [
            {"phase": later, "beside": earlier, "seconds": took}
            for (later, earlier), took in result.ledger.overlaps().items()
        ],
        "utilisation_of_update": result.ledger.utilisation("update"),
        "arithmetic": {
            "seconds": result.bound.seconds,
            "bottleneck": result.bound.name,
            "text": result.bound.text,
        },
        "reservoir": _reservoir_data(comparison, result),
        "counters": dict(result.ledger.totals.counters),
        "planned": dict(result.ledger.totals.planned),
        "host_dram_bytes_per_step": {
            part.name: part.n_bytes / comparison.steps for part in result.work.host_dram
        },
        "energy_j_per_step": {
            name: [value / comparison.steps for value in span]
            for name, span in result.energy.by_component.items()
        },
        "weights": None
        if weights is None
        else {
            "equal_bits_to_reference": weights.equal_bits,
            "elements": weights.elements,
            "equal_bits_at_host": weights.delivered_equal_bits,
            "distance_to_recorded_units": weights.recorded_distance,
            "equal_bits_to_recorded_share": weights.recorded_equal_share,
        },
    }


def notes(comparison: Comparison) -> list[str]:
    """Return the notes that concern the whole comparison instead of a single path."""
    words = (
        f"forward and backward: {comparison.step_times.text}",
        nominal_capacity.note(comparison.cfg.leaf(nominal_capacity.CAPACITY)),
        unusual(comparison),
    )
    return [note for note in words if note is not None]


def unusual(comparison: Comparison) -> str | None:
    """Return a note if forward and backward of the simulated steps took an unusual time, else None.

    The time is unusual if it deviates by more than the fraction UNUSUAL from the median of all
    recorded steps. For example, the first step of a recording is slower because the accelerator
    warms up.
    """
    every = [
        step_record.forward_s + step_record.backward_s for step_record in comparison.trace.steps
    ]
    ran, usual = sum(every[: comparison.steps]) / comparison.steps, float(np.median(every))
    if not usual or abs(ran / usual - 1) <= UNUSUAL:
        return None
    which = (
        "of the first step"
        if comparison.steps == 1
        else f"of the first {comparison.steps} steps, on average,"
    )
    return (
        f"forward and backward {which} took {seconds(ran)}; the median of the {len(every)} "
        f"recorded steps is {seconds(usual)} (--steps {len(every)} runs all of them)"
    )
