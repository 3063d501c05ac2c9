"""Sweep: one comparison for every combination of values of one or two keys (configuration keys, or
the format).

Owns the values, the sequence of runs, the rows and the content of sweep.json. Does not own a
comparison (analysis/compare.py), the metrics of a path (analysis/result_json.py), the meaning of a
value (config/schema/) or the figure (cli/figures/sweep.py).
Source: this project.

A row is the result of one path in `ondie compare --set KEY=VALUE --no-swing`, or in `ondie compare
--format VALUE --no-swing` if the key is the format. If a path cannot run with a value, the row
states the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

from ondie.emu.analysis.compare import Comparison, compare
from ondie.emu.analysis.result_json import SCHEMA_VERSION, metrics, options_data
from ondie.emu.analysis.step_budget import Verdict, verdicts
from ondie.emu.config import nominal_capacity
from ondie.emu.config.config import Config, shown
from ondie.emu.config.leaf import Value, override
from ondie.emu.config.loader import key_of, split_overrides
from ondie.emu.paths.base import Options
from ondie.emu.paths.layout import formats
from ondie.emu.units import InputError
from ondie.traces import Trace

MOST_KEYS = 2
MOST_POINTS = 64
ALL_PATHS = "all"
"""Path name in the row of a sweep point at which no path can run."""
REF = "given on the command line"
OPTIONS = {"format": formats.checked}
"""Sweep keys that are options of the paths instead of configuration keys. Each has a function that
checks a value."""


@dataclass(frozen=True)
class Axis:
    """One axis of a sweep.

    ``key``: key that varies along the axis, a configuration key or a key of OPTIONS. ``values``:
    values of the key. ``texts``: the values as text, with units.
    """

    key: str
    values: tuple[Value, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class SweepRow:
    """Result of one path at one point of a sweep. If the path cannot run at this point, ``reason``
    states why, and the fields after ``reason`` are None."""

    values: tuple[str, ...]
    """Values of the axes at this point, as texts, in the order of the axes."""
    path: str
    reason: str | None = None
    update_s: float | None = None
    update_share: float | None = None
    """Time of the update stage divided by the time of the step; None if the path cannot run at this
    point."""
    step_s: float | None = None
    speedup: float | None = None
    """Speedup of the update stage over serial host offload at the same point; None if the two paths
    cannot be compared."""
    energy_drive_j: tuple[float, float, float] | None = None
    """Energy of the drives per step in J, excluding forward and backward: (low, typical, high).
    None if the path cannot run at this point."""
    energy_drive_and_host_j: tuple[float, float, float] | None = None
    """Energy of drives and host per step in J, excluding forward and backward: (low, typical,
    high). None if the path cannot run at this point."""
    samples_per_s: float | None = None
    energy_step_j: tuple[float, float, float] | None = None
    """Energy per step in J, including forward and backward: (low, typical, high). None if the path
    cannot run at this point."""
    energy_sample_j: tuple[float, float, float] | None = None
    """Energy per sample in J, including forward and backward: (low, typical, high). None if the
    path cannot run at this point, or if a step has no samples."""
    bound_by: str | None = None
    bound_by_share: float | None = None
    target: Verdict | None = None
    capacity_bytes: int | None = None
    """Nominal capacity of a drive at this point, bytes; derived from the flash geometry unless the
    configuration states it."""


@dataclass(frozen=True)
class Sweep:
    """All rows of a sweep, and its inputs."""

    cfg: Config
    """Configuration of the drive. Neither this configuration nor ``options`` contains the values of
    the axes."""
    trace: Trace
    options: Options
    steps: int
    axes: tuple[Axis, ...]
    rows: tuple[SweepRow, ...]
    target_s: float | None


def axes(texts: Sequence[str], cfg: Config) -> tuple[Axis, ...]:
    """Return the axes that the arguments ``key=a,b,c`` of --sweep define, in order.

    Raises InputError for an unknown key, a missing value, a value of the wrong type, a key or value
    that is named twice, more than MOST_KEYS keys, or more than MOST_POINTS points.
    """
    if len(texts) > MOST_KEYS:
        raise InputError(f"--sweep: {len(texts)} keys are given; use at most {MOST_KEYS}")
    for text in texts:
        if "=" not in text:
            raise InputError(
                f"--sweep {text!r}: the values are missing; write for example "
                "host.io_queue_depth=1,8,32"
            )
    chosen = [text for text in texts if text.partition("=")[0].strip() in OPTIONS]
    try:
        named = split_overrides([text for text in texts if text not in chosen], cfg.records)
    except InputError as error:
        raise InputError(str(error).replace("--set ", "--sweep ", 1)) from error
    for text in chosen:
        choice, _, values_of = (part.strip() for part in text.partition("="))
        if choice in named:
            raise InputError(f"--sweep {text}: {choice} is named twice; name it once")
        named[choice] = values_of
    order = [text.partition("=")[0].strip() for text in texts]
    found = []
    for name, listed in sorted(named.items(), key=lambda item: item[0] not in order[:1]):
        place = f"--sweep {name}"
        parts = [part.strip() for part in str(listed).split(",")]
        if not all(parts):
            raise InputError(f"{place}={listed}: a value is empty; write for example {name}=a,b")
        values, shows = _values(name, parts, place)
        for i, value in enumerate(values):
            if value in values[:i]:
                raise InputError(f"{place}: {parts[i]!r} is named twice; name it once")
        found.append(Axis(name, values, shows))
    points = len(list(itertools.product(*(axis.values for axis in found))))
    if points > MOST_POINTS:
        raise InputError(
            f"--sweep: {points} points; at most {MOST_POINTS} are allowed, so give fewer values"
        )
    return tuple(found)


def _values(
    name: str, parts: Sequence[str], place: str
) -> tuple[tuple[Value, ...], tuple[str, ...]]:
    """Return the values of the sweep key ``name`` that the texts ``parts`` state, and the values as
    texts with units. ``place``: start of the error messages."""
    if name in OPTIONS:
        try:
            names = tuple(OPTIONS[name](part) for part in parts)
        except InputError as error:
            raise InputError(f"--sweep {error}") from error
        return names, names
    leaves = [override(key_of(name)[0], name, part, place, REF) for part in parts]
    return tuple(leaf.value for leaf in leaves), tuple(
        shown(leaf.value, leaf.unit) for leaf in leaves
    )


def sweep(
    trace: Trace,
    cfg: Config,
    along: tuple[Axis, ...],
    *,
    paths: Sequence[str] | None = None,
    options: Options | None = None,
    steps: int | None = None,
    target_s: float | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Sweep:
    """Run a comparison at every combination of the values of the axes ``along``, and return the
    sweep. ``target_s``: target step time in seconds, or None. Raises InputError if no path can run
    at any combination."""
    rows: list[SweepRow] = []
    options = options or Options()
    n_steps = 0
    for at in itertools.product(*(range(len(axis.values)) for axis in along)):
        texts = tuple(axis.texts[i] for axis, i in zip(along, at, strict=True))
        changes = {axis.key: axis.values[i] for axis, i in zip(along, at, strict=True)}
        if (
            cfg.leaf(nominal_capacity.CAPACITY).source == "set"
        ):  # a given capacity holds at every point
            changes.setdefault(nominal_capacity.CAPACITY, cfg.system.capacity_bytes)
        choices: dict[str, Any] = {name: changes.pop(name) for name in OPTIONS if name in changes}

        def watch(name: str, share: float, texts: tuple[str, ...] = texts) -> None:
            if progress is not None:
                progress(f"{', '.join(texts)}: {name}", share)

        try:
            comparison = compare(
                trace, cfg.replace(changes, ref=REF), paths=paths, strict=False, steps=steps,
                options=replace(options, **choices), swing=False, progress=watch,
            )  # fmt: skip
        except InputError as error:
            rows.append(SweepRow(texts, ALL_PATHS, str(error)))
            continue
        n_steps = comparison.steps
        rows += _rows(comparison, texts, target_s)
    if not n_steps:
        raise InputError(f"--sweep: no path can run at any point: {rows[0].reason}")
    return Sweep(cfg, trace, options, n_steps, along, tuple(rows), target_s)


def _rows(comparison: Comparison, texts: tuple[str, ...], target_s: float | None) -> list[SweepRow]:
    judged = (
        {}
        if target_s is None
        else {verdict.path: verdict for verdict in verdicts(comparison, target_s)}
    )
    out = []
    for result in comparison.results:
        if result.ledger is None or result.energy is None:
            out.append(SweepRow(texts, result.name, result.reason))
            continue
        values = {name: entry["value"] for name, entry in metrics(comparison, result).items()}
        drive, both, whole = (
            (
                values[f"energy_{of}_low_j"],
                values[f"energy_{of}_typical_j"],
                values[f"energy_{of}_high_j"],
            )
            for of in ("drive", "drive_and_host", "all")
        )
        each = values["samples_per_step"]
        out.append(
            SweepRow(
                texts, result.name, None, values["update_s"], values["update_share"],
                values["step_s"], values["update_speedup"], drive, both,
                values["samples_per_s"], whole,
                (whole[0] / each, whole[1] / each, whole[2] / each) if each else None,
                values["bound_by"], values["bound_by_share"], judged.get(result.name),
                comparison.cfg.system.capacity_bytes,
            )
        )  # fmt: skip
    return out


def data(found: Sweep) -> dict[str, Any]:
    """Return the content of sweep.json for a sweep."""
    return {
        "schema_version": SCHEMA_VERSION,
        "ondie_version": version("ondie"),
        "seed": found.options.seed,
        "trace": {
            "name": found.trace.name,
            "sha256": found.trace.sha256,
            "n_params": found.trace.n_params,
            "op": found.trace.op,
            "steps": found.steps,
        },
        "options": options_data(found.options),
        "configuration": found.cfg.resolved(),
        "configuration_sha256": found.cfg.sha256,
        "keys": [axis.key for axis in found.axes],
        "values": [list(axis.texts) for axis in found.axes],
        "target_step_s": found.target_s,
        "rows": [asdict(row) for row in found.rows],
    }
