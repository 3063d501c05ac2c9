"""Timing table of flash operations.

Owns the command time on the channel, the direction of data on the channel and the array time of
each operation. Does not own the scheduling of operations (die_scheduler.py, channel.py).
Source: ONFI 4.x command sequences; VPP, BPR, BPP, ODC after OptimStore (HPCA 2023). VPP writes a
gradient to a page register, not to the array. The data of buffered reads (BPR) and buffered
programs (BPP) does not cross the channel.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.config.rules.rule import WORD_LINE
from ondie.emu.engine.core.state import record_type, records
from ondie.emu.nand import onfi

READ, PROGRAM, ERASE, VPP, BPR, ODC, BPP, COPYBACK = range(8)
OP_NAMES = ("READ", "PROGRAM", "ERASE", "VPP", "BPR", "ODC", "BPP", "COPYBACK")
SCAN, PAD = 16, 17
"""Kinds of rows in a plan (list of operations that the engine executes) for the recovery of the
reservoir: a READ (SCAN) and a BPP (PAD) of a physical super-page. Recovery uses them before it has
a mapping table. SCAN transfers out-of-band data out of the die. PAD programs the present contents
of the registers."""
OTHER = len(OP_NAMES)
"""Operation index of transactions that are not flash operations (compute, transfers)."""
COPYBACK_IN, SUSPEND, RESUME, STATUS, OUT_FIRST, OUT_NEXT = range(OTHER, OTHER + 6)
"""Indices of command sequences that are not operations: second sequence of a copy-back, suspend and
resume of a program or an erase, and status read. OUT_FIRST is the overhead of data out. OUT_NEXT is
the additional overhead per page after a multi-plane read."""
RECALL, FETCH, STORE, KEEP, BESIDE, LIFT, LAND = range(20, 27)
"""Kinds of rows in a plan for reservoir operations that involve the controller. A plan is a list of
operations that the engine executes. The die executes each of these rows as a READ or a PROGRAM.

FETCH transfers a stripe from the registers to the controller. STORE programs this stripe, with
parity that the controller has computed. KEEP programs a gradient into the planes that a super-page
leaves empty. RECALL senses the gradient together with the super-page. BESIDE programs data that the
controller has made (parity over dies, or the record of a step) from the write queue. LIFT reads a
super-page into DRAM. LAND programs it into another physical super-page, which may be on another
die.
"""
CYCLE_NAMES = (*OP_NAMES, "COPYBACK_IN", "SUSPEND", "RESUME", "STATUS", "OUT_FIRST", "OUT_NEXT")

OP = record_type(
    data_in="i8",  # 1: data cross the channel into the registers before the array works
    array="i8",  # array time, ps; 0 = none; the row's additional time is added
    data_out="i8",  # 1: data cross the channel out of the registers afterwards
)


def timing_table(cfg: Config) -> np.recarray:
    """Return the timing table of a configuration: one record per operation, times in ps.

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

    :func:`page_times` has the additional time of each page type. t_program is the time of a page,
    of a whole word line if its pages are programmed at once, or of the first of two passes.
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
    """Return the channel time of each command sequence in ps, int64[CYCLE_NAMES, planes + 1].

    Columns: number of planes of the command. With ``flash.interface`` "fixed", ODC, suspend, resume
    and status take one t_command, and other sequences take t_command per plane; data out has no
    overhead, because the channel rate includes it. Otherwise the data interface determines the
    times (onfi.py).
    """
    if cfg.flash.interface != "fixed":
        rows = onfi.cycles(cfg)
        return np.stack([rows[name] for name in CYCLE_NAMES])
    count = np.arange(max(cfg.flash.planes_per_die, 1) + 1)
    cycles = np.tile(cfg.flash.t_command_ps * count, (len(CYCLE_NAMES), 1))
    cycles[[ODC, SUSPEND, RESUME, STATUS]] = cfg.flash.t_command_ps
    cycles[[OUT_FIRST, OUT_NEXT]] = 0
    return cycles


def word_line_pages(cfg: Config) -> int:
    """Return the number of pages of a plane that are programmed together: all pages of a word line,
    or one page.
    """
    if cfg.flash.programming == "page":
        return 1
    return WORD_LINE.get(cfg.flash.cell, 1)


def page_kinds(cfg: Config) -> np.ndarray:
    """Return the page type of each page as the index of the bit that it stores in a cell:
    int64[pages], by page offset in the block; 0 = lower page.

    The page types alternate: lower, (middle,) upper, even if all have equal latencies. Planar chips
    with two bits per cell: even pages are lower pages, odd pages are upper pages. Planar chips with
    three bits per cell: pages 0 to 5 are lower pages, pages 6 and 7 are middle pages, and then
    pairs of lower, middle and upper pages alternate (MQSim's layout).
    """
    page = np.arange(cfg.flash.pages_per_block)
    bits = WORD_LINE.get(cfg.flash.cell, 1)
    if cfg.flash.page_types == "planar" and bits == 3:
        return np.where(page < 6, 0, np.where(page < 8, 1, (page - 8) // 2 % 3))
    return page % bits


def page_times(cfg: Config) -> np.ndarray:
    """Return the additional array time of each page over the lower page type: int64[3, pages], ps.

    Columns: page offset in the block. Rows: read, program, second program pass over the word line
    (relative to t_program). With ``page_types`` "alike", every page has the read and program time
    of a lower page.
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
