"""Configuration of the flash translation layer: mapping, garbage collection, wear leveling, pSLC,
cached mapping table.

Owns the leaves of section `ftl`. Does not own the policies (ftl/policies.py).
Source: the presets give a source for each value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.flash import ORDERS, RETENTIONS
from ondie.emu.config.schema.spec import Spec


@dataclass(frozen=True, slots=True)
class Ftl:
    over_provisioning: Annotated[
        float, Spec("share of the raw capacity that is not exported to the host")
    ]
    block_unit: Annotated[
        str,
        Spec(
            "unit of writing and garbage collection; die: a block of every plane of a die, plane: "
            "one block",
            choices=("die", "plane"),
        ),
    ]
    placement: Annotated[
        str,
        Spec(
            "choice of the unit for a written page; dynamic: the next unit in turn, static: the "
            "unit that the page number determines",
            choices=("dynamic", "static"),
        ),
    ]
    allocation: Annotated[
        str,
        Spec(
            "order in which writes rotate over channels (C), ways (W), dies (D) and planes (P)",
            choices=ORDERS,
        ),
    ]
    write_streams: Annotated[
        int, Spec("number of host write streams; each has an open block in every unit", least=1)
    ]
    gc_streams: Annotated[
        str,
        Spec(
            "open blocks for collected pages; one: a common block, each: one per stream of origin",
            choices=("one", "each"),
        ),
    ]
    open_blocks: Annotated[
        str,
        Spec(
            "time at which a block is opened; needed: at the first write to it, ahead: when the "
            "previous one is full",
            choices=("needed", "ahead"),
        ),
    ]
    stream_policy: Annotated[
        str, Spec("policy that selects the stream of a write: a name, or FILE.py:NAME")
    ]
    gc_policy: Annotated[
        str,
        Spec("policy that selects the victim block of garbage collection: a name, or FILE.py:NAME"),
    ]
    gc_low_blocks: Annotated[
        int, Spec("number of free blocks per unit at which garbage collection starts", least=1)
    ]
    gc_stop_blocks: Annotated[
        int, Spec("number of free blocks per unit below which host writes wait")
    ]
    gc_hard_blocks: Annotated[
        int, Spec("number of free blocks per unit below which garbage collection is urgent")
    ]
    gc_parallel: Annotated[
        int, Spec("largest number of concurrent garbage collections per unit", least=1)
    ]
    gc_window_pages: Annotated[
        int,
        Spec(
            "pages that garbage collection moves together, at least a word line; 0: all of a block"
        ),
    ]
    gc_priority: Annotated[
        str,
        Spec(
            "priority of garbage collection on a die; background: below host commands, shared: in "
            "one queue with them, urgent: above them, exclusive: host commands wait until the "
            "erase has started",
            choices=("background", "shared", "urgent", "exclusive"),
        ),
    ]
    gc_checks: Annotated[
        str,
        Spec(
            "events at which a unit checks whether it must collect; stalled: a block is full or "
            "erased, or writes wait for a free block, filled: only a full or erased block, so that "
            "writes can wait forever, as in MQSim",
            choices=("stalled", "filled"),
        ),
    ]
    host_order: Annotated[
        str,
        Spec(
            "order of the host's reads, and of its writes, on a die; arrival: first come, first "
            "served, class: class 0 first, then classes 1, 2 and 3 with weights 4, 2 and 1, "
            "polled: likewise, but the turn also advances when the scheduler polls a busy chip, as "
            "in MQSim",
            choices=("arrival", "class", "polled"),
        ),
    ]
    gc_copyback: Annotated[bool, Spec("collection moves pages inside the die (copy-back)")]
    mapping_unit_bytes: Annotated[
        int,
        Spec("bytes per mapping entry, a part of a page; 0: one page"),
    ]
    partial_pages: Annotated[
        str,
        Spec(
            "transfer of partial pages; whole: the whole page, sectors: only the requested sectors",
            choices=("whole", "sectors"),
        ),
    ]
    unwritten: Annotated[
        str,
        Spec(
            "read of a page that was never written; zeros: returns zeros without flash access, "
            "as_written: reads flash as if the page had been written",
            choices=("zeros", "as_written"),
        ),
    ]
    map_update: Annotated[
        str,
        Spec(
            "time at which a write updates the map; programmed: after its program, placed: when "
            "it gets its physical page",
            choices=("programmed", "placed"),
        ),
    ]
    trim_maps: Annotated[
        bool,
        Spec(
            "a FLUSH writes the trim maps that trims have changed to flash, so that trims survive "
            "a power loss; erases wait for these writes"
        ),
    ]
    map_checkpoint_bytes: Annotated[
        int,
        Spec(
            "bytes of host writes between two checkpoints of the mapping table on flash, which "
            "shorten the recovery after a power loss; 0: no checkpoints"
        ),
    ]
    victim_pages: Annotated[
        str,
        Spec(
            "host access to pages that garbage collection has not yet moved; open: allowed, "
            "locked: the host waits until they have moved, and the collection waits for earlier "
            "reads",
            choices=("open", "locked"),
        ),
    ]
    erase: Annotated[
        str,
        Spec(
            "time of the erase of a collected block; open: when it is opened again, collected: "
            "right after its pages have been moved",
            choices=("open", "collected"),
        ),
    ]
    wear_dynamic: Annotated[bool, Spec("the free block with the fewest erases is opened first")]
    wear_static_cycles: Annotated[
        int, Spec("difference in erase counts at which cold data is moved; 0: never")
    ]
    pslc: Annotated[
        str,
        Spec(
            "cache of blocks in pSLC mode, from which data is folded to native blocks; off: "
            "none, static: a fixed region, dynamic: borrowed free native blocks",
            choices=("off", "static", "dynamic"),
        ),
    ]
    pslc_share: Annotated[
        float,
        Spec(
            "share of a unit's blocks in the static pSLC region, or the largest share of borrowed "
            "blocks"
        ),
    ]
    pslc_full: Annotated[
        str,
        Spec(
            "write if no pSLC block is free; direct: goes to native blocks, wait: waits until a "
            "block has been folded",
            choices=("direct", "wait"),
        ),
    ]
    pslc_streams: Annotated[
        int, Spec("number of host write streams, starting at 0, that go to pSLC blocks; 0: all")
    ]
    fold_blocks: Annotated[
        int, Spec("folding starts when a unit may open only this many more pSLC blocks")
    ]
    fold_idle_ps: Annotated[
        int, Spec("host idle time after which full pSLC blocks are folded; 0: never")
    ]
    reclaim_reads: Annotated[
        int, Spec("reads of a block since its erase after which its data is moved; 0: never")
    ]
    reclaim_retries: Annotated[
        int, Spec("read retries of a page after which the data of its block is moved; 0: never")
    ]
    refresh_age_ps: Annotated[
        int,
        Spec(
            "age of data at which its block is refreshed (moved and erased) at the latest; in "
            "idle times, blocks are refreshed at 15/16 of this age or later; 0: never"
        ),
    ]
    refresh_bits: Annotated[
        float,
        Spec(
            "bit errors that scrubbing finds in a page, as a share of its correctable bits, above "
            "which the block is refreshed; 0: only after read retries"
        ),
    ]
    scrub_interval_ps: Annotated[
        int, Spec("time in which every block with data is read once for bit errors; 0: never")
    ]
    scrub_pages: Annotated[
        int,
        Spec(
            "pages of a block that scrubbing reads, at equal distances and of the page type with "
            "the most errors; 0: all pages with data"
        ),
    ]
    bad_blocks: Annotated[float, Spec("share of factory bad blocks")]
    program_failures: Annotated[
        float,
        Spec(
            "probability that a program fails and its block is retired; above 0, the last two "
            "free blocks of a unit are reserved for garbage collection"
        ),
    ]
    erase_failures: Annotated[
        float, Spec("probability that an erase fails and its block is retired")
    ]
    gather_time_ps: Annotated[
        int,
        Spec(
            "longest time that a page waits for the other pages of its word line, or a mapping "
            "unit for the rest of its page; then the rest is padded",
            least=1,
        ),
    ]
    map_cache_bytes: Annotated[
        int, Spec("DRAM of the cached mapping table; 0: the whole map is in DRAM")
    ]
    map_read_bytes: Annotated[
        int,
        Spec(
            "bytes of a translation page transferred over the channel on a miss; 0: the whole page"
        ),
    ]
    map_writes: Annotated[
        int,
        Spec(
            "largest number of concurrent write-backs of translation pages; 0: no flash writes: "
            "an evicted page is assigned a flash page but stays in DRAM"
        ),
    ]
    initial: Annotated[
        str, Spec("state of the flash at the start of the run", choices=("steady", "fresh"))
    ]
    reservoir_fraction: Annotated[
        float, Spec("share of each die's blocks reserved for the optimizer (the reservoir)")
    ]
    reservoir_retention: Annotated[
        str,
        Spec("retention required of the reservoir's data", choices=("rated", *RETENTIONS)),
    ]
    reservoir_rotate: Annotated[
        int,
        Spec(
            "P/E cycles of the reservoir after which the planes of a die with an idle plane "
            "change roles; 0: never"
        ),
    ]
    reservoir_migrate: Annotated[
        int,
        Spec(
            "difference in mean P/E cycles of the reservoirs of two dies above which "
            "super-pages move between them; 0: never"
        ),
    ]
