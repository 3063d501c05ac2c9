"""Timing rules of flash operations, as a table.

Owns, per operation: command time on the channel, which way data cross the channel, array time.
Does not own who may start when (nand.py holds registers, array and channel).
Source: ONFI 4.x command sequences; VPP, BPR, BPP, ODC after OptimStore (HPCA 2023): the gradient
enters a page register and never the array, buffered reads and programs stay in the registers.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.config import Config
from ondie.emu.state import record_type, records

READ, PROGRAM, ERASE, VPP, BPR, ODC, BPP = range(7)
OP_NAMES = ("READ", "PROGRAM", "ERASE", "VPP", "BPR", "ODC", "BPP")
OTHER = len(OP_NAMES)
"""Operation index of transactions that are no flash operation (compute, transfers)."""

OP = record_type(
    command="i8",  # ps of command and address cycles on the channel, per plane addressed
    data_in="i8",  # 1: data cross the channel into the registers before the array works
    array="i8",  # ps the array works; 0 = none; a row's own time is added
    data_out="i8",  # 1: data cross the channel out of the registers afterwards
)


def timing_table(cfg: Config) -> np.recarray:
    """The timing table of a configuration: one record per operation, times in ps.

    ========  ======================  =======  =================  ========
    op        channel command         data in  array              data out
    ========  ======================  =======  =================  ========
    READ      t_command per plane     -        t_read             yes
    PROGRAM   t_command per plane     yes      t_program          -
    ERASE     t_command per plane     -        t_erase            -
    VPP       t_command per plane     yes      -                  -
    BPR       t_command per plane     -        t_read             -
    ODC       t_command               -        PE cycles of row   -
    BPP       t_command per plane     -        t_program          -
    ========  ======================  =======  =================  ========
    """
    flash = cfg.flash
    table = records(OP, len(OP_NAMES))
    table.command = flash.t_command_ps
    table.data_in[[PROGRAM, VPP]] = 1
    table.data_out[READ] = 1
    table.array[[READ, BPR]] = flash.t_read_ps
    table.array[[PROGRAM, BPP]] = flash.t_program_ps
    table.array[ERASE] = flash.t_erase_ps
    return table
