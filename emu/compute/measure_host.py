"""Measured rate of CPU Adam on this machine, for `ondie compare --measure-host`.

Owns the measurement and the configuration value that results from it. Does not own the kernel
(ondie.kernels) or the method of timing a kernel (ondie.kernels.bench.run).
Source: this project.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from functools import partial

from ondie.emu.compute.host_cpu import ADAM_BYTES
from ondie.emu.config.config import Config
from ondie.emu.units import InputError
from ondie.kernels import get
from ondie.kernels.bench.contenders import HYPER, KEY, filled
from ondie.kernels.bench.run import free_bytes, machine, need, timed

PARAMS = 1 << 25
"""Maximum number of parameters in the measurement. The four arrays of Adam (w, m, v, g) are then
far larger than any CPU cache. A machine with little free memory measures fewer parameters."""
ROUNDS = 7
RATE, DRAM = "host.adam", "host.dram_bandwidth"


def adam_rate(threads: int) -> float:
    """Measure Adam updates of arrays in DRAM and return the median rate (parameters per second).

    ``threads``: number of CPU threads. The median is taken over ROUNDS updates.
    """
    n = min(PARAMS, free_bytes() // 2 // need(1))
    kernel = get("adam")
    call = partial(
        kernel.run, filled(kernel, n), kernel.coefficients(HYPER["adam"], 10), threads, 0, KEY
    )
    call()  # compile, and touch every page
    return n / statistics.median(timed(call, 1) for _ in range(ROUNDS))


def with_measured_rate(cfg: Config, given: tuple[str, ...]) -> Config:
    """Return the configuration with this host's measured Adam rate, recorded as measured.

    The host's DRAM bandwidth in the configuration is raised if it is too low for that rate.
    ``given``: the user's settings (KEY=VALUE). Raises InputError if a setting in ``given`` sets the
    rate.
    """
    if any(text.partition("=")[0].strip() == RATE for text in given):
        raise InputError(
            f"--measure-host cannot be combined with --set {RATE}; remove one of these options"
        )
    threads = os.cpu_count() or 1
    rate = round(adam_rate(threads))
    where = machine(threads)
    ref = (
        f"Adam of ondie's kernels on this host: {where['processor']}, {threads} threads, "
        f"{where['isa']}"
    )
    changes = {RATE: rate}
    if cfg.host.dram_bandwidth_bytes_per_s < rate * ADAM_BYTES:
        changes[DRAM] = rate * ADAM_BYTES
    made = cfg.replace(changes, ref=ref)
    records = {key: replace(made.leaf(key), source="measured") for key in changes}
    return replace(made, records={**made.records, **records})
