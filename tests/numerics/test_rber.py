"""Do raw bit error rates follow the published formula and the published crossings?"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy.optimize import brentq

from ondie.emu.config.config import load_preset, preset_names
from ondie.emu.config.schema.flash import CELLS
from ondie.emu.nand import rber

LIMIT = 8.5e-3
TLC = load_preset("newport").replace({"errors.kind": "model"})
C = rber.rates(TLC)[0]
CYCLES = some.integers(0, 100_000)
DAYS = some.floats(0, 3650)
READS = some.integers(0, 10**8)


def rate(cycles=0, days=0.0, reads=0, scale=1.0, c=C):
    """The bit error rate of the first read of a page."""
    leak, pressure = rber.leak_rate(c, cycles), rber.pressure_rate(c, cycles)
    shifted = rber.shifted_rate(c, leak, pressure, days, reads)
    return rber.total_rate(rber.stable_rate(c, cycles), shifted, scale)


def crossing(cycles):
    """The days after which a page reaches LIMIT."""
    return brentq(lambda days: rate(cycles, days) - LIMIT, 0, 3650)


def constants(**changes):
    made = np.array(rber.rates(TLC)).view(np.recarray)
    for name, value in changes.items():
        made[name] = value
    return made[0]


# --- published numbers


def test_a_new_block():
    """FAST 2019, 72-layer TLC: epsilon = 1.48e-3 and nothing else."""
    assert rate() == 1.48e-3


def test_wear():
    """1.48e-3 + 3.9e-10 x 1000^2.05 = 1.48e-3 + 3.9e-10 x 1.41254e6 = 2.0309e-3."""
    assert rate(1000) == pytest.approx(2.0309e-3, rel=1e-4)


@pytest.mark.parametrize(("cycles", "days"), [(0, 17), (500, 10)])
def test_crossings_that_were_fitted(cycles, days):
    """RiF, HPCA 2024: the limit of 8.5e-3 is reached after 17 days at 0 P/E and 10 at 500.

    0: (8.5e-3 - 1.48e-3)/1.52e-3 = 4.6184, ^(1/0.54) = 17.00. 500: wear 1.33e-4, leak 1.52e-3 x
    (1 + 500/1630) = 1.9863e-3, (7.02e-3 - 1.33e-4)/1.9863e-3 = 3.4673, ^(1/0.54) = 10.00.
    """
    assert crossing(cycles) == pytest.approx(days, rel=1e-3)
    assert rate(cycles, float(days)) == pytest.approx(LIMIT, rel=1e-3)


def test_the_crossing_that_was_not():
    """Check: 14 days at 200 P/E. Predicted 1.52e-3 x (1 + 200/1630) = 1.7065e-3, wear 2.03e-5,
    6.9997e-3/1.7065e-3 = 4.1018, ^(1/0.54) = 13.65: 2.5 % early, 14 in whole days."""
    predicted = crossing(200)
    assert predicted == pytest.approx(13.65, abs=0.01)
    assert round(predicted) == 14


def test_pslc_is_below_its_published_bound():
    """OptimStore, HPCA 2023: below 1e-8; 6.7e-6 x 1.48e-3 = 9.92e-9."""
    pslc = rber.scales(TLC)[CELLS.index("pSLC"), 0]
    assert rate(scale=pslc) == pytest.approx(9.916e-9, rel=1e-3)
    assert rate(scale=pslc) < 1e-8


def test_mlc_floor_is_that_of_2y_nm_mlc():
    """0.056 x 1.48e-3 = 8.29e-5; FAST 2019: 8.34e-5."""
    mlc = np.nanmax(rber.scales(TLC)[CELLS.index("MLC")])
    assert rate(scale=mlc) == pytest.approx(8.34e-5, rel=0.01)


@pytest.mark.parametrize(("cycles", "days", "reads"), [(3000, 90, 10**5), (1000, 1, 10**3)])
def test_the_power_law_of_fast_2019_is_a_special_case(cycles, days, reads):
    """2y-nm MLC as published: epsilon + alpha c^k + beta c^m t^n + gamma c^p r^q. The model has
    (1 + c)^m, at 1000 cycles 0.25 % more."""
    e, alpha, beta, gamma = 8.34e-5, 3.30e-11, 5.56e-19, 6.26e-13
    k, m, n, p, q = 1.71, 2.49, 3.33, 1.76, 0.47
    c = constants(
        floor=e, wear=alpha, wear_exponent=k, retention=beta, retention_cycles=1,
        retention_cycles_exponent=m, retention_exponent=n, disturb=gamma,
        disturb_cycles_exponent=p, disturb_exponent=q, disturb_reads=1,
    )  # fmt: skip
    published = e + alpha * cycles**k + beta * cycles**m * days**n + gamma * cycles**p * reads**q
    assert rate(cycles, float(days), reads, c=c) == pytest.approx(published, rel=3e-3)


def test_read_disturb():
    """A million reads of a block after 1000 cycles: 3.73e-9 x 1000^0.33 x 1000^1.71 = 3.73e-9 x
    1000^2.04 = 4.917e-3 more."""
    assert rate(1000, 0.0, 10**6) - rate(1000) == pytest.approx(4.917e-3, rel=1e-3)


def test_without_errors_every_rate_is_zero():
    c = rber.rates(load_preset("newport"))[0]
    assert rate(3000, 365.0, 10**8, c=c) == 0.0 == rber.stable_rate(c, 0)


# --- page types and modes


@pytest.mark.parametrize("coding", ["balanced", "binary"])
def test_reference_voltages_are_the_gaps_between_levels(coding):
    """2**bits levels have 2**bits - 1 gaps; a Gray code puts each into one page."""
    for bits, voltages in enumerate(rber.REFERENCES[coding], 1):
        assert len(voltages) == bits and sum(voltages) == 2**bits - 1


def test_page_types_share_errors_by_reference_voltages():
    table = rber.scales(TLC)
    assert table.shape == (5, 4)
    tlc = table[CELLS.index("TLC")]
    assert tlc[:3].tolist() == [2 / 3, 1.0, 2 / 3] and math.isnan(tlc[3])
    binary = rber.scales(TLC.replace({"errors.coding": "binary"}))
    assert binary[CELLS.index("TLC"), :3].tolist() == [0.25, 0.5, 1.0]
    assert binary[CELLS.index("QLC")].tolist() == [0.375, 0.75, 1.5, 3.0]
    pages = (~np.isnan(table)).sum(axis=1)
    assert pages.tolist() == [rber.BITS[cell] for cell in CELLS]


@pytest.mark.parametrize("name", preset_names())
def test_more_bits_per_cell_more_errors(name):
    worst = dict(zip(CELLS, np.nanmax(rber.scales(load_preset(name)), axis=1), strict=True))
    assert worst["SLC"] <= worst["pSLC"] < worst["MLC"] < worst["TLC"] < worst["QLC"]


# --- shape


@given(CYCLES, DAYS, READS, some.integers(1, 10_000), some.floats(1e-3, 100), READS)
def test_age_never_helps(cycles, days, reads, more_cycles, more_days, more_reads):
    here = rate(cycles, days, reads)
    assert 1.48e-3 <= here <= 0.5
    assert rate(cycles + more_cycles, days, reads) >= here
    assert rate(cycles, days + more_days, reads) >= here
    assert rate(cycles, days, reads + more_reads) >= here


@given(CYCLES, DAYS, READS)
def test_the_parts_make_the_whole(cycles, days, reads):
    """What the engine keeps per block and per page, put together."""
    shifted = rber.shifted_rate(
        C, rber.leak_rate(C, cycles), rber.pressure_rate(C, cycles), days, reads
    )
    stable = rber.stable_rate(C, cycles)
    assert rate(cycles, days, reads, 0.25) == min(0.5, 0.25 * (stable + shifted))


@given(some.floats(0, 0.1), some.floats(0, 0.5), some.floats(0, 1), some.integers(0, 40))
def test_a_retry_leaves_its_share_of_the_shift(stable, shifted, gain, level):
    got = rber.retry_rate(stable, shifted, 1.0, gain, level)
    assert got == pytest.approx(min(0.5, stable + shifted * gain**level), rel=1e-12)
    assert got >= min(0.5, stable)
    assert rber.retry_rate(stable, shifted, 1.0, gain, level + 1) <= got


@given(CYCLES, DAYS, READS)
def test_uncompiled_is_the_same(cycles, days, reads):
    leak, pressure = rber.leak_rate(C, cycles), rber.pressure_rate(C, cycles)
    assert rber.stable_rate.py_func(C, cycles) == rber.stable_rate(C, cycles)
    assert rber.leak_rate.py_func(C, cycles) == leak
    assert rber.pressure_rate.py_func(C, cycles) == pressure
    assert rber.shifted_rate.py_func(C, leak, pressure, days, reads) == rber.shifted_rate(
        C, leak, pressure, days, reads
    )
    stable, shifted = rber.stable_rate(C, cycles), rber.shifted_rate(C, leak, pressure, days, reads)
    assert rber.total_rate.py_func(stable, shifted, 0.5) == rber.total_rate(stable, shifted, 0.5)
