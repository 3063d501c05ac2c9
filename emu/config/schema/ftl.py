"""The flash translation layer: mapping, collection, wear leveling, pSLC, cached mapping table.

Owns the leaves of the section. Does not own the policies (ftl/policies.py).
Source: the presets name one for every value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.flash import ORDERS, RETENTIONS
from ondie.emu.config.schema.spec import Spec


@dataclass(frozen=True, slots=True)
class Ftl:
    over_provisioning: Annotated[float, Spec("share of raw capacity not offered, (T-U)/T")]
    block_unit: Annotated[
        str,
        Spec(
            "what is written and collected together: one block of every plane of a die, or one",
            choices=("die", "plane"),
        ),
    ]
    placement: Annotated[
        str,
        Spec(
            "where a page goes: to the next unit in turn, or to the unit of its number",
            choices=("dynamic", "static"),
        ),
    ]
    allocation: Annotated[str, Spec("order of channels, ways, dies and planes", choices=ORDERS)]
    write_streams: Annotated[int, Spec("open blocks of a unit that host writes fill", least=1)]
    gc_streams: Annotated[
        str,
        Spec(
            "collected pages fill one open block, or one for each stream they come from",
            choices=("one", "each"),
        ),
    ]
    open_blocks: Annotated[
        str,
        Spec(
            "a block is opened when it is needed, or as soon as the last one is full",
            choices=("needed", "ahead"),
        ),
    ]
    stream_policy: Annotated[str, Spec("which of them a write goes to: a name, or FILE.py:NAME")]
    gc_policy: Annotated[str, Spec("whom to collect: a name, or FILE.py:NAME")]
    gc_low_blocks: Annotated[int, Spec("free blocks per unit that start collection", least=1)]
    gc_stop_blocks: Annotated[int, Spec("free blocks per unit below which host writes wait")]
    gc_hard_blocks: Annotated[int, Spec("free blocks per unit below which collection is urgent")]
    gc_parallel: Annotated[int, Spec("collections of a unit at once", least=1)]
    gc_window_pages: Annotated[int, Spec("pages in motion per collection, at least a line; 0: all")]
    gc_priority: Annotated[
        str,
        Spec(
            "collection's place among the host's work on a die: behind it, with it in one line, "
            "before it, or alone until its erase has begun",
            choices=("background", "shared", "urgent", "exclusive"),
        ),
    ]
    host_order: Annotated[
        str,
        Spec(
            "the host's reads, and its writes, on a die: in order of arrival, or those of class 0 "
            "first and then 4, 2 and 1 in turn of classes 1, 2 and 3",
            choices=("arrival", "class"),
        ),
    ]
    gc_copyback: Annotated[bool, Spec("collection moves pages inside the die (copy-back)")]
    mapping_unit_bytes: Annotated[
        int,
        Spec(
            "what an entry of the map stands for: a part of a page, which gathers them; 0: a page"
        ),
    ]
    partial_pages: Annotated[
        str,
        Spec(
            "a page is moved whole, or only the sectors asked for",
            choices=("whole", "sectors"),
        ),
    ]
    unwritten: Annotated[
        str,
        Spec(
            "a page that was never written reads as zeros, or as if it had been written",
            choices=("zeros", "as_written"),
        ),
    ]
    map_update: Annotated[
        str,
        Spec(
            "a written page is mapped, and its old place invalid, once it is programmed, or once "
            "it has a place",
            choices=("programmed", "placed"),
        ),
    ]
    victim_pages: Annotated[
        str,
        Spec(
            "pages that collection has yet to move: the host may read and overwrite them, or waits "
            "until they have moved, and collection for reads that were there before",
            choices=("open", "locked"),
        ),
    ]
    erase: Annotated[
        str,
        Spec("blocks are erased when they are opened, or collected", choices=("open", "collected")),
    ]
    wear_dynamic: Annotated[bool, Spec("the least worn free block is opened first")]
    wear_static_cycles: Annotated[
        int, Spec("difference in erases at which cold data are moved; 0: never")
    ]
    pslc: Annotated[
        str,
        Spec(
            "writes go to blocks with one bit per cell first, which are folded into native ones: "
            "none, a region of their own, or free native blocks that are borrowed",
            choices=("off", "static", "dynamic"),
        ),
    ]
    pslc_share: Annotated[
        float, Spec("share of a unit's blocks that are such, or at most are borrowed")
    ]
    pslc_full: Annotated[
        str,
        Spec(
            "without a free pSLC block writes go to native ones, or wait until one has been folded",
            choices=("direct", "wait"),
        ),
    ]
    pslc_streams: Annotated[
        int, Spec("streams of host writes that go to pSLC blocks, from 0 on; 0: all")
    ]
    fold_blocks: Annotated[
        int, Spec("pSLC blocks that a unit may still open, at or below which folding begins")
    ]
    fold_idle_ps: Annotated[
        int, Spec("rest of the host after which full pSLC blocks are folded; 0: never")
    ]
    reclaim_reads: Annotated[
        int, Spec("reads of a block, since its erase, that make its data move; 0: any number")
    ]
    reclaim_retries: Annotated[
        int, Spec("readings of a page, after the first, that make its block's data move; 0: never")
    ]
    bad_blocks: Annotated[float, Spec("share of blocks that are bad from the factory")]
    program_failures: Annotated[
        float,
        Spec(
            "chance that a program fails and its block is retired; above 0, the last two free "
            "blocks of a unit are collection's"
        ),
    ]
    erase_failures: Annotated[float, Spec("chance that an erase fails and its block is retired")]
    gather_time_ps: Annotated[
        int,
        Spec(
            "longest wait of a page for the rest of its word line, or of a mapping unit for the "
            "rest of its page, which is padded then",
            least=1,
        ),
    ]
    map_cache_bytes: Annotated[
        int, Spec("DRAM of the cached mapping table; 0: the whole map is in DRAM")
    ]
    map_read_bytes: Annotated[
        int, Spec("bytes of a translation page that a miss moves over the channel; 0: all of it")
    ]
    map_writes: Annotated[
        int,
        Spec(
            "translation pages written back at once; 0: none ever is, what would be takes a page "
            "and stays in DRAM"
        ),
    ]
    initial: Annotated[str, Spec("state before the run", choices=("steady", "fresh"))]
    reservoir_fraction: Annotated[float, Spec("share of each die's blocks lent to the optimizer")]
    reservoir_retention: Annotated[
        str,
        Spec("retention required of the optimizer's blocks", choices=("rated", *RETENTIONS)),
    ]
    reservoir_rotate: Annotated[
        int,
        Spec(
            "cycles of the reservoir's blocks after which a die's planes change roles, where one "
            "is idle; 0: never"
        ),
    ]
    reservoir_migrate: Annotated[
        int,
        Spec(
            "difference in mean cycles of two dies' reservoirs above which super-pages move from "
            "one to the other; 0: never"
        ),
    ]
