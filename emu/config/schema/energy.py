"""Energy per operation and byte, and power of components.

Owns the leaves of the section. Does not own the account (analysis/energy.py).
Source: the presets name one for every value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec


@dataclass(frozen=True, slots=True)
class Energy:
    nand_read_fj_per_bit: Annotated[int, Spec("array read, per bit of page")]
    nand_program_fj_per_bit: Annotated[int, Spec("array program, per bit of page")]
    nand_erase_fj_per_bit: Annotated[int, Spec("block erase, per bit of block")]
    channel_fj_per_bit: Annotated[int, Spec("channel I/O")]
    dram_fj_per_bit: Annotated[int, Spec("DRAM of the drive")]
    ecc_fj_per_bit: Annotated[int, Spec("encoding or decoding")]
    pe_ecc_fj_per_bit: Annotated[int, Spec("encoding or decoding on the die")]
    pe_add_fj: Annotated[int, Spec("one 32-bit addition on the die")]
    pe_multiply_fj: Annotated[int, Spec("one 32-bit multiplication on the die")]
    register_fj_per_bit: Annotated[int, Spec("page register access by a processing element")]
    pe_cipher_fj_per_bit: Annotated[int, Spec("AES-XTS engine on the die, per bit")]
    pe_bus_fj_per_bit: Annotated[int, Spec("the die's shared bus, from plane to plane")]
    isp_core_mw: Annotated[int, Spec("a busy core of the processor; for fpga: the engine")]
    controller_mw: Annotated[int, Spec("controller and idle power, as long as the run lasts")]
    isp_idle_mw: Annotated[int, Spec("the whole processor while it idles")]
