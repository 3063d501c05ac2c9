"""Rules for the in-storage processor and processing elements on the dies.

Owns these rules, in the order in which they are checked. Does not own their check (check.py).
Source: none.
"""

from __future__ import annotations

from ondie.emu.config.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        ("isp.kind", "isp.cores"),
        lambda c: c.isp.kind != "cores" or c.isp.cores > 0,
        'kind "cores" needs at least 1 core',
    ),
    Rule(
        ("isp.kind", "isp.frequency"),
        lambda c: c.isp.kind != "cores" or c.isp.frequency_hz > 0,
        'kind "cores" needs a frequency, for example "1.0 GHz"',
    ),
    Rule(
        ("isp.kind", "isp.ipc"),
        lambda c: c.isp.kind != "cores" or c.isp.ipc > 0,
        'kind "cores" needs instructions per cycle, for example 0.8',
    ),
    Rule(
        ("isp.kind", "isp.engine"),
        lambda c: c.isp.kind != "fpga" or c.isp.engine_bytes_per_s > 0,
        'kind "fpga" needs the rate of its engine, for example "8.2 GB/s"',
    ),
    Rule(
        ("isp.kind", "isp.flash"),
        lambda c: c.isp.kind == "none" or c.isp.flash_bytes_per_s > 0,
        'a processor needs a path to the flash, for example "3.2 GB/s"',
    ),
    Rule(
        ("isp.kind", "dram.isp"),
        lambda c: c.isp.kind == "none" or c.dram.isp_bytes > 0,
        'a processor needs DRAM of its own, for example "512 MiB"',
    ),
    Rule(
        ("pe.kind", "flash.plane_reads"),
        lambda c: c.pe.kind == "none" or c.flash.plane_reads == "together",
        "processing elements take the planes of a die together",
    ),
    Rule(
        ("pe.kind", "pe.clock_divider"),
        lambda c: c.pe.kind == "none" or c.pe.clock_divider > 0,
        'kind "per_plane" needs a clock divider of at least 1',
    ),
    Rule(
        ("pe.kind", "pe.bus_values"),
        lambda c: c.pe.kind == "none" or c.pe.bus_values > 0,
        "elements reach other planes over a bus of more than 0 values per cycle, for example 1",
    ),
    Rule(
        ("pe.narrow_values", "pe.clock_divider"),
        lambda c: c.pe.kind == "none" or 2 * c.pe.narrow_values <= c.pe.clock_divider,
        "registers give an element as many bytes a clock as the divider says, two for each value",
    ),
    Rule(
        ("pe.cipher", "pe.cipher_rate"),
        lambda c: c.pe.cipher == "none" or c.pe.cipher_bytes_per_s > 0,
        'an engine on the die needs a rate, for example "6.6 GB/s"',
    ),
    Rule(
        ("pe.rain", "flash.channels", "flash.dies_per_channel"),
        lambda c: c.pe.rain == 0 or 2 <= c.pe.rain <= c.flash.channels * c.flash.dies_per_channel,
        "a stripe of parity takes 2 dies at least, and no more than the drive has; 0 is none",
    ),
    Rule(
        ("pe.protection", "pe.ecc_codeword", "flash.page"),
        lambda c: (
            c.pe.protection != "on_die_ecc" or c.flash.page_bytes % c.pe.ecc_codeword_bytes == 0
        ),
        "pages of whole code words are right",
    ),
    Rule(
        ("pe.protection", "ecc.codeword", "flash.page"),
        lambda c: (
            c.pe.protection != "controller_ecc" or c.flash.page_bytes % c.ecc.codeword_bytes == 0
        ),
        "pages of whole code words are right",
    ),
    Rule(
        ("pe.protection", "pe.ecc_codeword", "pe.ecc_correctable_bits"),
        lambda c: (
            c.pe.protection != "on_die_ecc"
            or 0 < c.pe.ecc_correctable_bits < 4 * c.pe.ecc_codeword_bytes
        ),
        "a code corrects at least one bit and fewer than half of its bits",
    ),
)
