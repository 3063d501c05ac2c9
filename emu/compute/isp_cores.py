"""In-storage processor in the controller: a throughput model.

Owns the time for which an update occupies the ISP. Does not own DRAM and flash time: in the engine
the ISP's traffic contends for them, so that the update takes the longest of the three.
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
"""Target of instructions.toml nearest to NEON: 128-bit vectors, three-operand instructions."""


@cache
def measured() -> dict[str, Any]:
    """Return the measured instruction counts of instructions.toml, by target and kernel."""
    text = resources.files("ondie.emu.compute").joinpath("instructions.toml").read_text("utf-8")
    return tomllib.loads(text)


CASTS = {"bf16_master": ("from_bf16", "from_bf16", "to_bf16")}
"""Cast kernels by format, for formats without a separate update kernel.

They run in addition to the FP32 kernel: w and g are cast before it, w after it.
"""


def instructions_per_param(op: str, coupled_decay: bool, format: str = "fp32") -> Fraction:
    """Return the instructions per parameter of an update kernel in a format.

    Counts are for 128-bit vectors and large arrays ("bulk" in instructions.toml).
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
    """Return the time for which an update occupies the ISP, ps.

    Cores: instructions / (cores x IPC x frequency). FPGA: ``traffic`` bytes per parameter at the
    rate of the engine.
    """
    if cfg.isp.kind == "fpga":
        return -int(-n_params * traffic * PS_PER_S // cfg.isp.engine_bytes_per_s)
    work = instructions_per_param(op, coupled_decay, format) * n_params
    rate = cfg.isp.cores * Fraction(str(cfg.isp.ipc)) * cfg.isp.frequency_hz
    return -int(-work * PS_PER_S // rate)
