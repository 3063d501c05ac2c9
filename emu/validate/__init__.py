"""Validation: rows that compare the simulation with published numbers and closed forms.

Owns the list of suites and the runner. Does not own the row format and its tables (analysis/row.py)
or the suites themselves. Source: the papers and programs that each row names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ondie.emu.analysis.row import CHECK, FIT, SHOWN, Progress, Row, show, tables
from ondie.emu.units import InputError, known_names
from ondie.emu.validate.closed_forms import closed_form_rows
from ondie.emu.validate.drives import drives_rows
from ondie.emu.validate.ecc import ecc_rows
from ondie.emu.validate.hypertune import hypertune_rows
from ondie.emu.validate.mqsim import cases_folder, find_cases, mqsim_rows
from ondie.emu.validate.ndpipe import ndpipe_rows
from ondie.emu.validate.nvme_bytes import traffic_rows
from ondie.emu.validate.optimstore import optimstore_rows
from ondie.emu.validate.smart_infinity import smart_infinity_rows
from ondie.emu.validate.stannis import stannis_rows
from ondie.emu.validate.synthetic_models import SAMPLE_PARAMS, model
from ondie.emu.validate.tunnel import tunnel_rows
from ondie.emu.validate.update_rates import rate_rows
from ondie.emu.validate.zero_infinity import zero_rows

__all__ = [
    "CHECK", "FIT", "NAMED", "SAMPLE_PARAMS", "SHOWN", "SUITES", "Named", "Progress", "Row",
    "model", "cases_folder", "mqsim_rows", "run", "show", "tables",
]  # fmt: skip

SUITES: dict[str, Callable[[Progress], list[Row]]] = {
    "bytes": traffic_rows,
    "closed-forms": closed_form_rows,
    "rates": rate_rows,
}
"""Functions that return the rows of a suite, keyed by the name of the suite. These suites run if no
suite is named."""


@dataclass(frozen=True)
class Named:
    """Suite that `ondie validate` runs only if the user names the suite or "all" (ALL).

    ``rows``: function (progress, **options) that returns the rows. ``options``: names of the
    options. ``ready``: function that raises InputError if files needed by the suite are missing.
    """

    rows: Callable[..., list[Row]]
    options: tuple[str, ...] = ()
    ready: Callable[[], object] = lambda: None


ALL = "all"
"""Suite name with which `ondie validate` runs every suite of SUITES and of NAMED."""
NAMED: dict[str, Named] = {
    "mqsim": Named(mqsim_rows, ("cases", "runs"), find_cases),
    "zero": Named(zero_rows),
    "smart-infinity": Named(smart_infinity_rows, ("model", "drives", "optimizer", "compression")),
    "optimstore": Named(optimstore_rows),
    "stannis": Named(stannis_rows),
    "hypertune": Named(hypertune_rows),
    "tunnel": Named(tunnel_rows, ("live",)),
    "drives": Named(drives_rows),
    "ecc": Named(ecc_rows, ("full",)),
    "ndpipe": Named(ndpipe_rows, ("network",)),
}


def run(
    name: str | None, progress: Progress = None, options: Mapping[str, Any] | None = None
) -> list[Row]:
    """Run one suite, or all of SUITES if ``name`` is None, or every suite if ``name`` is ALL;
    return the rows.

    ``options``: options of a suite in NAMED. Raises InputError for an unknown name, or if options
    are given and the suite has none. With ALL, raises InputError before any suite runs if files
    that a suite needs are missing.
    """
    if name in NAMED:
        return NAMED[name].rows(progress, **(options or {}))
    if name is not None and name not in SUITES and name != ALL:
        known = [*SUITES, *NAMED, ALL]
        raise InputError(
            f"ondie validate {name}: there is no such suite; {known_names(name, known)}"
        )
    if options:
        command = f"ondie validate {name}" if name else "ondie validate"
        raise InputError(
            f"{command}: accepts no options, but {', '.join(options)} was given; suites with "
            f"options: {', '.join(s for s, named in NAMED.items() if named.options)}"
        )
    if name == ALL:
        _check_ready()
    rows: list[Row] = []
    for suite in SUITES if name in (None, ALL) else [name]:
        rows += SUITES[suite](progress)
    if name == ALL:
        for named in NAMED.values():
            rows += named.rows(progress)
    return rows


def _check_ready() -> None:
    """Raise InputError if files that a suite of NAMED needs are missing."""
    for suite, named in NAMED.items():
        try:
            named.ready()
        except InputError as error:
            raise InputError(
                f"ondie validate {ALL}: nothing was run, because {suite} cannot run: {error}; run "
                "the other suites by name"
            ) from error
