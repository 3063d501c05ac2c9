"""In-storage processor (ISP) in the controller: a throughput model.

Owns the time for which an update occupies the ISP. Does not own the time of its DRAM and flash
traffic. In the engine, the ISP's traffic occupies DRAM and flash concurrently, so an update takes
as long as the slowest of ISP, DRAM and flash.
Source: instruction counts measured with callgrind on this project's C kernels (instructions.toml:
128-bit vectors with three operands, as NEON has); Smart-Infinity (HPCA 2024): an FPGA engine
streams at a given rate.
"""

from __future__ import annotations

import tomllib
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any

from ondie.emu.clock import PS_PER_S
from ondie.emu.config.config import Config

NEAREST = "fma128"
"""Compilation target in instructions.toml that is closest to Arm NEON: 128-bit vectors,
three-operand instructions."""


@cache
def measured() -> dict[str, Any]:
    """Return the measured instruction counts of instructions.toml, by target and kernel."""
    text = resources.files("ondie.emu.compute").joinpath("instructions.toml").read_text("utf-8")
    return tomllib.loads(text)


CASTS = {"bf16_master": ("from_bf16", "from_bf16", "to_bf16")}
"""Cast kernels by format, for formats that have no update kernel.

The FP32 kernel runs between the casts: w and g are cast before the kernel, and w is cast after it.
"""


def instructions_per_param(op: str, coupled_decay: bool, format: str = "fp32") -> Fraction:
    """Return the number of instructions per parameter of the update kernel of ``op`` in format
    ``format``.

    ``coupled_decay``: True if weight decay is added to the gradient. Counts are for 128-bit vectors
    and large arrays ("bulk" in instructions.toml).
    """
    table = measured()[NEAREST]
    own = format != "fp32" and format not in CASTS
    counts = table[op][format] if own else table[op]
    found = Fraction(str(counts["bulk_l2" if coupled_decay else "bulk"]))
    return found + sum(Fraction(str(table[cast]["bulk"])) for cast in CASTS.get(format, ()))


def update_ps(
    cfg: Config, op: str, coupled_decay: bool, n_params: int, traffic: int | Fraction,
    format: str = "fp32",
) -> int:  # fmt: skip
    """Return the time for which an update of ``n_params`` parameters occupies the ISP (ps).

    For cores, the time is instructions / (cores x IPC x frequency). For an FPGA, it is the time to
    stream ``traffic`` bytes per parameter at the rate of its engine.
    """
    if cfg.isp.kind == "fpga":
        return -int(-n_params * traffic * PS_PER_S // cfg.isp.engine_bytes_per_s)
    work = instructions_per_param(op, coupled_decay, format) * n_params
    rate = cfg.isp.cores * Fraction(str(cfg.isp.ipc)) * cfg.isp.frequency_hz
    return -int(-work * PS_PER_S // rate)


def program_ps(cfg: Config, instructions: int | Fraction, traffic: int) -> int:
    """Return the time for which a program of ``instructions`` instructions occupies the ISP (ps).
    An FPGA executes no instructions. Its time is that of streaming ``traffic`` bytes at the rate of
    its engine.
    """
    if cfg.isp.kind == "fpga":
        return -int(-traffic * PS_PER_S // cfg.isp.engine_bytes_per_s)
    rate = cfg.isp.cores * Fraction(str(cfg.isp.ipc)) * cfg.isp.frequency_hz
    return -int(-instructions * PS_PER_S // rate)
