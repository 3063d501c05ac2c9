"""Does each fitted constant decide its fit rows, and no check row? (fitted.py)"""

import dataclasses

import pytest

from ondie.emu import validate
from ondie.emu.analysis.row import CHECK, FIT, IDENTITY, SHOWN, Row
from ondie.emu.config.config import load_preset
from ondie.emu.validate import optimstore, update_rates
from tests.fidelity import fitted
from tests.suites import suite

OPTIMSTORE = (optimstore._published, optimstore._iteration, optimstore._lifetime)
"""The parts of the suite with fit or check rows."""


def optimstore_r1() -> list[Row]:
    cfg = load_preset("optimstore-r1")
    return [row for part in OPTIMSTORE for row in part(cfg)]


PARTS: dict[str, fitted.Part] = {
    "rates": lambda: update_rates.rate_rows(None),
    "optimstore": optimstore_r1,
}
"""Parts of suites with fit rows, small enough to run once per constant."""


@pytest.mark.parametrize(
    "part",
    [part if part == "rates" else pytest.param(part, marks=pytest.mark.soak) for part in PARTS],
)
def test_a_fitted_constant_decides_its_fit_rows_and_no_check_row(part, monkeypatch, counts):
    monkeypatch.setattr(optimstore, "PARAMS", counts(1 << 24, optimstore.PARAMS))
    assert fitted.constants(PARTS[part]()), "no fit row names a constant"
    assert fitted.faults(PARTS[part]) == []


def labels(rows: list[Row]) -> list[str]:
    """The rows that do not say what their kind must say."""
    return [
        f"{row.kind} {row.name}"
        for row in rows
        if (row.kind == CHECK and not (row.place and row.tolerance is not None and row.source))
        or (row.kind == FIT) != bool(row.constants)
    ]


CHEAP = ("bytes", "closed-forms", "rates", "zero", "stannis", "tunnel", "optimstore", "ndpipe")
"""Suites of seconds."""


@pytest.mark.parametrize("name", CHEAP)
def test_checks_name_their_place_and_fits_their_constants(name):
    rows = suite(name)
    assert rows and labels(rows) == []


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted({*validate.SUITES, *validate.NAMED} - {*CHEAP}))
def test_every_check_names_its_place_and_every_fit_its_constants(name):
    assert labels(suite(name)) == []


# --- does the test find a wrong label?


def test_a_check_without_a_place_is_found_and_a_place_of_others_is_right():
    check = of("check", CHECK, 3.0)
    assert labels([check, dataclasses.replace(check, kind=SHOWN)]) == []
    assert labels([dataclasses.replace(check, place="")]) == ["check check"]
    assert labels([dataclasses.replace(check, source="")]) == ["check check"]


def of(name: str, kind: str, predicted: float, **more) -> Row:
    more = {"place": "a paper, Table 1"} if kind == CHECK else more
    return Row("fake", name, kind, 1.0, predicted, "s", 0.1, "a paper", **more)


def fake(*others: Row, constant: str = "host.adam"):
    """A part with one fit row, which the rate of CPU Adam decides."""

    def part() -> list[Row]:
        rate = load_preset("optimstore-r1").leaf("host.adam").value
        rows = [of("fit", FIT, 7.0 * rate, constants=(constant,))]
        return rows + [
            dataclasses.replace(row, predicted=row.predicted * rate**power) for row, power in others
        ]

    return part


def test_true_labels_have_no_fault():
    rows = ((of("check", CHECK, 3.0), 0), (of("identity", IDENTITY, 3.0), 1))
    assert fitted.faults(fake(*rows)) == []


@pytest.mark.parametrize("power", [1, -1])
def test_a_check_row_that_the_fit_decides_is_found(power):
    """The same factor, or a time beside a rate."""
    (fault,) = fitted.faults(fake((of("check", CHECK, 3.0), power)))
    assert fault.startswith("host.adam x 1.2: check row 'check' moves by ")


@pytest.mark.parametrize("power", [0.5, 2])
def test_a_check_row_that_moves_otherwise_is_none(power):
    assert fitted.faults(fake((of("check", CHECK, 3.0), power))) == []


def test_a_wrong_constant_is_found():
    (fault,) = fitted.faults(fake(constant="flash.t_erase"))
    assert fault == "flash.t_erase x 1.2: fit row 'fit' moves by 1.0000 only"


def test_a_constant_of_a_module_is_scaled_and_restored():
    def part() -> list[Row]:
        return [of("fit", FIT, optimstore.UPDATE_SHARE, constants=("optimstore.UPDATE_SHARE",))]

    assert fitted.faults(part) == []
    with fitted.scaled("optimstore.UPDATE_SHARE"):
        assert optimstore.UPDATE_SHARE == pytest.approx(0.93 * 1.2)
    assert optimstore.UPDATE_SHARE == 0.93


def test_a_constant_that_does_not_exist_is_an_error():
    with pytest.raises(AssertionError, match="0 modules have it"):
        fitted.faults(fake(constant="optimstore.NO_SUCH"))
    with pytest.raises(AssertionError, match="0 modules have it"):
        fitted.faults(fake(constant="host.adams"))
