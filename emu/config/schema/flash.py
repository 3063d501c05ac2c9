"""Configuration of the flash array: geometry, timing, cells and their raw bit error rate.

Owns the leaves of section `flash`. Does not own timing rules (nand/timing.py) or bit errors
(nand/rber.py).
Source: ONFI timing names; MQSim geometry; published data sheets.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec

RETENTIONS = ("1 year", "3 months", "3 days")
"""Classes of retention, the most demanding class first."""


CELLS = ("pSLC", "SLC", "MLC", "TLC", "QLC")


ORDERS = tuple("".join(order) for order in itertools.permutations("CWDP"))


@dataclass(frozen=True, slots=True)
class Flash:
    channels: Annotated[int, Spec("flash channels", least=1)]
    dies_per_channel: Annotated[int, Spec("dies on one channel", least=1)]
    planes_per_die: Annotated[int, Spec("planes in one die", least=1)]
    blocks_per_plane: Annotated[int, Spec("erase blocks in one plane", least=1)]
    pages_per_block: Annotated[int, Spec("pages in one block", least=1)]
    page_bytes: Annotated[int, Spec("user bytes of one page", least=512)]
    spare_bytes: Annotated[
        int, Spec("spare bytes of one page, for check bits; only with ecc.code bch or ldpc")
    ]
    dies_per_chip: Annotated[int, Spec("dies that share one chip enable", least=1)]
    cell: Annotated[str, Spec("cell mode", choices=CELLS)]
    chip_busy: Annotated[
        str,
        Spec(
            "command concurrency in a chip; per_die: each die executes commands independently, "
            "per_chip: the chip executes one command at a time",
            choices=("per_die", "per_chip"),
        ),
    ]
    programming: Annotated[
        str,
        Spec(
            "unit of a program operation; page: one page, one_shot: all pages of a word line, "
            "two_pass: all pages of a word line in two passes",
            choices=("page", "one_shot", "two_pass"),
        ),
    ]
    t_program_second_ps: Annotated[
        int, Spec("time of the second pass over a word line; only with programming two_pass")
    ]
    page_types: Annotated[
        str,
        Spec(
            "assignment of latencies to the pages of a word line; alike: equal for all "
            "pages, turns: lower, middle and upper alternate, planar: the layout of planar chips "
            "with two or three bits per cell",
            choices=("alike", "turns", "planar"),
        ),
    ]
    t_read_ps: Annotated[int, Spec("array read time, tR (of the lowest page type)", least=1)]
    t_read_middle_ps: Annotated[int, Spec("additional read time of a middle page")]
    t_read_upper_ps: Annotated[int, Spec("additional read time of an upper page")]
    t_program_ps: Annotated[
        int,
        Spec("array program time, tPROG (of the lowest page type, or of the word line)", least=1),
    ]
    t_program_middle_ps: Annotated[int, Spec("additional program time of a middle page")]
    t_program_upper_ps: Annotated[int, Spec("additional program time of an upper page")]
    t_erase_ps: Annotated[int, Spec("block erase time, tBERS", least=1)]
    bus_bytes_per_s: Annotated[int, Spec("transfer rate of one channel", least=1)]
    interface: Annotated[
        str,
        Spec(
            "time of command and address cycles; fixed: t_command per plane, MQSim: MQSim's "
            "sums for NV-DDR2, others: the ONFI data interface of that name",
            choices=("fixed", "NV-DDR2", "NV-DDR3", "NV-LPDDR4", "MQSim"),
        ),
    ]
    t_command_ps: Annotated[
        int,
        Spec(
            "time of the command and address cycles of one flash command; only with interface fixed"
        ),
    ]
    t_plane_busy_ps: Annotated[
        int,
        Spec(
            "busy time between the planes of a multi-plane command, tDBSY; not with interface fixed"
        ),
    ]
    grants: Annotated[
        str,
        Spec(
            "priority on a channel; commands: command cycles before data, data: data ready in a "
            "die before commands",
            choices=("commands", "data"),
        ),
    ]
    program_order: Annotated[
        str,
        Spec(
            "order of waiting programs of one block with multi-plane commands; block: the order "
            "of the pages of the block, any: a program that can join a command of other planes "
            "overtakes programs that cannot",
            choices=("block", "any"),
        ),
    ]
    plane_reads: Annotated[
        str,
        Spec(
            "reads of the planes of a die; together: one operation for the die, alone: an "
            "independent read in each plane",
            choices=("together", "alone"),
        ),
    ]
    power_planes: Annotated[
        int, Spec("maximum number of planes of a drive that operate concurrently; 0: no limit")
    ]
    suspend: Annotated[
        str,
        Spec(
            "operations that are suspended for a read",
            choices=("none", "erase", "program", "program_erase"),
        ),
    ]
    t_suspend_program_ps: Annotated[int, Spec("time to suspend a program")]
    t_suspend_erase_ps: Annotated[int, Spec("time to suspend an erase")]
    suspend_program_left_ps: Annotated[
        int, Spec("a program with this time or less left is not suspended")
    ]
    suspend_erase_left_ps: Annotated[
        int, Spec("an erase with this time or less left is not suspended")
    ]
    t_resume_ps: Annotated[int, Spec("time to resume a suspended operation")]
    max_suspends: Annotated[int, Spec("largest number of suspensions of one operation", least=1)]
    suspend_reads: Annotated[int, Spec("largest number of reads per suspension; 0: no limit")]
    status: Annotated[
        str,
        Spec(
            "detection of the end of a program or erase; pin: the ready pin, read: a status "
            "read on the channel",
            choices=("pin", "read"),
        ),
    ]
    multi_plane: Annotated[bool, Spec("one command may address all planes of a die")]
    cache_read: Annotated[
        bool, Spec("the array reads the next page during the data output of the previous page")
    ]
    cache_program: Annotated[
        bool, Spec("the array programs a page during the data input of the next one")
    ]
    interleave_commands: Annotated[
        bool, Spec("a command may interrupt the data of another die on the channel")
    ]
    endurance_cycles: Annotated[
        int, Spec("rated program/erase cycles of a block at rated_retention", least=1)
    ]
    rated_retention: Annotated[
        str, Spec("retention without power at which endurance_cycles is rated", choices=RETENTIONS)
    ]
    retention: Annotated[
        str, Spec("retention required of mapped data", choices=("rated", *RETENTIONS))
    ]
    cycles_3_months: Annotated[
        float, Spec("rated cycles at 3 months of retention relative to those at 1 year", least=1)
    ]
    cycles_3_days: Annotated[
        float, Spec("rated cycles at 3 days of retention relative to those at 1 year", least=1)
    ]
    pslc_t_read_ps: Annotated[int, Spec("array read time of a block in pSLC mode", least=1)]
    pslc_t_program_ps: Annotated[int, Spec("array program time of a block in pSLC mode", least=1)]
    pslc_t_erase_ps: Annotated[int, Spec("erase time of a block in pSLC mode", least=1)]
    pslc_endurance_cycles: Annotated[
        int, Spec("rated program/erase cycles of a block in pSLC mode", least=1)
    ]
