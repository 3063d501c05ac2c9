"""Rules for the in-storage processor and for processing elements on the dies.

Owns these rules, in the order in which they are checked. Does not own their check (check.py).
Source: this project.
"""

from __future__ import annotations

from ondie.emu.config.rules.conditions import (
    ISP,
    PE,
    above_zero,
    at_most,
    equal,
    only_if,
    other_than,
    requires,
)
from ondie.emu.config.rules.rule import Rule

CORES = equal("isp.kind", "cores")
ACCELERATOR = above_zero("host.accelerator_peak")
TRAINING_RATE = above_zero("isp.flops_per_cycle")
FPGA = equal("isp.kind", "fpga")

RULES: tuple[Rule, ...] = (
    requires(CORES, above_zero("isp.cores")),
    requires(CORES, above_zero("isp.frequency", '"1.0 GHz"')),
    requires(CORES, above_zero("isp.ipc", "0.8")),
    requires(ACCELERATOR, above_zero("host.accelerator_utilization", "0.44")),
    at_most("host.accelerator_utilization", 1),
    Rule(
        ("host.accelerator_utilization",),
        lambda cfg: all(
            0 < value <= 1 for value in cfg.host.accelerator_utilization_by_model.values()
        ),
        lambda cfg: (
            " and ".join(
                f"host.accelerator_utilization_by_model.{model} = {value:g}"
                for model, value in cfg.host.accelerator_utilization_by_model.items()
                if not 0 < value <= 1
            )
            + " must be above 0 and at most 1"
        ),
    ),
    requires(TRAINING_RATE, CORES, "a streaming engine does not train"),
    requires(TRAINING_RATE, above_zero("isp.training_utilization", "0.17")),
    at_most("isp.training_utilization", 1),
    requires(
        TRAINING_RATE,
        equal("isp.training_ratio", 0),
        "the speed of the drive is stated once, as a rate or as a ratio",
    ),
    Rule(
        ("isp.flops_per_cycle",),
        lambda cfg: not (cfg.isp.flops_per_cycle and cfg.isp.training_ratio_by_model),
        "a value above 0 excludes isp.training_ratio_by_model: the speed of the drive "
        "is stated once, as a rate or as a ratio",
    ),
    requires(FPGA, above_zero("isp.engine", '"8.2 GB/s"')),
    requires(ISP, above_zero("isp.flash", '"3.2 GB/s"')),
    requires(ISP, above_zero("dram.isp", '"512 MiB"')),
    requires(
        PE,
        equal("flash.plane_reads", "together"),
        "processing elements use the registers of all planes of a die together",
    ),
    requires(PE, above_zero("pe.clock_divider")),
    requires(PE, above_zero("pe.bus_values", "1")),
    Rule(
        ("pe.narrow_values", "pe.clock_divider"),
        lambda cfg: cfg.pe.kind == "none" or 2 * cfg.pe.narrow_values <= cfg.pe.clock_divider,
        "pe.narrow_values must be at most half of pe.clock_divider: a register delivers "
        "pe.clock_divider bytes per clock of a processing element, two per value",
    ),
    requires(other_than("pe.cipher", "none"), above_zero("pe.cipher_rate", '"6.6 GB/s"')),
    Rule(
        ("pe.rain", "flash.channels", "flash.dies_per_channel"),
        lambda cfg: (
            cfg.pe.rain == 0 or 2 <= cfg.pe.rain <= cfg.flash.channels * cfg.flash.dies_per_channel
        ),
        "pe.rain must be from 2 to the number of dies of the drive, or 0 for no parity",
    ),
    only_if(
        equal("pe.protection", "on_die_ecc"),
        ("pe.ecc_codeword", "flash.page"),
        lambda cfg: cfg.flash.page_bytes % cfg.pe.ecc_codeword_bytes == 0,
        "a page must consist of whole code words",
    ),
    only_if(
        equal("pe.protection", "controller_ecc"),
        ("ecc.codeword", "flash.page"),
        lambda cfg: cfg.flash.page_bytes % cfg.ecc.codeword_bytes == 0,
        "a page must consist of whole code words",
    ),
    only_if(
        equal("pe.protection", "on_die_ecc"),
        ("pe.ecc_codeword", "pe.ecc_correctable_bits"),
        lambda cfg: 0 < cfg.pe.ecc_correctable_bits < 4 * cfg.pe.ecc_codeword_bytes,
        "pe.ecc_correctable_bits must be at least 1 and less than half of the bits of a code word",
    ),
)
