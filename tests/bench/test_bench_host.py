"""Is the host's measured rate an input of a comparison, named as measured, and plausible?"""

import json

import numpy as np
import pytest

from ondie.emu.compute import measure_host as bench_host
from ondie.emu.config.config import load_preset
from ondie.emu.units import InputError
from tests.smoke.commands import here, refused


@pytest.fixture
def small(monkeypatch):
    """Few parameters: in cache, so the rate is not that of DRAM."""
    monkeypatch.setattr(bench_host, "PARAMS", 1 << 16)


def test_the_rate_goes_into_the_configuration(monkeypatch):
    """10 Gparam/s want 280 GB/s of DRAM, more than the preset has; 1 Gparam/s does not."""
    plain = load_preset("optimstore-r1")
    for rate, dram in ((10e9, 280_000_000_000), (1e9, plain.host.dram_bandwidth_bytes_per_s)):
        monkeypatch.setattr(bench_host, "adam_rate", lambda threads, rate=rate: rate)
        cfg = bench_host.with_measured_rate(plain, ())
        assert cfg.host.adam_params_per_s == rate and cfg.leaf("host.adam").source == "measured"
        assert cfg.host.dram_bandwidth_bytes_per_s == dram
        assert cfg.sha256 != plain.sha256
        assert len(cfg.assumed()) == len(plain.assumed()) - 1 - (rate == 10e9)


def test_it_is_measured(small):
    """Between a mis-threaded CPU Adam and what no host does."""
    rates = [bench_host.adam_rate(1) for _ in range(3)]
    assert 0.01e9 < np.median(rates) < 100e9


def test_twice_the_work_takes_twice_as_long(monkeypatch, small):
    """The rate is of parameters, not of calls."""
    monkeypatch.setattr(bench_host, "timed", lambda call, calls: 1e-3)
    assert bench_host.adam_rate(1) == pytest.approx((1 << 16) / 1e-3)


def test_the_command(capsys, tmp_path, small):
    words = ("compare", "gpt-small", "--steps", 1, "--paths", "host_offload", "--no-swing")
    assert here(capsys, *words, "--measure-host", "--out", tmp_path / "a").code == 0
    leaf = json.loads((tmp_path / "a" / "result.json").read_text())["configuration"]["host"]["adam"]
    assert leaf["source"] == "measured" and "on this host" in leaf["ref"]
    refused(
        here(capsys, *words, "--measure-host", "--set", "host.adam=1 Gparam/s"),
        "--measure-host", "host.adam",
    )  # fmt: skip
    with pytest.raises(InputError):
        bench_host.with_measured_rate(load_preset("optimstore-r1"), ("host.adam=1 Gparam/s",))
