"""Records of a system: the integer copy of the configuration, and the state of each device.

Owns the fields of both records. Does not own the values (engine/run/config_table.py, build.py).
Source: this project.
"""

from __future__ import annotations

from ondie.emu.engine.core.state import record_type

CFG = record_type(
    channels="i8", ways="i8", planes="i8", dies="i8", pages="i8", page_bytes="i8",
    blocks="i8",  # conventional blocks per unit
    all_blocks="i8",
    block_pages="i8",  # pages of a unit's block
    line="i8",  # pages programmed together (ftl/word_lines.py)
    stripe="i8",  # pages of a unit's block between two word line boundaries of the write frontier
    passes="i8",  # program passes of a word line
    gather="i8",  # longest time (ps) that a page waits for the other pages of its word line
    worth="i8",  # most valid pages of a victim block
    block_shift="i8",  # log2 of block_pages, -1 if it is not a power of two
    page_shift="i8",
    units="i8",  # units of a device
    die_units="i8",  # units of a die
    unit_planes="i8",  # planes of a unit
    slots="i8",  # mapping units of a flash page (ftl/word_lines.py)
    together="i8",  # mapping units of a super-page of a unit
    unit_pages="i8",
    device_blocks="i8",  # blocks of all units of a device
    streams="i8",  # open blocks that host writes fill, per unit
    collected="i8",  # first stream of garbage-collected pages
    collected_streams="i8",  # number of streams of collected pages: one, or one per host stream
    cache="i8",  # 1: data cache; 2: destage buffer (nvme/mqsim_cache.py)
    cache_pages="i8", cache_writes="i8", cache_through="i8", cache_fills="i8",
    cache_dirty="i8",  # dirty pages above which pages are destaged
    cache_flights="i8", cache_idle="i8",
    cache_safe="i8",  # 1: power-loss protection: what has completed survives a power cut
    buffer_limit="i8", buffer_row="i8", buffer_burst="i8", buffer_ns="f8", buffer_open="i8",
    buffer_close="f8", buffer_strays="i8",  # of a destage buffer
    buffer_unwritten="i8",  # 1: pages that were never programmed share one slot of it
    dram_row="i8", dram_open="i8", dram_close="i8",  # bytes, ps per row
    map_stream="i8",  # first stream of translation pages, -1 = none
    map_streams="i8",  # number of streams of translation pages: one, or one for each zone
    map_entries="i8",  # entries of a cached mapping table; 0: the whole table is in DRAM
    map_caches="i8",  # cached mapping tables: one for each device, or one for each zone
    map_span="i8",  # entries of a translation page
    trim_maps="i8",  # trim maps of a device, after its logical and translation pages; 0: none
    trim_span="i8",  # logical pages of a trim map
    tpages="i8",  # translation pages of a device
    meta_every="i8",  # bytes of host writes between checkpoints (ftl/map_checkpoint.py)
    meta_first="i8",  # page number of the first metadata page
    meta_pages="i8",  # metadata pages of a device
    meta_maps="i8",  # of these, map pages, which come first; 0: no checkpoints
    meta_span="i8",  # page numbers of a map page
    meta_words="i8",  # words of an entry of a map page
    meta_blocks="i8",  # blocks of a page of the block table
    meta_flights="i8",  # metadata pages that are programmed at a time
    meta_slot="i8",  # first buffer of roots, before those of other metadata pages
    map_read="i8", map_writes="i8",
    open_ahead="i8",  # 1: a stream's next block is opened when the previous one is full
    static="i8",  # 1: static placement: the logical page number determines the unit
    partial="i8",  # 1: pages may be partially filled; only filled sectors are moved
    unwritten="i8",  # 1: a page that was never written is read as if written
    placed="i8",  # 1: a written page is mapped when its physical page is assigned
    locks="i8",  # 1: valid pages of a victim are locked until they are moved
    seed="i8",
    ring_shift="i8",
    ring="i8",  # requests in a queue pair's ring, a power of two
    gc_policy="i8", stream_policy="i8",  # addresses of functions (ftl/policies.py)
    gc_stop="i8", gc_hard="i8", gc_parallel="i8", exclusive="i8", copyback="i8",
    q_gc_read="i8", q_gc_write="i8", q_gc_erase="i8",
    erase_collected="i8", wear_dynamic="i8", wear_static="i8",
    spare_parts="i8",  # 1 / over-provisioning: pages per spare page
    program_failures="f8", erase_failures="f8",
    link_lanes="i8", link_shift="i8", packet="i8", packet_overhead="i8", link_tick="i8",
    ranked="i8",  # 1: host operations on a die are ordered by class
    map_losses="i8",  # 1: transactions lose mapping entries that are evicted before they are read
    map_forgets="i8",  # 1: the stored map forgets sectors of pages, as MQSim's (ftl/cmt.py)
    ordered="i8",  # 1: simultaneous events are handled in order of their registration
    adapter="i8",  # entries of the single queue of a host adapter; 0: one queue per pair
    entries="i8",  # entries of a submission queue (nvme/queue_pair.py); 0: unlimited
    fetch_limit="i8",  # most commands of a queue pair in the drive; 0: unlimited
    doorbell="i8", request="i8", entry="i8", completion="i8",
    whole_commands="i8",  # 1: data crosses the link per command, not per page
    lpns="i8",  # logical pages of the conventional namespace
    reservoir_pages="i8",  # reservoir super-pages per die
    reservoir_planes="i8",  # planes of a reservoir super-page
    rotate="i8",  # erase cycles of a block between rotations of its planes; 0: never
    register_move="i8",  # ps to move a page between registers of two planes
    multi_plane="i8", cache_read="i8", cache_program="i8", gradient_registers="i8",
    bus_scale="i8", bus_shift="i8",
    decode="i8", encode="i8", command="i8", submit="i8",
    read_delay="i8", write_delay="i8",  # firmware latency of reads and of other commands (ps)
    queue_depth="i8",
    gc_low="i8", gc_reserve="i8", gc_window="i8",
    gc_stalled="i8",  # 1: writes that wait for a free block check for a collection
    piece="i8",  # bytes per piece of a long DRAM transfer
    interleave="i8",  # 1: commands may interrupt data on a channel
    first_out="i8",  # best possible rank of pending data out (best_out in nand/channel.py)
    commands_first="i8",  # 1: commands before data out; 0: after, alternating with data in
    lanes="i8",  # planes of a die that read independently; 1: the whole die
    group="i8",  # 1: queued pages of a die are grouped into multi-plane operations
    power="i8",  # most planes with active arrays (power limit); 0: unlimited
    eager="i8",  # 1: the end of a read is an event while the channel is busy
    notice="i8",  # 1: the end of a read is an event before its data leave
    overlap="i8",  # 1: a die may request the channel while its array is busy
    special="i8",  # 1: suspend, power limit or independent plane reads are on
    chip="i8",  # 1: the dies of a chip are busy together
    any_order="i8",  # 1: programs of a block may overtake each other
    word="i8",  # 1: programs may have pages at several offsets (word lines)
    status="i8",  # 1: the status of a program or erase is read on the channel
    out="i8", out_plane="i8",  # ps of commands for data out: first plane, each further plane
    probe="i8",  # 1: nand/scheduler_statistics.py keeps its statistics
    watch="i8",  # 1: code outside the channel waits for the end of operations
    suspend_program="i8", suspend_erase="i8",  # 1: reads may suspend a program, an erase
    suspend_program_left="i8", suspend_erase_left="i8",  # least remaining ps to suspend
    suspend_program_wait="i8", suspend_erase_wait="i8",  # ps until the array is free
    suspends="i8",  # 1: program or erase suspend is on
    resume_wait="i8",
    max_suspends="i8",  # most suspends of one operation
    suspend_reads="i8",  # reads during one suspend; 0: unlimited
    shared_uplink="i8",
    isp_writes_apart="i8",
    isp_io="i8",  # plan_rows.ISP_IO, for modules that do not import plan_rows.py
    budget="i8",  # most transactions reserved by rows
    errors="i8",  # 1: reads may have raw bit errors
    reclaim_reads="i8", reclaim_retries="i8",  # reads, retries that trigger a reclaim; 0: never
    upkeep="i8",  # 1: blocks are refreshed or scrubbed (ftl/refresh.py)
    refresh_age="i8",  # age of data at which their block is refreshed (ps); 0: never
    refresh_first="i8",  # time at which the data from before the run reach it (ps)
    refresh_lead="i8",  # time before it from which an idle drive refreshes (ps)
    refresh_wait="i8",  # time between two looks at a block that cannot be refreshed yet (ps)
    scrub_step="i8",  # time between two blocks of a unit (ps); 0: no scrubbing
    scrub_pages="i8",  # pages of a block that are read; 0: all
    scrub_pause="i8",  # time between two reads of a unit while the host has commands (ps)
    refresh_bits="i8",  # wrong bits of a page above which its block is refreshed; -1: never
    shield_word="i8",  # code word bytes of the reservoir's on-die ECC; 0: none
    shield_limit="i8",  # bits corrected per such code word
    shield_coded="i8",  # 1: a real code decodes these pages
    exposure="i8",  # reads of a reservoir page that one simulated read represents
    round_trip="i8",  # 1: reservoir pages pass through the controller's ECC and back
    initial_cycles="i8", initial_days="f8",  # wear and age at the start of the run
    native="i8",  # conventional blocks per unit, without the fixed pSLC region
    pslc="i8",  # OFF, STATIC or DYNAMIC (ftl/pslc.py)
    pslc_stream="i8", fold_stream="i8",  # streams of pSLC writes and of folded pages
    pslc_hosts="i8",  # number of host streams (from 0) written to pSLC; 0: all
    pslc_pages="i8",  # pages of a unit's block in pSLC mode
    pslc_most="i8",  # most blocks of a unit in pSLC mode
    pslc_keep="i8",  # free blocks of a unit below which none becomes pSLC
    pslc_erase="i8",  # pSLC erase time minus native erase time (ps)
    pslc_wait="i8",  # 1: writes wait for pSLC blocks
    fold_blocks="i8", fold_idle="i8",
    fold_keep="i8",  # free native blocks that folding must leave
)  # fmt: skip


DEV = record_type(
    sq_head="i8", sq_tail="i8",  # host commands waiting for the queue depth
    outstanding="i8",
    stall_head="i8", stall_tail="i8",  # writes waiting for a free block
    cursor="i8",  # position of the next write in the allocation order
    mapped="i8",  # mapped logical pages
    r_mapped="i8",  # mapped reservoir super-pages
    filled="i8",  # blocks filled so far
    power="i8",  # planes with active arrays
    quiet_since="i8",  # time at which the host last became idle (ps)
    waking="i8",  # 1: the idle timer runs (nvme/idle_timer.py)
    first="i8",  # die (from 1) that is next to receive power
    entered="i8",  # requests entered into the queue of a host adapter (nvme/sata_hba.py)
    fetched="i8",  # of these, fetched by the drive
    known="i8",  # of these, those known to the host
    posted="i8",  # completions sent to the host
    reaped="i8",  # of these, acknowledged to the drive
    entry_head="i8", entry_tail="i8", post_head="i8", post_tail="i8",  # lists that wait for room
    lines="i8",  # word lines gathering or waiting for pass 2 (ftl/word_line_buffer.py)
    gathered="i8",  # pages in them and in word lines in flight
    joined="i8",  # of these, pages of the data cache
    pressing="i8",  # 1: a write waits until a page of the cache is on flash
    fua="i8",  # pages of writes that complete on flash, not in a word line yet
    ends="i8",  # 1: commands that cannot be executed end with a status (nvme/write_errors.py)
    doubt="i8",  # 1: writes wait for space, and no collection is in progress
    full="i8",  # 1: writes have ended for lack of space, and none has been freed since
    protected="i8",  # 1: read-only, because bad blocks have used up the spare blocks; 2: its store
    spare_at_start="i8",  # ftl/tables.spare_blocks; negative if the drive can run full
    spare="i8",  # of these, those that have not failed
    refused_pages="i8", refused_bytes="i8",  # of writes that ended before they were stored, sent
    faults="i8",  # writes that ended with a write fault
    trims="i8",  # number of trims, if they are recorded (ftl/trim_maps.py)
    saving="i8",  # 1: all that a power cut would lose is on its way to flash
    trims_wanted="i8",  # trims up to this number are to be written to flash
    unsaved="i8",  # trim maps with trims that are not on flash
    trim_flights="i8",  # trim maps that are being programmed
    trim_joining="i8",  # of these, those that are not in a word line yet
    trim_waiters="i8",  # 1 + first part of a FLUSH that waits for trim maps
    trim_cursor="i8",  # unit of the last trim map
    meta_since="i8",  # bytes of host writes since the last checkpoint began
    meta_step="i8",  # step of the checkpoint in progress (ftl/map_checkpoint.py)
    meta_cursor="i8",  # its next metadata page
    meta_flying="i8",  # metadata pages that are being programmed
    meta_bank="i8",  # their buffers: 0 or 1
    meta_unit="i8",  # unit of the last one
    meta_number="i8",  # number of the last checkpoint that has begun
    meta_root="i8",  # number of the last checkpoint that has ended
    epoch="i8",  # fencing epoch of the last root on flash
    epoch_wanted="i8",  # fencing epoch of the next root
    erases_before="i8",  # of all blocks, before the power was switched on
    worn_before="i8",  # erases of planes of the reservoir, before the power was switched on
    scrub_at="i8",  # time at which the next block of each unit is scrubbed (ps)
    scrub_turn="i8",  # blocks of each unit that scrubbing should have reached so far
)  # fmt: skip
