"""Names of the activity counters of a device.

Owns the list of counters. Does not own the time and energy that the counted events cost
(analysis/ledger.py, analysis/energy.py).
Source: the terms of MQSim's and SimpleSSD's reports.

"Pages" means pages of the mapping table: flash pages, or mapping units if a flash page contains
several mapping units.
"""

from __future__ import annotations

COUNTERS = (
    "read_pages",  # host and ISP reads, planes sensed
    "program_pages",  # host and ISP writes, planes programmed
    "gc_read_pages",
    "gc_program_pages",
    "gc_dropped_pages",  # read by garbage collection, then overwritten by the host or not moved
    "erased_blocks",  # blocks, not super-blocks
    "bpr_pages",  # buffered page reads: planes sensed into the registers
    "bpp_pages",  # buffered page programs: planes programmed from the registers
    "vpp_pages",  # volatile page programs: gradients moved into a register
    "odc_ops",  # on-die computations, one per stripe
    "reservoir_read_pages",  # reservoir pages read out over the channel
    "unmapped_pages",  # reads of unmapped pages: zeros from the controller, no flash operation
    "array_reads",  # array operations; a multi-plane operation counts once
    "array_programs",
    "array_erases",
    "ecc_decoded_pages",
    "ecc_encoded_pages",
    "ecc_iterations",  # of a real LDPC code, in all decodings; of BCH: wrong bits of words
    "ecc_retry_iterations",  # of these, in decodings that another reading of the page followed
    "ecc_late_iterations",  # of these, beyond those that fit into ecc.decode of their decoding
    "commands",  # NVMe commands fetched
    "commands_done",
    "host_read_bytes",  # by NVMe reads
    "host_write_bytes",  # by NVMe writes
    "isp_read_bytes",  # by the ISP's own block device
    "isp_write_bytes",
    "down_bytes",  # host memory to device DRAM, outside NVMe reads and writes
    "up_bytes",  # device DRAM to host memory, outside NVMe reads and writes
    "load_bytes",  # device DRAM to the dies' gradient registers
    "reservoir_up_bytes",  # reservoir pages to host memory
    "isp_bytes",  # DRAM traffic of ISP computation
    "tunnel_bytes",  # bytes of messages, up and down
    "trimmed_pages",
    "collections",
    "merge_read_pages",  # old pages read for partial-page writes (read-modify-write)
    "program_failures",
    "bad_blocks",  # retired during the run
    "wear_moves",  # blocks emptied for static wear leveling
    "copyback_pages",  # moved by garbage collection inside their die (copy-back)
    "failed_pages",  # pages of failed programs, programmed again elsewhere
    "unasked_out_bytes",  # bytes of sensed pages that were not requested, left in the register
    "unasked_in_bytes",  # bytes of programmed pages in sectors that the write did not contain
    "unasked_again_bytes",  # the same bytes in second passes
    "link_extra_down_bytes",  # protocol messages, packet overhead, padding
    "link_extra_up_bytes",
    "map_read_pages",  # translation pages read for misses and for write-back
    "map_program_pages",
    "map_hits",  # pages whose mapping was in the cached mapping table
    "map_misses",
    "retried_pages",  # pages that took more than one read
    "retry_read_pages",  # hard-decision read retries (reads after the first)
    "soft_pages",  # pages that needed soft-decision decoding
    "soft_read_pages",  # reads for soft-decision decoding
    "corrected_bits",  # in the reads that were decoded successfully
    "uncorrectable_pages",  # uncorrectable pages, for reads of any origin
    "lost_pages",  # read correctly, but their data was lost before they were moved there
    "newly_lost_pages",  # pages whose data a move could not read: lost from then on
    "media_errors",  # commands of the host or the ISP that ended with an unrecovered read error
    "bare_wrong_bits",  # wrong bits in reservoir pages as used, without ECC or after it
    "reclaimed_blocks",  # blocks emptied because of read disturb or retries
    "cache_write_pages",  # written pages that the data cache accepted
    "cache_merged_pages",  # of those, pages whose previous contents were not on flash yet
    "cache_dropped_pages",  # contents invalidated by TRIM or by a write that bypassed the cache
    "destaged_pages",  # contents sent to flash; included in the programmed pages
    "cache_hit_pages",  # read pages that were in the cache, at least in part
    "cache_fill_pages",  # pages loaded into the cache by reads
    "padding_pages",  # pages without data, to complete a word line or a flash page of mapping units
    "padded_at_flush",  # word lines padded for a FLUSH or a write that completes on flash
    "padded_at_rest",  # word lines padded because the host waited and no event was pending
    "padded_in_time",  # word lines padded after the longest gather time
    "second_pass_pages",  # pages sent to the die and programmed again in the second pass
    "gathered_most",  # most pages in DRAM for word lines not yet programmed, per device
    "pslc_pages",  # programmed pages in pSLC blocks
    "direct_pages",  # programmed pages for which no pSLC block was free
    "folds",  # pSLC blocks emptied by folding
    "fold_read_pages",
    "fold_program_pages",
    "fold_dropped_pages",  # read for folding, then overwritten by the host or not moved
    "pslc_erased_blocks",  # erased blocks in pSLC mode
    "beside_pages",  # mapping units sensed with a read of other units of their flash page
    "overruled_victims",  # collections whose policy chose a victim that frees no block
    "bare_corrected_bits",  # bits in reservoir pages corrected by pe.protection
    "pe_decoded_pages",  # reservoir pages decoded by the controller's ECC
    "pe_encoded_pages",  # pages computed by the dies, encoded by the controller's ECC
    "pe_returned_pages",  # decoded pages returned to the dies' registers
    "scan_bytes",  # bytes of reservoir pages read into DRAM to recover the reservoir map
    "fetched_pages",  # register pages read out to the controller
    "stored_pages",  # reservoir pages programmed by the controller with its parity
    "kept_pages",  # gradient pages programmed into the array
    "tunnel_commands",  # NVMe commands and notifications of the tunnel
    "tunnel_wire_bytes",  # bytes of messages, packet headers and commands
    "lifted_pages",  # reservoir pages read into DRAM for a move to another die (wear leveling)
    "landed_pages",  # reservoir pages programmed on their new die (wear leveling)
    "turned_pages",  # pages moved between registers (wear leveling inside a die)
    "program_suspensions",  # SUSPEND commands to a program; one may be suspended several times
    "erase_suspensions",
    "split_hit_pages",  # read pages that were in the cache only in part
    "remerged_pages",  # programmed, then merged again because another write had changed the page
    "scrub_read_pages",  # read to look for bit errors (scrubbing)
    "refreshed_blocks",  # blocks emptied because of age or of bit errors that scrubbing found
    "refresh_read_pages",
    "refresh_program_pages",
    "refresh_dropped_pages",  # read for a refresh, then overwritten by the host or not moved
)

(
    READ_PAGES, PROGRAM_PAGES, GC_READ_PAGES, GC_PROGRAM_PAGES, GC_DROPPED, ERASED_BLOCKS,
    BPR_PAGES, BPP_PAGES, VPP_PAGES, ODC_OPS, RESERVOIR_READ_PAGES, UNMAPPED_PAGES,
    ARRAY_READS, ARRAY_PROGRAMS, ARRAY_ERASES, ECC_DECODED_PAGES, ECC_ENCODED_PAGES,
    ECC_ITERATIONS, ECC_RETRY_ITERATIONS, ECC_LATE_ITERATIONS,
    COMMANDS, COMMANDS_DONE, HOST_READ_BYTES, HOST_WRITE_BYTES, ISP_READ_BYTES, ISP_WRITE_BYTES,
    DOWN_BYTES, UP_BYTES, LOAD_BYTES, RESERVOIR_UP_BYTES, ISP_BYTES, TUNNEL_BYTES, TRIMMED_PAGES,
    COLLECTIONS, MERGE_READ_PAGES, PROGRAM_FAILURES, BAD_BLOCKS, WEAR_MOVES, COPYBACK_PAGES,
    FAILED_PAGES, UNASKED_OUT_BYTES, UNASKED_IN_BYTES, UNASKED_AGAIN_BYTES,
    LINK_EXTRA_DOWN_BYTES, LINK_EXTRA_UP_BYTES,
    MAP_READ_PAGES, MAP_PROGRAM_PAGES, MAP_HITS, MAP_MISSES,
    RETRIED_PAGES, RETRY_READ_PAGES, SOFT_PAGES, SOFT_READ_PAGES, CORRECTED_BITS,
    UNCORRECTABLE_PAGES, LOST_PAGES, NEWLY_LOST_PAGES, MEDIA_ERRORS, BARE_WRONG_BITS,
    RECLAIMED_BLOCKS,
    CACHE_WRITE_PAGES, CACHE_MERGED_PAGES, CACHE_DROPPED_PAGES, DESTAGED_PAGES,
    CACHE_HIT_PAGES, CACHE_FILL_PAGES,
    PADDING_PAGES, PADDED_AT_FLUSH, PADDED_AT_REST, PADDED_IN_TIME, SECOND_PASS_PAGES,
    GATHERED_MOST,
    PSLC_PAGES, DIRECT_PAGES, FOLDS, FOLD_READ_PAGES, FOLD_PROGRAM_PAGES, FOLD_DROPPED,
    PSLC_ERASED_BLOCKS,
    BESIDE_PAGES, OVERRULED,
    BARE_CORRECTED_BITS, PE_DECODED_PAGES, PE_ENCODED_PAGES, PE_RETURNED_PAGES, SCAN_BYTES,
    FETCHED_PAGES, STORED_PAGES, KEPT_PAGES,
    TUNNEL_COMMANDS, TUNNEL_WIRE_BYTES,
    LIFTED_PAGES, LANDED_PAGES, TURNED_PAGES,
    PROGRAM_SUSPENSIONS, ERASE_SUSPENSIONS, SPLIT_HIT_PAGES, REMERGED_PAGES,
    SCRUB_READ_PAGES, REFRESHED_BLOCKS, REFRESH_READ_PAGES, REFRESH_PROGRAM_PAGES, REFRESH_DROPPED,
) = range(len(COUNTERS))  # fmt: skip

MOVE_STARTS = (COLLECTIONS, FOLDS, REFRESHED_BLOCKS)
MOVE_READS = (GC_READ_PAGES, FOLD_READ_PAGES, REFRESH_READ_PAGES)
MOVE_PROGRAMS = (GC_PROGRAM_PAGES, FOLD_PROGRAM_PAGES, REFRESH_PROGRAM_PAGES)
MOVE_DROPS = (GC_DROPPED, FOLD_DROPPED, REFRESH_DROPPED)
"""Counters of pages that were read to be moved but not programmed again, by cause: garbage
collection, folding, refresh. MOVE_STARTS, MOVE_READS and MOVE_PROGRAMS have the same order.
"""

SENSED = (
    "read_pages", "gc_read_pages", "merge_read_pages", "map_read_pages", "bpr_pages",
    "reservoir_read_pages", "retry_read_pages", "soft_read_pages", "fold_read_pages",
    "beside_pages", "lifted_pages", "scrub_read_pages", "refresh_read_pages",
)  # fmt: skip
"""Counters of pages that are sensed (read) from the flash array."""
PROGRAMMED = (
    "program_pages", "gc_program_pages", "failed_pages", "bpp_pages", "map_program_pages",
    "padding_pages", "second_pass_pages", "fold_program_pages", "stored_pages", "kept_pages",
    "landed_pages", "remerged_pages", "refresh_program_pages",
)  # fmt: skip
"""Counters of pages that are programmed into the flash array."""
