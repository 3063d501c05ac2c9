"""Does the measurement of a guest's speed run? Nothing judges its figures, which
tests/bench/guest_speed.py prints."""

import pytest

from tests.bench import guest_speed
from tests.live import guest_qemu
from tests.live.pcie_guest import OURS, QEMUS

pytestmark = pytest.mark.soak


def test_a_short_run(capsys):
    if why := guest_qemu.why_not():
        pytest.skip(why)
    found = guest_speed.measure(rounds=1, seconds=0.5)
    assert found.scheduler.startswith("[none]")
    assert set(found.rates) == {OURS, guest_speed.COALESCED, QEMUS, guest_speed.SECOND}
    assert all(len(rates) == 1 and rates[0] > 0 for rates in found.rates.values())
    guest_speed.show(found)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and "doorbell buffers" in lines[2]
    assert found.ratios(QEMUS) == [1.0]
