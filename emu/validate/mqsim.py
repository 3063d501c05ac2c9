"""MQSim's results compared with the simulation's: `ondie validate mqsim`.

Owns the rows of this suite. Does not own the cases (mqsim_cases.py) or the simulation of MQSim's
files (replay/mqsim/). Source: MQSim (A. Tavakkol et al., FAST 2018), its files and results.
"""

from __future__ import annotations

from pathlib import Path

from ondie.emu.analysis.row import CHECK, Progress, Row
from ondie.emu.units import InputError


def cases_folder() -> Path | None:
    """Return the folder of the MQSim cases in this checkout; None if the package is installed
    without them."""
    folder = Path(__file__).resolve().parent.parent.parent / "tests" / "fidelity" / "mqsim"
    return folder if (folder / "cases.json").is_file() else None


def find_cases(cases: Path | None = None) -> Path:
    """Return the folder of the MQSim cases: ``cases``, or the folder in this checkout if ``cases``
    is None.

    Raises InputError if ``cases`` is None and the package is installed without cases.
    """
    folder = cases or cases_folder()
    if folder is None:
        raise InputError("mqsim: this installation has no MQSim cases; use --cases DIR")
    return folder


def mqsim_rows(progress: Progress, cases: Path | None = None, runs: str = "both") -> list[Row]:
    """Return rows that compare MQSim's results with the simulation's, by run and by request.

    ``cases``: folder of cases (mqsim_cases.py); None selects the folder of the checkout. ``runs``:
    addresses of the requests, "recorded", "own" or "both"; cases without recorded requests run only
    with addresses that this simulator draws ("own"). Raises InputError if there are no cases, or if
    ``runs`` is "recorded" and no case has recorded requests.
    """
    from ondie.emu.replay.mqsim.to_engine import simulate
    from ondie.emu.validate import mqsim_cases as mq

    folder = find_cases(cases)
    found = mq.read_cases(folder)
    if runs == "recorded":
        found = [case for case in found if case.recorded is not None]
        if not found:
            raise InputError(f"{folder}: no case has recorded requests; use --own")
    rows = []
    for at, case in enumerate(found):
        if progress is not None:
            progress("mqsim", at / len(found))
        made = []
        if runs != "own" and case.recorded is not None:
            made += mq.run_recorded(case, simulate)
        if runs != "recorded":
            made += mq.run_own(case, simulate)
        source = (
            f"{case.name}: {case.description}; MQSim (A. Tavakkol et al., FAST 2018); "
            f"{case.tolerance.reason}"
        )
        place = f"MQSim's result of case {case.name}, cases.json"
        rows += [
            Row(
                "mqsim", f"{row.case}, {row.run}: {row.name}",
                row.kind, row.theirs, row.ours, row.unit, row.tolerance, source,
                place if row.kind == CHECK else "",
            )
            for row in made
        ]  # fmt: skip
    return rows
