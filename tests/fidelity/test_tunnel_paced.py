"""Is a paced tunnel as fast as the cost model says, and never faster?"""

import time
from types import SimpleNamespace

import pytest

from ondie.emu.analysis.row import IDENTITY, SHOWN
from ondie.emu.config.config import load_preset
from ondie.emu.nvme.tunnel.cost import DOWN, UP, TunnelCost
from ondie.emu.nvme.tunnel.framing import READ_HEADER
from ondie.emu.nvme.tunnel.pace import SLACK_PS, Pace
from ondie.emu.validate import tunnel_paced
from ondie.emu.validate.tunnel import PAPERS
from ondie.emu.validate.tunnel_paced import HEADROOM, paced_rows, stream

SETTINGS = [
    (),
    ("tunnel.notification=burst",),
    ("tunnel.outstanding=4",),
    ("tunnel.relay_command=200 us",),
    ("tunnel.payload=64 KiB",),
]


def cost_of(preset: str, *settings: str) -> TunnelCost:
    return TunnelCost.of(load_preset(preset, settings))


@pytest.mark.parametrize("way", [UP, DOWN])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("preset", PAPERS)
def test_a_long_message_takes_the_time_of_the_model(preset, settings, way):
    cost, size = cost_of(preset, *settings), 10**7
    pace = Pace(cost)
    message = cost.upward(size) if way == UP else cost.downward(size)
    blocks, carried = message.received + message.written, message.wire
    block = carried // blocks
    now = 0
    for _ in range(blocks):
        now = pace.due(block, 0, now) if way == UP else pace.due(0, block, now)
    # with several commands in flight, tasks wait for the relay's thread, which a rate leaves out
    assert now == pytest.approx(message.end_ps, rel=0.01 if cost.up.outstanding == 1 else 0.04)


def test_a_late_block_is_followed_at_once_until_the_schedule_is_met():
    pace = Pace(cost_of("newport"))
    period = pace.period(DOWN, 4096)
    assert pace.due(0, 4096, 10**12) == 10**12 + period
    late = 10**12 + 9 * period + period // 2
    dues = [pace.due(0, 4096, late) for _ in range(10)]
    assert dues[:8] == [late] * 8 and dues[8:] == [10**12 + 10 * period, 10**12 + 11 * period]
    idle = 2 * 10**12
    assert idle - dues[-1] > SLACK_PS and pace.due(0, 4096, idle) == idle + period


def test_directions_are_apart_and_empty_commands_take_no_time():
    pace = Pace(cost_of("laguna"))
    down = pace.due(0, 4096, 10**12)
    up = pace.due(4096, 0, 10**12)
    assert up == 10**12 + pace.period(UP, 4096 - READ_HEADER) != down
    assert pace.due(READ_HEADER, 0, 10**12) == pace.due(0, 0, 10**12) == 10**12


def test_a_block_that_has_not_waited_gets_no_credit_and_a_real_host_takes_its_own_time():
    cost = cost_of("laguna")
    pace, now = Pace(cost, host=False), 10**12
    crossing = -(-4096 * 10**12 // cost.down.link)
    assert pace.period(DOWN, 4096) == crossing < Pace(cost).period(DOWN, 4096)
    assert pace.due(0, 4096, now, ready=now) == now + crossing
    soon = now + 3 * crossing  # the link was idle for two blocks
    assert pace.due(0, 4096, soon, ready=soon) == soon + crossing
    assert pace.due(0, 4096, soon, ready=soon) == soon + 2 * crossing
    late = soon + 9 * crossing  # one that has arrived in time, and is handled late
    assert pace.due(0, 4096, late, ready=soon + 4 * crossing) == late
    assert pace.due(0, 4096, late, ready=late) == late + crossing


@pytest.fixture
def processor_time(monkeypatch):
    """Time goes on as long as this thread has a processor: other programs do not disturb."""
    monkeypatch.setattr(tunnel_paced, "clock_ps", lambda: time.thread_time_ns() * 1000)
    monkeypatch.setattr(tunnel_paced, "time", SimpleNamespace(sleep=lambda seconds: None))


@pytest.mark.parametrize("way", [UP, DOWN])
def test_a_stream_has_the_calibrated_rate(processor_time, counts, way):
    """14.5 MB/s in the ring; streams are a little faster."""
    rate = cost_of("laguna").rate(1, (way,))[1]
    found = stream(load_preset("laguna"), way, counts(0.2, 5.0))
    assert found == pytest.approx(rate, rel=0.05) and found == pytest.approx(14.5e6, rel=0.12)
    assert stream(load_preset("laguna"), way, 0.1, paced=False) > 1.3 * rate


def test_rows_of_a_machine_that_is_fast_enough_and_of_one_that_is_not(monkeypatch):
    def measured(cfg, way, seconds, paced=True):
        rate = TunnelCost.of(cfg).rate(1, (way,))[1]
        return rate * (0.9 if paced else HEADROOM * (1.01 if way == UP else 0.99))

    monkeypatch.setattr(tunnel_paced, "stream", measured)
    rows = list(paced_rows(("newport", "laguna")))
    assert [row.kind for row in rows] == [IDENTITY, SHOWN] * 2
    assert [row.misses for row in rows] == [True, False] * 2
    assert rows[0].published == pytest.approx(36, rel=0.02)
    assert rows[2].published == pytest.approx(14.5, rel=0.03)
