"""Tables of a comparison, as `ondie compare --verbose` prints them.

Owns titles, columns, units and captions. Does not own any number.
Source: this project's rule that results contain no time of day, file path, wall time or measurement
of this host.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ondie.emu.analysis.compare import Comparison, Result
from ondie.emu.analysis.lifetime import (
    RATED_RETENTION,
    RESERVOIR_RETENTION,
    RETENTION,
    cycles,
    gain,
    lifetime,
    spread,
)
from ondie.emu.analysis.result_json import (
    LATENCY_BOUND,
    headline_words,
    metrics,
    notes,
    seconds,
    update_speedup,
)
from ondie.emu.analysis.sensitivity import idle_rules, sample_params, unfelt
from ondie.emu.analysis.step_budget import target_table, verdicts
from ondie.emu.config.config import Config
from ondie.emu.paths.offload.path import HostOffload, PipelinedOffload
from ondie.emu.results.tables.energy_uncertainty import odds_table, odds_words
from ondie.emu.units import fmt_bytes, fmt_count, fmt_energy, fmt_update_rate, plural

PHASE_TITLES = {
    "samples": "samples",
    "forward": "forward",
    "backward": "backward",
    "levelling": "wear leveling",
    "gradients": "gradients",
    "synchronise": "gradient exchange",
    "update": "update",
    "weights_up": "weights to host",
}
SELDOM = ("levelling",)
"""Phases of a step whose column is omitted if no path (update strategy) has them."""
UNEVEN = 1e-4
"""Threshold of the note on uneven wear of the reservoir: relative difference between the die with
the most wear and the mean over the dies. Larger differences are noted."""
SHOWN_SWINGS = 8
"""Maximum number of constants in the table that states how much each constant changes the result.
"""


def joules(span: tuple[float, float, float], steps: int) -> str:
    """Return the energy per step as text of two lines: the typical value, then "low .. high".

    ``span``: (low, typical, high) energy (J) of ``steps`` steps.
    """
    low, typical, high = (fmt_energy(x / steps * 1e15) for x in span)
    return f"{typical}\n{low} .. {high}"


def bound_words(result: Result) -> str:
    """Return the bottleneck of the simulated update stage as text: the busiest resource class and
    its utilization, or "latency" if no class is busy enough.
    """
    assert result.ledger is not None
    name, share = result.ledger.bound_by()
    if share < LATENCY_BOUND:
        return f"latency ({name} {share:.0%})"
    return f"{name} {share:.0%}"


def tables(c: Comparison) -> list[Table]:
    """Return all tables of a comparison, in order."""
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
        f"{c.trace.n_params:,} parameters{stored}, {c.trace.op}, mean of {plural(c.steps, 'step')}",
        "path", "step", "samples/s", "update stage", "rate", "speedup", "energy, drive",
        "energy, drive + host", "bound by",
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
            fmt_count(book.samples / book.step_s),
            seconds(book.update_s),
            fmt_update_rate(rate),
            "" if faster is None else f"{faster:.2f}x",
            joules(r.energy.drive, c.steps),
            joules(r.energy.storage_and_host, c.steps),
            bound_words(r),
        )
    powers = ", ".join(
        f"{r.name} {r.drives_w(c.steps)[1]:.3g} W" for r in c.results if r.ledger is not None
    )
    table.caption = (
        "Update stage: first gradient byte down (host offload: first state read) to last program. "
        "Speedup: of that stage.\nEnergy: per step, excluding forward and backward; second line: "
        "all constants at the low .. high end of their ranges.\n"
        f"Mean power of all drives over the whole step: {powers}."
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
        f"{PHASE_TITLES[later]} concurrent with {PHASE_TITLES[earlier]}: {', '.join(who)}"
        for (later, earlier), who in pairs.items()
    ]
    words.append(
        "Update share: update and gradient exchange as a share of the step. Overlap: time in "
        "which two phases run concurrently."
    )
    table.caption = "\n".join(words)
    return table


def _spent(value: float | None) -> str:
    """Return the seconds of a phase as text: "hidden" if an earlier phase overlaps all of it, "-"
    for None."""
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
    span = "low .. high" if reserved else f"{low:,.0f} .. {high:,.0f} cycles"
    table = _table(
        f"Lifetime and capacity: {drives}{fmt_bytes(c.cfg.system.capacity_bytes)} of {f.cell}, "
        f"rated for {typical:,.0f} cycles{aside}",
        "path", "written per step", "lifetime (steps)", "lifetime (years)",
        f"years, {span}", "states on flash", "share of drive", "TLC capacity as pSLC",
    )  # fmt: skip
    for r in c.results:
        if r.ledger is None:
            continue
        x = lifetime(c.cfg, r.ledger, r.updates_weights, r.share)
        worn = ["-"] * 3
        if x.steps is not None and x.years is not None:
            years = [fmt_count(y) for y in x.years]
            worn = [fmt_count(x.steps[1]), years[1], f"{years[0]} .. {years[2]}"]
        held = ["-"] * 3
        if x.state_bytes:
            held = [fmt_bytes(x.state_bytes), f"{x.share:.2%}", fmt_bytes(x.pslc_bytes)]
        table.add_row(r.name, fmt_bytes(x.written_bytes), *worn, *held)
    words = [
        f"Written bytes include write amplification. A year has 8,760 hours. "
        f"{_cycle_words(c.cfg, RETENTION)}.",
        "TLC capacity as pSLC: states stored in pSLC mode take three times their size in TLC.",
    ]
    if reserved:
        words.append(f"In the reservoir: {_cycle_words(c.cfg, RESERVOIR_RETENTION)}.")
    if c.result("on_die") is not None:
        words.append(
            "These lifetimes assume even wear of all blocks. on_die only writes its reservoir "
            f"({c.cfg.ftl.reservoir_fraction:.0%} of the drive) and has this share of the lifetime "
            "if no block leaves the reservoir."
        )
    words += [_wear_words(c, r) for r in c.results if r.share is not None]
    table.caption = " ".join(words)
    return table


def _cycle_words(cfg: Config, key: str) -> str:
    """Return a phrase on the rated program/erase cycles, and on their increase at the retention
    that configuration key ``key`` requires.
    """
    leaf, need, rated = (cfg.leaf(k) for k in ("flash.endurance_cycles", key, RATED_RETENTION))
    words = f"Cycles: {leaf.ref}; rated for a retention of {rated.value}"
    factor = gain(cfg, str(need.value), str(rated.value))[1]
    if factor == 1:
        return words
    return f"{words}, x {factor:.3g} at {need.value} ({need.ref})"


def _wear_words(c: Comparison, r: Result) -> str:
    """Return sentences on the lifetime of a path's reservoir, with and without wear leveling, and
    on the erases in the run.
    """
    assert r.ledger is not None and r.share is not None
    share, own = r.share, lifetime(c.cfg, r.ledger, share=r.share).reservoir_steps
    if own is None:
        return ""
    how, why = [], []
    if share.rotate:
        how.append(f"planes rotate roles every {share.rotate:,} cycles")
    if share.migrate:
        how.append(f"super-pages move between dies that differ by {share.migrate:,} cycles")
    if share.used < share.planes:
        why.append(f"{share.planes - share.used} of {share.planes} planes are idle")
    uneven = share.as_laid_out / share.mean - 1
    if uneven > UNEVEN:
        why.append(f"the fullest die is {uneven:.3%} above the mean")
    words = f"The reservoir of {r.name} alone lasts {fmt_count(own[1])} steps as laid out"
    if why:
        words += f" ({', '.join(why)})"
    if how:
        words += f", {fmt_count(own[0])} if {' and '.join(how)}"
    if share.rotate:
        each = fmt_count(share.turn_steps)
        words += f"; a rotation takes {seconds(share.turn_s)}, once in {each} steps"
    found = spread(r.ledger.totals.worn)
    if not found["die"][2]:
        return f"{words}. No block of the reservoir was erased in the run."
    spans = [
        f"{found[name][0]:,} .. {found[name][1]:,.3g} .. {found[name][2]:,} per {name}"
        for name in ("plane", "die")
    ]
    return f"{words}. Erases in the run, min .. mean .. max: {', '.join(spans)}."


def _arithmetic(c: Comparison) -> Table:
    table = _table(
        "Update stage compared with a closed form of its bottleneck",
        "path", "simulated", "closed form", "difference", "bottleneck", "formula",
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
            f"{gap:+z.1%}",
            r.bound.name,
            r.bound.text,
        )
    return table


def _weights(c: Comparison) -> Table:
    table = _table(
        f"Weights after {plural(c.steps, 'step')} through the emulated pages",
        "path", "equal to the reference", "arrived at the host", "distance to recorded (max)",
        "bit-identical to recorded",
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
        f"Ratios of {base} to {rival} with one assumed constant at an end of its range, relative\n"
        f"to the typical ratios, largest change first (sample of "
        f"{sample_params(c.trace, c.cfg):,} parameters)",
        "assumed constant", "low", "high", "speedup at low", "at high", "energy ratio at low",
        "at high",
    )  # fmt: skip
    for s in c.swings[:SHOWN_SWINGS]:
        cells = (s.speedup_at_low, s.speedup_at_high, s.energy_at_low, s.energy_at_high)
        table.add_row(s.key, s.low, s.high, *("n/a" if x is None else f"x {x:.3f}" for x in cells))
    notes = []
    if any(swing.fails for swing in c.swings[:SHOWN_SWINGS]):
        notes.append("n/a: a path cannot run with this value; such constants are listed first")
    rest = c.swings[SHOWN_SWINGS:]
    if rest:
        most = max(s.width for s in rest)
        notes.append(f"{len(rest)} more constants change either ratio by at most {most - 1:.1%}")
        if fails := sum(swing.fails for swing in rest):
            notes.append(f"for {fails} of these, a path cannot run at one end of the range")
    idle = set(unfelt(c.cfg))
    for rule in idle_rules(c.cfg):
        covered = {key for key in idle if rule.covers(key)}  # each counts with one rule
        idle -= covered
        if covered:
            reason = f"{rule.key} = {rule.value}"
            notes.append(f"{len(covered)} constants have no effect because {reason}")
    path = (PipelinedOffload if rival == PipelinedOffload.name else HostOffload)(
        c.cfg, c.trace, c.options
    )
    if path.lone_part(sample_params(c.trace, c.cfg)):
        notes.append("the sample fits in one sub-group, so its stages are not pipelined")
    table.caption = "; ".join(notes) or None
    return table


def remarks(c: Comparison) -> list[str]:
    """Return the notes on the comparison and on individual paths (update strategies), such as the
    reason why a path did not run."""
    out = notes(c)
    out += [f"{r.name}: n/a: {r.reason}" for r in c.results if r.reason is not None]
    out += [f"{r.name}: {note}" for r in c.results for note in r.notes]
    return out + [
        f"{r.name}: the timeline omits {r.dropped:,} intervals"
        for r in c.results
        if r.timeline is not None and r.dropped
    ]


def show(c: Comparison, console: Console, target_s: float | None = None) -> None:
    """Print all tables of a comparison, the notes and the headline."""
    for i, table in enumerate(tables(c)):
        console.print(table)
        for line in remarks(c) if i == 0 else ():
            console.print(line)
        console.print()
    if c.odds is not None:
        console.print(odds_words(c.odds) + "\n")
    if target_s is not None:
        show_target(c, target_s, console)
    console.print(headline_words(c))


def show_target(c: Comparison, target_s: float, console: Console) -> None:
    """Print the table that states for each path (update strategy) whether the drive is fast enough
    for a step of ``target_s`` seconds."""
    console.print(target_table(verdicts(c, target_s), target_s, _table("", "path")))
    console.print()
