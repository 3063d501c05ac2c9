"""The configuration tree: every leaf of a device and its host, its type, unit and meaning.

Owns the section dataclasses and the table KEYS derived from them (`flash.t_read` and its attribute
`t_read_ps`). Does not read files or hold numbers: presets/*.toml state every leaf, no default here.
Source: the block diagrams of Newport, Laguna and OptimStore; ONFI, NVMe and DeepSpeed names.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

from ondie.emu.units import Kind, kind_of


@dataclass(frozen=True, slots=True)
class Spec:
    """What a leaf means, the least value it may have, and for text the ordered set allowed."""

    doc: str
    least: int = 0
    choices: tuple[str, ...] = ()
    key: str = ""


@dataclass(frozen=True, slots=True)
class System:
    name: Annotated[str, Spec("name of the configuration, printed with results")]
    devices: Annotated[int, Spec("drives in the system", least=1)]
    capacity_bytes: Annotated[int, Spec("nominal capacity of one drive", least=1)]


@dataclass(frozen=True, slots=True)
class Host:
    adam_params_per_s: Annotated[int, Spec("rate of the optimizer step on the host's CPU", least=1)]
    dram_bandwidth_bytes_per_s: Annotated[int, Spec("sustained bandwidth of host DRAM", least=1)]
    dram_bytes: Annotated[int, Spec("capacity of host DRAM", least=1)]
    io_queue_depth: Annotated[int, Spec("block requests kept in flight (aio queue depth)", least=1)]
    io_block_bytes: Annotated[int, Spec("size of one block request", least=1)]
    io_submit_ps: Annotated[int, Spec("CPU time to submit and reap a command, one thread")]
    subgroup_params: Annotated[int, Spec("parameters per optimizer sub-group", least=1)]
    top_k_params_per_s: Annotated[
        int, Spec("rate of the accelerator choosing a gradient's Top-K", least=1)
    ]
    update_power_mw: Annotated[int, Spec("host power while its CPU updates the weights")]
    wait_power_mw: Annotated[int, Spec("host power while it waits for the storage")]
    compute_power_mw: Annotated[int, Spec("host and accelerator power in forward and backward")]
    dram_fj_per_bit: Annotated[int, Spec("energy of host DRAM traffic", key="dram_energy")]


@dataclass(frozen=True, slots=True)
class Link:
    down_bytes_per_s: Annotated[int, Spec("payload rate host to drive", least=1)]
    up_bytes_per_s: Annotated[int, Spec("payload rate drive to host", least=1)]
    latency_ps: Annotated[int, Spec("one-way latency of a transfer")]
    lanes: Annotated[
        int, Spec("bytes that cross side by side: messages are padded to them", least=1)
    ]
    packet_bytes: Annotated[int, Spec("largest payload of a packet; 0: rates are of payload")]
    packet_overhead_bytes: Annotated[int, Spec("header and framing of a packet")]
    tick_ps: Annotated[
        int, Spec("a message takes a whole number of these, rounded down; 0: any time")
    ]
    uplink_bytes_per_s: Annotated[int, Spec("link shared by all drives; 0: not shared")]
    fj_per_bit: Annotated[int, Spec("energy of the link, per port", key="energy")]


@dataclass(frozen=True, slots=True)
class Frontend:
    command_ps: Annotated[int, Spec("firmware time per NVMe command, one core, serial")]
    queue_depth: Annotated[int, Spec("commands the drive holds", least=1)]
    max_transfer_bytes: Annotated[int, Spec("largest command (MDTS)", least=512)]
    fetch_limit: Annotated[
        int, Spec("commands of a queue pair that the drive works on at most; 0: any number")
    ]
    doorbell_bytes: Annotated[int, Spec("write that announces or acknowledges an entry; 0: none")]
    request_bytes: Annotated[int, Spec("read request by which the drive fetches; 0: none")]
    entry_bytes: Annotated[int, Spec("submission queue entry on the link; 0: none")]
    completion_bytes: Annotated[int, Spec("completion queue entry on the link; 0: none")]
    transfer: Annotated[
        str,
        Spec(
            "data cross the link as pages are ready, or a whole command at once",
            choices=("page", "command"),
        ),
    ]


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


@dataclass(frozen=True, slots=True)
class Ecc:
    decode_ps: Annotated[int, Spec("decoding one page, one engine per channel")]
    encode_ps: Annotated[int, Spec("encoding one page, one engine per channel")]
    codeword_bytes: Annotated[int, Spec("user bytes of a code word", least=1)]
    correctable_bits: Annotated[int, Spec("wrong bits of a code word that hard decision corrects")]
    decode_limit_ps: Annotated[int, Spec("decoding a page at its limit, or giving it up")]
    retries: Annotated[int, Spec("readings of a page after the first, at shifted voltages")]
    retry_gain: Annotated[float, Spec("share of the shifted errors that a retry leaves")]
    soft_reads: Annotated[int, Spec("more readings for soft decision; 0: there is none")]
    soft_gain: Annotated[float, Spec("wrong bits that soft decision corrects, over hard decision")]
    soft_decode_ps: Annotated[int, Spec("decoding one page with soft decision")]


@dataclass(frozen=True, slots=True)
class Errors:
    kind: Annotated[
        str,
        Spec(
            "raw bit errors: none, one rate for every page, or by the model below",
            choices=("none", "rate", "model"),
        ),
    ]
    rate: Annotated[float, Spec("raw bit error rate of every reading, kind rate")]
    exposure: Annotated[
        int,
        Spec(
            "readings of the optimizer's pages on the die that each of them stands for: a small "
            "model's for those of one so many times as large",
            least=1,
        ),
    ]
    floor: Annotated[float, Spec("raw bit error rate of a new block, just programmed")]
    wear: Annotated[float, Spec("rate per (P/E cycle)^wear_exponent")]
    wear_exponent: Annotated[float, Spec("power of P/E cycles")]
    retention: Annotated[float, Spec("rate per day^retention_exponent, new block")]
    retention_cycles: Annotated[int, Spec("P/E cycles that count as one in retention", least=1)]
    retention_cycles_exponent: Annotated[float, Spec("power of 1 + cycles / retention_cycles")]
    retention_exponent: Annotated[float, Spec("power of days since the page was programmed")]
    disturb: Annotated[float, Spec("rate per (reads / disturb_reads)^disturb_exponent, 1 cycle")]
    disturb_reads: Annotated[int, Spec("reads of a block that count as one in disturb", least=1)]
    disturb_exponent: Annotated[float, Spec("power of reads / disturb_reads")]
    disturb_cycles_exponent: Annotated[float, Spec("power of P/E cycles in disturb")]
    coding: Annotated[
        str,
        Spec("Gray code: reference voltages by page type", choices=("balanced", "binary")),
    ]
    pslc: Annotated[float, Spec("rates of a block in pSLC mode, over those above")]
    slc: Annotated[float, Spec("rates of SLC, over those above")]
    mlc: Annotated[float, Spec("rates of a block in MLC mode, over those above")]
    tlc: Annotated[float, Spec("rates of a block in TLC mode, over those above")]
    qlc: Annotated[float, Spec("rates of a block in QLC mode, over those above")]
    initial_cycles: Annotated[int, Spec("P/E cycles of every block before the run")]
    initial_days: Annotated[float, Spec("age of the data that a run finds")]


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


@dataclass(frozen=True, slots=True)
class Cache:
    mode: Annotated[
        str,
        Spec(
            "data cache: writes complete in DRAM, or stay there on their way to flash; reads stay "
            "there; both",
            choices=("off", "write_back", "write_through", "read", "read_write"),
        ),
    ]
    capacity_bytes: Annotated[int, Spec("DRAM of the data cache")]
    dirty_share: Annotated[
        float, Spec("share of it that may wait to be written to flash before that begins")
    ]
    destage_pages: Annotated[
        int, Spec("pages on their way to flash at once; 0: one for each plane of the drive")
    ]
    destage_idle: Annotated[bool, Spec("they are written, too, while no command is outstanding")]


@dataclass(frozen=True, slots=True)
class Dram:
    capacity_bytes: Annotated[int, Spec("DRAM of the drive", least=1)]
    isp_bytes: Annotated[int, Spec("part of it that the in-storage processor may use")]
    bandwidth_bytes_per_s: Annotated[int, Spec("sustained bandwidth, reads and writes", least=1)]
    row_bytes: Annotated[int, Spec("row that an access opens; 0: the bandwidth covers that")]
    t_rcd_ps: Annotated[int, Spec("row to column, once per row, tRCD")]
    t_cl_ps: Annotated[int, Spec("column to data, once per row, tCL")]
    t_rp_ps: Annotated[int, Spec("precharge before the next row of the same access, tRP")]


@dataclass(frozen=True, slots=True)
class Isp:
    kind: Annotated[
        str,
        Spec(
            "in-storage processor: CPU cores, or a streaming engine (fpga)",
            choices=("none", "cores", "fpga"),
        ),
    ]
    cores: Annotated[int, Spec("cores of the processor")]
    frequency_hz: Annotated[int, Spec("clock of a core")]
    ipc: Annotated[float, Spec("instructions per cycle and core")]
    engine_bytes_per_s: Annotated[int, Spec("rate of the streaming engine; 0 for cores")]
    decompress_bytes_per_s: Annotated[
        int, Spec("rate of Top-K decompression beside the update, bytes of gradient; 0: none")
    ]
    flash_bytes_per_s: Annotated[int, Spec("rate of the path processor to back end")]
    training_ratio: Annotated[float, Spec("training speed, drive over host; 0: cannot train")]
    training_ratio_by_model: Annotated[Mapping[str, float], Spec("the same, per known model")] = (
        dataclasses.field(hash=False)
    )


@dataclass(frozen=True, slots=True)
class Pe:
    kind: Annotated[str, Spec("processing elements on the die", choices=("none", "per_plane"))]
    clock_divider: Annotated[int, Spec("interface clock over the element's clock")]
    narrow_values: Annotated[
        int, Spec("16-bit values that an element takes a clock; 0: 32-bit values alone")
    ]
    bus_values: Annotated[
        float,
        Spec(
            "values per cycle of the elements' clock that the die's shared bus brings from other "
            "planes' registers"
        ),
    ]
    dispatch: Annotated[
        str,
        Spec(
            "when a die may start its stripe, slowest first",
            choices=("lockstep", "free", "double_buffered"),
        ),
    ]
    protection: Annotated[
        str,
        Spec(
            "what stands between wrong bits and who reads the optimizer's pages: nothing, a "
            "comparator of exponents, a code on the die, or the controller's, over the channel "
            "and back",
            choices=("none", "nan_comparator", "on_die_ecc", "controller_ecc"),
        ),
    ]
    ecc_codeword_bytes: Annotated[int, Spec("user bytes of the die's code word", least=1)]
    ecc_correctable_bits: Annotated[int, Spec("wrong bits of it that are corrected")]
    ecc_bytes_per_s: Annotated[
        int, Spec("rate of the die's encoder and decoder, one per die", least=1, key="ecc_rate")
    ]
    randomiser: Annotated[str, Spec("who keeps stored patterns random", choices=("none", "die"))]
    cipher: Annotated[str, Spec("who keeps stored states encrypted", choices=("none", "die"))]
    cipher_bytes_per_s: Annotated[
        int, Spec("AES-XTS engine of a die, pages in turn", key="cipher_rate")
    ]
    integrity: Annotated[
        str, Spec("who renews the guards of end-to-end protection", choices=("none", "die"))
    ]
    rain: Annotated[int, Spec("dies of a parity stripe, its parity among them; 0: no parity")]
    atomicity: Annotated[
        str,
        Spec(
            "after a power cut: a mixture, the step goes on from recorded cursors, or is undone",
            choices=("none", "resume", "undo"),
        ),
    ]


@dataclass(frozen=True, slots=True)
class Tunnel:
    payload_bytes: Annotated[
        int, Spec("buffer of one of its NVMe commands, upward with 4 B of length; 0: no tunnel")
    ]
    outstanding: Annotated[int, Spec("commands in flight each way")]
    command_ps: Annotated[
        int, Spec("a command from submission to completion, the host's CPU apart")
    ]
    notify_ps: Annotated[int, Spec("until the host's relay knows that a drive has data")]
    notification: Annotated[
        str,
        Spec(
            "a drive signals when it has data after it had none, or for every command to come",
            choices=("burst", "command"),
        ),
    ]
    mtu_bytes: Annotated[int, Spec("largest IP packet of the pseudo network devices")]
    concatenate: Annotated[bool, Spec("a command may carry several packets")]
    relay_command_ps: Annotated[
        int, Spec("host CPU of the relay per command, and per notification")
    ]
    relay_bytes_per_s: Annotated[
        int, Spec("rate at which a thread of the relay copies; 0: no time", key="relay_copy")
    ]
    relay_threads: Annotated[int, Spec("threads of the relay at work at once, for all drives")]
    relay_core_mw: Annotated[
        int, Spec("a core that relays; inside the host's power, never added to it")
    ]


@dataclass(frozen=True, slots=True)
class Energy:
    nand_read_fj_per_bit: Annotated[int, Spec("array read, per bit of page")]
    nand_program_fj_per_bit: Annotated[int, Spec("array program, per bit of page")]
    nand_erase_fj_per_bit: Annotated[int, Spec("block erase, per bit of block")]
    channel_fj_per_bit: Annotated[int, Spec("channel I/O")]
    dram_fj_per_bit: Annotated[int, Spec("DRAM of the drive")]
    ecc_fj_per_bit: Annotated[int, Spec("encoding or decoding")]
    pe_ecc_fj_per_bit: Annotated[int, Spec("encoding or decoding on the die")]
    pe_add_fj: Annotated[int, Spec("one 32-bit addition on the die")]
    pe_multiply_fj: Annotated[int, Spec("one 32-bit multiplication on the die")]
    register_fj_per_bit: Annotated[int, Spec("page register access by a processing element")]
    pe_cipher_fj_per_bit: Annotated[int, Spec("AES-XTS engine on the die, per bit")]
    pe_bus_fj_per_bit: Annotated[int, Spec("the die's shared bus, from plane to plane")]
    isp_core_mw: Annotated[int, Spec("a busy core of the processor; for fpga: the engine")]
    controller_mw: Annotated[int, Spec("controller and idle power, as long as the run lasts")]
    isp_idle_mw: Annotated[int, Spec("the whole processor while it idles")]


SECTIONS: dict[str, type[Any]] = {
    "system": System,
    "host": Host,
    "link": Link,
    "frontend": Frontend,
    "flash": Flash,
    "ecc": Ecc,
    "errors": Errors,
    "ftl": Ftl,
    "cache": Cache,
    "dram": Dram,
    "isp": Isp,
    "pe": Pe,
    "tunnel": Tunnel,
    "energy": Energy,
}


@dataclass(frozen=True, slots=True)
class Key:
    """One leaf of the tree. `type` is int, float, str or bool; `table`: a table of such leaves."""

    name: str
    section: str
    attribute: str
    type: type
    kind: Kind | None
    spec: Spec
    table: bool = False

    @property
    def unit(self) -> str | None:
        """Base unit of the value ("ps", "bytes", ...), None for plain values."""
        return self.kind.suffix if self.kind else None


def _keys() -> dict[str, Key]:
    keys: dict[str, Key] = {}
    for section, cls in SECTIONS.items():
        hints = get_type_hints(cls, include_extras=True)
        for field in dataclasses.fields(cls):
            annotated, spec = get_args(hints[field.name])
            table = annotated not in (int, float, str, bool)
            kind = kind_of(field.name) if annotated is int else None
            short = field.name.removesuffix("_" + kind.suffix) if kind else field.name
            name = f"{section}.{spec.key or short}"
            if name in keys:
                raise TypeError(f"two leaves are called {name}: give one Spec a key")
            keys[name] = Key(
                name, section, field.name, float if table else annotated, kind, spec, table
            )
    return keys


KEYS: dict[str, Key] = _keys()
ALIASES: dict[str, str] = {f"{key.section}.{key.attribute}": name for name, key in KEYS.items()}
