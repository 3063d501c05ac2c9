"""Configuration of the energy per operation and byte, and of the power of components.

Owns the leaves of section `energy`. Does not own the calculation of energy (analysis/energy.py).
Source: the presets give a source for each value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec


@dataclass(frozen=True, slots=True)
class Energy:
    nand_read_fj_per_bit: Annotated[int, Spec("array read, per bit of the page")]
    nand_program_fj_per_bit: Annotated[int, Spec("array program, per bit of the page")]
    nand_erase_fj_per_bit: Annotated[int, Spec("block erase, per bit of the block")]
    channel_fj_per_bit: Annotated[int, Spec("channel transfer")]
    dram_fj_per_bit: Annotated[int, Spec("DRAM of the drive")]
    ecc_fj_per_bit: Annotated[int, Spec("encoding or decoding in the controller")]
    ecc_decoder_mw: Annotated[
        int,
        Spec(
            "power of a decoder during iterations that take longer than ecc.decode; only with "
            "ecc.code ldpc"
        ),
    ]
    pe_ecc_fj_per_bit: Annotated[int, Spec("encoding or decoding on the die")]
    pe_add_fj: Annotated[int, Spec("one 32-bit addition on the die")]
    pe_multiply_fj: Annotated[int, Spec("one 32-bit multiplication on the die")]
    register_fj_per_bit: Annotated[int, Spec("access of a PE to a page register")]
    pe_cipher_fj_per_bit: Annotated[int, Spec("AES-XTS engine on the die")]
    pe_bus_fj_per_bit: Annotated[int, Spec("shared bus of the die, from plane to plane")]
    isp_core_mw: Annotated[
        int,
        Spec("power of a busy core of the in-storage processor; with isp.kind fpga: of its engine"),
    ]
    controller_mw: Annotated[int, Spec("power of the controller and idle drive, for the whole run")]
    isp_idle_mw: Annotated[int, Spec("power of the whole in-storage processor while idle")]
