"""Does each fitted constant of Stannis, HyperTune, the tunnel and Smart-Infinity decide its fit
rows, and no check row? (fitted.py)

Labels need no large runs: HyperTune has FEW runs instead of TRIALS, and Smart-Infinity 1 / SMALLER
of its parameters and pinned buffers; its rates are the same, and its times are multiplied by
SMALLER.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from ondie.emu.analysis.row import CHECK, IDENTITY, Row
from ondie.emu.config.config import load_preset
from ondie.emu.validate import hypertune, smart_infinity, stannis, tunnel
from tests.fidelity import fitted

SMALLER, FEW = 20, 4


def stannis_rows() -> list[Row]:
    """The parts with fit or check rows."""
    cfg = load_preset("newport")
    return [row for part in (stannis._tuning, stannis._speedups, stannis._energy)
            for row in part(cfg)]  # fmt: skip


def hypertune_rows() -> list[Row]:
    parts = (hypertune.three_rows, hypertune.laguna_rows, hypertune.shufflenet_rows)
    return [row for part in parts for row in part()]


def smart_rows() -> list[Row]:
    """The rows of the fit run and of the baseline, by every published number of drives."""
    fit = smart_infinity.Case()
    over = {n: dataclasses.replace(fit, drives=n) for n in smart_infinity.BASE_SPEED}
    jobs = [(v, fit) for v in smart_infinity.PATHS] + [("base", case) for case in over.values()]
    found = smart_infinity.simulate_all(list(dict.fromkeys(jobs)), None)
    rows = smart_infinity.case_rows(fit, {v: found[v, fit] for v in smart_infinity.PATHS})
    totals = {n: found["base", case].total for n, case in over.items()}
    return rows + smart_infinity.base_rows(totals, fit)


PARTS: dict[str, fitted.Part] = {
    "stannis": stannis_rows,
    "hypertune": hypertune_rows,
    "tunnel": lambda: list(tunnel.fit_rows()),
    "smart-infinity": smart_rows,
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(hypertune, "TRIALS", FEW)
    simulate = smart_infinity.simulate

    def smaller(variant: str, case: smart_infinity.Case) -> smart_infinity.Times:
        times = simulate(variant, dataclasses.replace(case, params=case.params // SMALLER))
        return smart_infinity.Times(*(SMALLER * s for s in times[:3]), times.link)

    monkeypatch.setattr(smart_infinity, "simulate", smaller)
    monkeypatch.setattr(smart_infinity, "BUFFERS", smart_infinity.BUFFERS // SMALLER)


LONG = ("hypertune", "smart-infinity")
"""Parts whose runs take minutes."""


def marked(parts: Iterable[str]) -> list[Any]:
    """The parts as parameters of a test; LONG runs at full counts only."""
    return [pytest.param(p, marks=[pytest.mark.soak] * (p in LONG)) for p in parts]


@pytest.mark.parametrize("part", marked(PARTS))
def test_a_fitted_constant_decides_its_fit_rows_and_no_check_row(part):
    assert fitted.constants(PARTS[part]()), "no fit row names a constant"
    assert fitted.faults(PARTS[part]) == []


DECIDED = {
    "stannis": {
        "energy with 8 Newports": "host.compute_power",
        "energy with 16 Newports": "host.compute_power",
    },
    "hypertune": {
        "6 cores taken: batch": "contention.THREE_2_LEFT",
        "36 Lagunas: energy per image, host alone / host and Lagunas": "energy.controller",
    },
    "smart-infinity": {f"base: total, 4.0 B, {n} drives, adam": "host.adam" for n in (4, 8, 10)},
}
"""Identities that are published and that one constant decides."""


@pytest.mark.parametrize("part", marked(DECIDED))
def test_a_decided_row_that_is_named_check_is_found(part):
    decided = DECIDED[part]

    def wrong() -> list[Row]:
        rows = PARTS[part]()
        assert {row.name for row in rows if row.kind == IDENTITY} >= set(decided)
        return [dataclasses.replace(r, kind=CHECK) if r.name in decided else r for r in rows]

    found = fitted.faults(wrong, lambda constant: constant in decided.values())
    named = {(constant, name) for name, constant in decided.items()}
    assert named == {_parts(text) for text in found}


def _parts(fault: str) -> tuple[str, str]:
    """The constant and the row of a fault."""
    return fault.partition(" x ")[0], fault.partition("'")[2].partition("'")[0]
