"""Counters of what a device did, by name.

Owns the list of counters. Does not own their meaning in time or energy (ledger.py, energy.py).
Source: the terms of MQSim's and SimpleSSD's reports.

Pages are those of the map: of flash, or the mapping units that a page of flash has several of.
"""

from __future__ import annotations

(
    READ_PAGES, PROGRAM_PAGES, GC_READ_PAGES, GC_PROGRAM_PAGES, GC_DROPPED, ERASED_BLOCKS,
    BPR_PAGES, BPP_PAGES, VPP_PAGES, ODC_OPS, RESERVOIR_READ_PAGES, UNMAPPED_PAGES,
    ARRAY_READS, ARRAY_PROGRAMS, ARRAY_ERASES, ECC_DECODED_PAGES, ECC_ENCODED_PAGES,
    COMMANDS, COMMANDS_DONE, HOST_READ_BYTES, HOST_WRITE_BYTES, ISP_READ_BYTES, ISP_WRITE_BYTES,
    DOWN_BYTES, UP_BYTES, LOAD_BYTES, RESERVOIR_UP_BYTES, ISP_BYTES, TUNNEL_BYTES, TRIMMED_PAGES,
    COLLECTIONS, MERGE_READ_PAGES, PROGRAM_FAILURES, BAD_BLOCKS, WEAR_MOVES, COPYBACK_PAGES,
    FAILED_PAGES, UNASKED_OUT_BYTES, UNASKED_IN_BYTES, LINK_EXTRA_DOWN_BYTES, LINK_EXTRA_UP_BYTES,
    MAP_READ_PAGES, MAP_PROGRAM_PAGES, MAP_HITS, MAP_MISSES,
    RETRIED_PAGES, RETRY_READ_PAGES, SOFT_PAGES, SOFT_READ_PAGES, CORRECTED_BITS,
    UNCORRECTABLE_PAGES, LOST_PAGES, MEDIA_ERRORS, BARE_WRONG_BITS,
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
) = range(89)  # fmt: skip
COUNTERS = (
    "read_pages",  # host and ISP reads, planes sensed
    "program_pages",  # host and ISP writes, planes programmed
    "gc_read_pages",
    "gc_program_pages",
    "gc_dropped_pages",  # read by collection, then overwritten, or left where they were
    "erased_blocks",  # blocks, not super-blocks
    "bpr_pages",  # buffered page reads: planes sensed into the registers
    "bpp_pages",  # buffered page programs: planes programmed from the registers
    "vpp_pages",  # volatile page programs: gradients moved into a register
    "odc_ops",  # on-die computations, one per stripe
    "reservoir_read_pages",  # reservoir pages read out over the channel
    "unmapped_pages",  # read without a mapping: zeros from the controller, no flash operation
    "array_reads",  # array operations, multi-plane ones counted once
    "array_programs",
    "array_erases",
    "ecc_decoded_pages",
    "ecc_encoded_pages",
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
    "tunnel_bytes",  # of messages, up and down
    "trimmed_pages",
    "collections",
    "merge_read_pages",  # old pages read because a write covered only part of them
    "program_failures",
    "bad_blocks",  # retired during the run
    "wear_moves",  # blocks emptied for static wear levelling
    "copyback_pages",  # moved by collection inside their die
    "failed_pages",  # of programs that failed, and were programmed again elsewhere
    "unasked_out_bytes",  # of sensed pages: what nobody asked for, left in the register
    "unasked_in_bytes",  # of programmed pages: sectors that the write did not hold
    "link_extra_down_bytes",  # messages of the protocol, packet overhead, padding
    "link_extra_up_bytes",
    "map_read_pages",  # translation pages, for misses and to be written back
    "map_program_pages",
    "map_hits",  # pages whose place was in the cached mapping table
    "map_misses",
    "retried_pages",  # that took more than one reading
    "retry_read_pages",  # readings after the first, tried by hard decision
    "soft_pages",  # that went to soft decision
    "soft_read_pages",  # readings for it
    "corrected_bits",  # in the readings that were right in the end
    "uncorrectable_pages",  # given up, by whomever they were read
    "lost_pages",  # read well, but lost before they were moved to where they are
    "media_errors",  # commands of the host or the ISP that ended with an unrecovered read error
    "bare_wrong_bits",  # in reservoir pages as they were used, past the ECC or behind it
    "reclaimed_blocks",  # emptied because of their reads
    "cache_write_pages",  # pages of writes that the data cache took
    "cache_merged_pages",  # of those, pages whose last content flash had not got yet
    "cache_dropped_pages",  # contents that TRIM or a write past the cache made void
    "destaged_pages",  # contents sent to flash, among the programmed pages
    "cache_hit_pages",  # pages of reads that were in the cache, at least in part
    "cache_fill_pages",  # pages that reads brought into it
    "padding_pages",  # pages without data, programmed to complete a word line, or a page of units
    "padded_at_flush",  # word lines completed so: for a FLUSH or a write that completes on flash,
    "padded_at_rest",  # as the host waited and nothing else was under way,
    "padded_in_time",  # after the longest wait
    "second_pass_pages",  # pages that were sent to the die, and programmed, once more
    "gathered_most",  # most pages in DRAM for word lines not yet programmed, of each device
    "pslc_pages",  # of the programmed pages, those in pSLC blocks
    "direct_pages",  # of the programmed pages, those that found no pSLC block
    "folds",  # pSLC blocks that were emptied
    "fold_read_pages",
    "fold_program_pages",
    "fold_dropped_pages",  # read to be folded, then overwritten, or left where they were
    "pslc_erased_blocks",  # of the erased blocks, those in pSLC mode
    "beside_pages",  # mapping units sensed because others of their page of flash were read
    "overruled_victims",  # of the collections, those whose policy chose what brought no free block
    "bare_corrected_bits",  # in reservoir pages, by what protects them (pe.protection)
    "pe_decoded_pages",  # reservoir pages that went through the controller's decoder,
    "pe_encoded_pages",  # what the dies computed, through its encoder,
    "pe_returned_pages",  # and decoded pages sent back into the dies' registers
    "scan_bytes",  # of the reservoir's pages, read into DRAM to recover its map
    "fetched_pages",  # pages of registers read out to the controller
    "stored_pages",  # reservoir pages programmed by the controller, with its parity
    "kept_pages",  # gradient pages programmed into the array
    "tunnel_commands",  # NVMe commands of the tunnel, and notifications
    "tunnel_wire_bytes",  # messages with the headers of their packets and commands
    "lifted_pages",  # reservoir pages read into DRAM, to be programmed on another die,
    "landed_pages",  # and programmed there, to level wear between dies
    "turned_pages",  # pages moved from register to register, to level wear inside a die
)
