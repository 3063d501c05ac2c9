"""Command and address cycles by data interface: sums by hand, sources, and what the engine does
with them.
"""

import numpy as np
import pytest

from ondie.emu.nand import onfi, timing
from ondie.emu.nand.timing import CYCLE_NAMES, command_cycles
from ondie.emu.units import InputError
from tests.timing import harness as h
from tests.timing.flash import Flash
from tests.timing.harness import NS, US

PLANES = {"flash__planes_per_die": 4}


def cycles(interface, **changes):
    """{name: ns for 0..4 planes}."""
    cfg = Flash(flash__interface=interface, **PLANES | changes).cfg
    table = command_cycles(cfg)
    return {name: (table[i] / NS).tolist() for i, name in enumerate(CYCLE_NAMES)}


def test_mqsim():
    """Read: tCS 20 + 6 x tWC 25 + tWB 100 + tRR 20 = 290, each further plane tDBSY 500 + 6 tWC.
    Program: 20 + 150 + tADL 70 + tWPST 6 + tWPSTH 15 + 100 = 361, each further plane 816. Erase:
    20 + 4 tWC + 100 = 220, each further plane 700. Suspend: 20 + 3 tWC = 95."""
    got = cycles("MQSim")
    assert got["READ"] == [0, 290, 940, 1590, 2240]
    assert got["PROGRAM"] == [0, 361, 1177, 1993, 2809]
    assert got["ERASE"] == [0, 220, 920, 1620, 2320]
    assert got["COPYBACK"] == got["READ"] and got["COPYBACK_IN"] == got["PROGRAM"]
    assert got["SUSPEND"] == [0, 95, 95, 95, 95]
    assert set(got["RESUME"] + got["STATUS"] + got["OUT_FIRST"] + got["OUT_NEXT"]) == {0}


def test_fixed():
    """t_command per plane; one for what addresses the die; data out state their whole time."""
    got = cycles("fixed")
    assert got["READ"] == got["PROGRAM"] == got["ERASE"] == [0, 100, 200, 300, 400]
    assert got["ODC"][1:] == got["SUSPEND"][1:] == got["RESUME"][1:] == [100] * 4
    assert set(got["OUT_FIRST"] + got["OUT_NEXT"]) == {0}


@pytest.mark.parametrize("interface", ["NV-DDR2", "NV-DDR3", "NV-LPDDR4"])
def test_onfi(interface):
    """At 800 MT/s tRC is 2.5 ns.

    Read: tCS 20 + (00h, 5, 30h) 7 x 25 + tWB 100 = 295; a further plane 175 + tWB 100 + tDBSY 500.
    Program: 295 + tADL 400 + tWPRE 15 + tWPST 6.5 + tWPSTH 15 = 731.5, a further plane 1211.5.
    Erase: 20 + (60h, 3, D0h) 125 + 100 = 245, a further plane 725.
    Data out: tCS2 40 + tRR 20 + tRPRE 15 + (tDQSRE 25 + tRC/2 1.25) + tRPSTH 15 = 116.25; behind a
    read of several planes (06h, 5, E0h) 175 + tCCS 400 + tRHW 100 more for each.
    Status: 20 + (78h, 3) 100 + tWHR 80 + 15 + 2.5 + 26.25 + 15 = 258.75. Suspend: 20 + 100 + 100.
    """
    got = cycles(interface, flash__bus="800 MT/s")
    assert got["READ"] == got["COPYBACK"] == [0, 295, 1070, 1845, 2620]
    assert got["PROGRAM"] == [0, 731.5, 1943, 3154.5, 4366]
    assert got["ERASE"] == [0, 245, 970, 1695, 2420]
    assert got["COPYBACK_IN"] == got["READ"]
    assert got["OUT_FIRST"][1:] == [116.25] * 4
    assert got["OUT_NEXT"][1:] == [675] * 4
    assert got["STATUS"][1:] == [258.75] * 4
    assert got["SUSPEND"][1:] == got["RESUME"][1:] == [220] * 4


def test_the_busy_time_between_planes():
    """tDBSY passes once less than there are planes."""
    for interface in ("NV-DDR3", "MQSim"):
        long = cycles(interface, flash__t_plane_busy="1 us")
        short = cycles(interface, flash__t_plane_busy="500 ns")
        for op in ("READ", "PROGRAM", "ERASE"):
            assert np.subtract(long[op], short[op]).tolist() == [0, 0, 500, 1000, 1500]


def test_the_timing_mode_shows_in_the_postamble_alone():
    """tRC/2 is 5 ns at 200 MT/s and 0.4165 (rounded down to 0.416) at 2400."""
    slow, fast = cycles("NV-DDR3", flash__bus="200 MT/s"), cycles("NV-DDR3", flash__bus="2400 MT/s")
    assert slow["READ"] == fast["READ"] and slow["PROGRAM"] == fast["PROGRAM"]
    assert slow["OUT_FIRST"][1] - fast["OUT_FIRST"][1] == pytest.approx(5 - 0.416)


@pytest.mark.parametrize(
    "interface, most", [("NV-DDR2", 800), ("NV-DDR3", 2400), ("NV-LPDDR4", 3600)]
)
def test_rates_that_an_interface_does_not_have(interface, most):
    assert cycles(interface, flash__bus=f"{most} MT/s")["READ"][1] == 295
    with pytest.raises(InputError, match=rf"flash\.bus = {most + 1} MT/s: {interface} .* {most} "):
        cycles(interface, flash__bus=f"{most + 1} MT/s")


def test_every_constant_has_a_source():
    for table in (onfi.NUMBERS, onfi.MQSIM):
        for name, number in table.items():
            assert name.startswith("t") and number.ps > 0
            assert len(number.source) > 20
            assert (number.low < 0) == (number.high < 0)
            assert number.low < 0 or number.low <= number.ps <= number.high


def test_the_engine_takes_them():
    """NV-DDR3 at 1000 MT/s (tRC/2 = 1 ns). Read: 0.295 + 10 + 4.096 + 0.116. Program: 0.7315 +
    4.096 + 50. Erase: 0.245 + 300. Both planes: 1.07 + 10, and for each page 4.096 + 0.116 +
    0.675."""
    ddr = {"flash__interface": "NV-DDR3"}
    f = Flash(**ddr)
    f.assert_ready_at(f.read(), 295 * NS + h.READ + h.BUS + 116 * NS)
    f = Flash(**ddr)
    f.assert_ready_at(f.program(), 731_500 + h.BUS + h.PROGRAM)
    f = Flash(**ddr)
    f.assert_ready_at(f.erase(), 245 * NS + h.ERASE)
    f = Flash(**ddr)
    first, second = f.read(plane=0, page=1), f.read(plane=1, page=1)
    page = h.BUS + 791 * NS
    f.assert_ready_at(first, 1070 * NS + h.READ + page)
    f.assert_ready_at(second, 1070 * NS + h.READ + 2 * page)
    f = Flash(**ddr)
    f.assert_ready_at(f.read(planes=0b11), 1070 * NS + h.READ + 2 * page)


def test_suspending_and_resuming_take_cycles_of_their_own():
    """A read at 20 suspends a program (array since 4.8275): 0.22 + 0.295 + 10 + 4.096 + 0.116, then
    0.22 and the rest. A status read ends it."""
    f = Flash(flash__interface="NV-DDR3", flash__suspend="program", flash__status="read")
    program, read = f.program(), f.read(at=20 * US)
    done = 20 * US + 220 * NS + 295 * NS + h.READ + h.BUS + 116 * NS
    left = 731_500 + h.BUS + h.PROGRAM - 20 * US
    status = int(command_cycles(f.cfg)[timing.STATUS, 1])
    assert status == 20 * NS + 100 * NS + 80 * NS + 15 * NS + 2 * NS + 26 * NS + 15 * NS
    assert f.ends(program, read) == [done + 220 * NS + left + status, done]
