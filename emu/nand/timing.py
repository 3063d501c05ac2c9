"""Timing rules of flash operations, as a table.

Owns, per operation: command time on the channel, which way data cross the channel, array time.
Does not own who may start when (nand.py holds registers, array and channel).
Source: ONFI 4.x command sequences; VPP, BPR, BPP, ODC after OptimStore (HPCA 2023): the gradient
enters a page register and never the array, buffered reads and programs stay in the registers.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.config.rules import WORD_LINE
from ondie.emu.engine.core.state import record_type, records
from ondie.emu.nand import onfi

READ, PROGRAM, ERASE, VPP, BPR, ODC, BPP, COPYBACK = range(8)
OP_NAMES = ("READ", "PROGRAM", "ERASE", "VPP", "BPR", "ODC", "BPP", "COPYBACK")
SCAN, PAD = 16, 17
"""Kinds of plan row beside these: a READ and a BPP of the reservoir by place, not by super-page, as
recovery does before there is a map: out-of-band data out, and whatever is in the registers in."""
OTHER = len(OP_NAMES)
"""Operation index of transactions that are no flash operation (compute, transfers)."""
COPYBACK_IN, SUSPEND, RESUME, STATUS, OUT_FIRST, OUT_NEXT = range(OTHER, OTHER + 6)
"""Cycles on the channel that belong to no operation of their own: the second part of a copy-back;
what makes a program or an erase stand back and go on; reading a status; what data out take beyond
their bytes, and more for each page after a read of several planes."""
RECALL, FETCH, STORE, KEEP, BESIDE, LIFT, LAND = range(20, 27)
"""What a plan asks of the reservoir with the controller's help, beside the optimizer's own
operations; to the die it is a READ or PROGRAM. A stripe in the registers leaves for the controller
(FETCH), and is programmed from there with its parity (STORE). A gradient is
programmed into the planes that the super-page left empty (KEEP), and sensed with it (RECALL). What
the controller has made itself, parity over dies or the record of a step, is programmed when the die
has time (BESIDE). A super-page is read into DRAM (LIFT), and programmed into another one, which may
lie on another die, in whose place it is from then on (LAND)."""
CYCLE_NAMES = (*OP_NAMES, "COPYBACK_IN", "SUSPEND", "RESUME", "STATUS", "OUT_FIRST", "OUT_NEXT")

OP = record_type(
    data_in="i8",  # 1: data cross the channel into the registers before the array works
    array="i8",  # ps the array works; 0 = none; a row's own time is added
    data_out="i8",  # 1: data cross the channel out of the registers afterwards
)


def timing_table(cfg: Config) -> np.recarray:
    """The timing table of a configuration: one record per operation, times in ps.

    ========  ==============  =======  =======================  ========
    op        channel cycles  data in  array                    data out
    ========  ==============  =======  =======================  ========
    READ      READ            -        t_read                   yes
    PROGRAM   PROGRAM         yes      t_program                -
    ERASE     ERASE           -        t_erase                  -
    VPP       VPP             yes      -                        -
    BPR       BPR             -        t_read                   -
    ODC       ODC             -        PE cycles of row         -
    BPP       BPP             -        t_program                -
    COPYBACK  COPYBACK, then  -        t_read, then t_program   -
              COPYBACK_IN
    ========  ==============  =======  =======================  ========

    Pages add what their type takes (:func:`page_times`). t_program is that of a page; of a word
    line where all its pages are programmed at once; of the first pass over one where there are two.
    """
    flash = cfg.flash
    table = records(OP, len(OP_NAMES))
    table.data_in[[PROGRAM, VPP]] = 1
    table.data_out[READ] = 1
    table.array[[READ, BPR, COPYBACK]] = flash.t_read_ps
    table.array[[PROGRAM, BPP]] = flash.t_program_ps
    table.array[ERASE] = flash.t_erase_ps
    return table


def command_cycles(cfg: Config) -> np.ndarray:
    """Command and address cycles on the channel, int64[CYCLE_NAMES, planes + 1] in ps.

    ``flash.interface`` "fixed": t_command per plane addressed; one for the processing elements'
    computation, for suspend and resume; none around data out, whose rate states everything. Else by
    the data interface (onfi.py).
    """
    if cfg.flash.interface != "fixed":
        rows = onfi.cycles(cfg)
        return np.stack([rows[name] for name in CYCLE_NAMES])
    n = np.arange(max(cfg.flash.planes_per_die, 1) + 1)
    cycles = np.tile(cfg.flash.t_command_ps * n, (len(CYCLE_NAMES), 1))
    cycles[[ODC, SUSPEND, RESUME, STATUS]] = cfg.flash.t_command_ps
    cycles[[OUT_FIRST, OUT_NEXT]] = 0
    return cycles


def word_line_pages(cfg: Config) -> int:
    """Pages that are programmed together: those of a word line, or one."""
    if cfg.flash.programming == "page":
        return 1
    return WORD_LINE.get(cfg.flash.cell, 1)


def page_kinds(cfg: Config) -> np.ndarray:
    """Which bit of its cells each page holds, from 0 for the lowest, by its offset in the block:
    int64[pages].

    By turns (also where all pages have one latency): lower, (middle,) upper, ... over the bits of
    the cell. Planar chips of two bits: even pages lower, odd upper; of three bits: pages 0-5 lower,
    6 and 7 middle, then pairs in turn of lower, middle, upper (the layout that MQSim takes).
    """
    page = np.arange(cfg.flash.pages_per_block)
    bits = WORD_LINE.get(cfg.flash.cell, 1)
    if cfg.flash.page_types == "planar" and bits == 3:
        return np.where(page < 6, 0, np.where(page < 8, 1, (page - 8) // 2 % 3))
    return page % bits


def page_times(cfg: Config) -> np.ndarray:
    """What a page takes beyond the lowest page type's, by its offset in the block: int64[3, pages]
    in ps, for its read, its program, and the second pass over its word line (beyond t_program).
    Pages that are alike all take what the lowest type does.
    """
    flash = cfg.flash
    bits = WORD_LINE.get(flash.cell, 1)
    kind = page_kinds(cfg)
    if flash.page_types == "alike":
        kind = np.zeros_like(kind)
    # Lower, (middle,) upper; the two middle pages of four bits are alike.
    level = kind if bits == 3 else np.where(kind == 0, 0, np.where(kind == bits - 1, 2, 1))
    read = np.array([0, flash.t_read_middle_ps, flash.t_read_upper_ps])
    program = np.array([0, flash.t_program_middle_ps, flash.t_program_upper_ps])
    second = np.full(len(kind), flash.t_program_second_ps - flash.t_program_ps)
    return np.stack([read[level], program[level], second])
