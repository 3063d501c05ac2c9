"""The flash array: geometry, timing, cells and their raw bit error rate.

Owns the leaves of the section. Does not own timing rules (nand/timing.py) or bit
errors (nand/rber.py).
Source: ONFI timing names; MQSim geometry; published data sheets.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec

RETENTIONS = ("1 year", "3 months", "3 days")
"""Classes of retention, the most demanding first."""


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
    dies_per_chip: Annotated[int, Spec("dies behind one chip enable", least=1)]
    cell: Annotated[str, Spec("cell mode", choices=CELLS)]
    chip_busy: Annotated[
        str,
        Spec(
            "each die of a chip takes commands of its own, or the chip takes one at a time",
            choices=("per_die", "per_chip"),
        ),
    ]
    programming: Annotated[
        str,
        Spec(
            "what is programmed at once: a page, all pages of a word line, or those in two passes",
            choices=("page", "one_shot", "two_pass"),
        ),
    ]
    t_program_second_ps: Annotated[int, Spec("second pass over a word line, programming two_pass")]
    page_types: Annotated[
        str,
        Spec(
            "which page of a word line has which latency: all alike, by turns, or the layout of "
            "two-bit and three-bit planar chips",
            choices=("alike", "turns", "planar"),
        ),
    ]
    t_read_ps: Annotated[int, Spec("array read, tR (of the lowest page type)", least=1)]
    t_read_middle_ps: Annotated[int, Spec("more for a middle page")]
    t_read_upper_ps: Annotated[int, Spec("more for an upper page")]
    t_program_ps: Annotated[
        int, Spec("array program, tPROG (lowest page type, or the word line)", least=1)
    ]
    t_program_middle_ps: Annotated[int, Spec("more for a middle page")]
    t_program_upper_ps: Annotated[int, Spec("more for an upper page")]
    t_erase_ps: Annotated[int, Spec("block erase, tBERS", least=1)]
    bus_bytes_per_s: Annotated[int, Spec("rate of one channel", least=1)]
    interface: Annotated[
        str,
        Spec(
            "command and address cycles: t_command per plane, by the ONFI data interface, or the "
            "sums that MQSim takes for NV-DDR2",
            choices=("fixed", "NV-DDR2", "NV-DDR3", "NV-LPDDR4", "MQSim"),
        ),
    ]
    t_command_ps: Annotated[
        int, Spec("command and address cycles of one flash command, interface fixed")
    ]
    t_plane_busy_ps: Annotated[
        int, Spec("busy between the planes of one command, tDBSY, interface not fixed")
    ]
    grants: Annotated[
        str,
        Spec(
            "who goes first on a channel: commands, or data that wait in a die",
            choices=("commands", "data"),
        ),
    ]
    plane_reads: Annotated[
        str,
        Spec("planes of a die read together, or each on its own", choices=("together", "alone")),
    ]
    power_planes: Annotated[int, Spec("planes of a drive that may work at once; 0: all")]
    suspend: Annotated[
        str,
        Spec(
            "what makes way for a read",
            choices=("none", "erase", "program", "program_erase"),
        ),
    ]
    t_suspend_program_ps: Annotated[int, Spec("until a program has made way")]
    t_suspend_erase_ps: Annotated[int, Spec("until an erase has made way")]
    suspend_program_left_ps: Annotated[int, Spec("least time a program must have left to make way")]
    suspend_erase_left_ps: Annotated[int, Spec("least time an erase must have left to make way")]
    t_resume_ps: Annotated[int, Spec("until a suspended operation works again")]
    max_suspends: Annotated[int, Spec("times that one operation makes way", least=1)]
    suspend_reads: Annotated[int, Spec("reads that pass while it does; 0: as many as come")]
    status: Annotated[
        str,
        Spec(
            "how the end of a program or an erase is known: by the ready pin, or by a status read "
            "on the channel",
            choices=("pin", "read"),
        ),
    ]
    multi_plane: Annotated[bool, Spec("one command may address every plane of a die")]
    cache_read: Annotated[bool, Spec("the array reads on while the last page leaves")]
    cache_program: Annotated[bool, Spec("the array programs while the next page arrives")]
    interleave_commands: Annotated[
        bool, Spec("a command may interrupt another die's data on the channel")
    ]
    endurance_cycles: Annotated[
        int, Spec("rated program/erase cycles of a block, at rated_retention", least=1)
    ]
    rated_retention: Annotated[
        str, Spec("retention, powered off, that the cycles are rated for", choices=RETENTIONS)
    ]
    retention: Annotated[
        str, Spec("retention required of what the map leads to", choices=("rated", *RETENTIONS))
    ]
    cycles_3_months: Annotated[
        float, Spec("cycles where 3 months are enough, over those for 1 year", least=1)
    ]
    cycles_3_days: Annotated[
        float, Spec("cycles where 3 days are enough, over those for 1 year", least=1)
    ]
    pslc_t_read_ps: Annotated[int, Spec("array read of a block in pSLC mode", least=1)]
    pslc_t_program_ps: Annotated[int, Spec("array program of a block in pSLC mode", least=1)]
    pslc_t_erase_ps: Annotated[int, Spec("erase of a block in pSLC mode", least=1)]
    pslc_endurance_cycles: Annotated[
        int, Spec("program/erase cycles of a block in pSLC mode", least=1)
    ]
