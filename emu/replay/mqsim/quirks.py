"""Table of MQSim's deviations from its parameters (quirks).

Owns the list of quirks: MQSim's behavior, the correct behavior, whether --quirks reproduces MQSim's
behavior, and the condition under which the quirk applies to a run. Does not own the implementation:
each module implements its quirks by name. Source: MQSim's source in the version published in
October 2022, and runs of this version.

Without --quirks, a run is correct. With --quirks, the quirks marked ASKED are reproduced. KEPT
quirks are always reproduced, because users rely on them as the meaning of a parameter. NAMED quirks
are not reproduced: most of them make MQSim crash, stall or lose requests, or their effect depends
on memory addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ondie.emu.replay.mqsim import sata
from ondie.emu.replay.mqsim.address_partition import ranges
from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.mqsim.workload_xml import Scenario, Synthetic, TraceBased

ASKED, KEPT, NAMED = "asked", "kept", "named"
Met = Callable[[Drive, Scenario], bool]


@dataclass(frozen=True)
class Quirk:
    """One case in which MQSim does not do what its parameters specify.

    ``parameters``: MQSim's names of the affected parameters; empty if the quirk does not depend on
    one parameter. ``does``: behavior of MQSim. ``right``: correct behavior. ``treatment``: ASKED
    (reproduced with --quirks), KEPT (always reproduced) or NAMED (never reproduced). ``met``:
    function that returns True if the quirk applies to a run.
    """

    name: str
    parameters: tuple[str, ...]
    does: str
    right: str
    treatment: str
    met: Met


def _always(drive: Drive, scenario: Scenario) -> bool:
    return True


def _synthetic(test: Callable[[Synthetic], bool]) -> Met:
    return lambda _, scenario: any(
        isinstance(flow, Synthetic) and test(flow) for flow in scenario.flows
    )


def _traced(test: Callable[[TraceBased], bool]) -> Met:
    return lambda _, scenario: any(
        isinstance(flow, TraceBased) and test(flow) for flow in scenario.flows
    )


def _writes(drive: Drive, scenario: Scenario) -> bool:
    return any(
        not isinstance(flow, Synthetic) or flow.read_percentage < 100 for flow in scenario.flows
    )


def _reads(drive: Drive, scenario: Scenario) -> bool:
    return any(
        not isinstance(flow, Synthetic) or flow.read_percentage > 0 for flow in scenario.flows
    )


def _cached(*modes: str) -> Met:
    return lambda _, scenario: any(
        flow.device_level_data_caching_mode in modes for flow in scenario.flows
    )


def _both(*tests: Met) -> Met:
    return lambda drive, scenario: all(test(drive, scenario) for test in tests)


def _sata(drive: Drive, scenario: Scenario) -> bool:
    return sata.used(drive)


def _inside_a_page(drive: Drive, scenario: Scenario) -> bool:
    begins = (address_range.first for address_range in ranges(drive, scenario.flows))
    return not sata.used(drive) and any(first % drive.page_sectors for first in begins)


def _leaves_its_range(drive: Drive, scenario: Scenario) -> bool:
    both = zip(scenario.flows, ranges(drive, scenario.flows), strict=True)
    for flow, address_range in both:
        if not isinstance(flow, Synthetic) or flow.address_distribution == "RANDOM_HOTCOLD":
            return True
        unit = flow.address_alignment_unit_bytes // 512
        if flow.generated_aligned_addresses and address_range.first % unit:
            return True
    return False


def _cut_rate(drive: Drive, scenario: Scenario) -> bool:
    rate = drive.channel_transfer_rate_hz // 10**6
    return rate > 1000 or 1000 % rate != 0


def _whole_interval(flow: Synthetic) -> bool:
    if flow.closed_loop:
        return False
    sectors = flow.average_request_size_bytes // 512
    per_s = flow.bandwidth_bytes_per_s // 512 // sectors
    return not per_s or 10**9 // per_s * flow.bandwidth_bytes_per_s != sectors * 512 * 10**9


def _cached_map(drive: Drive, scenario: Scenario) -> bool:
    return not drive.ideal_mapping_table


def _planes_unlike_dies(drive: Drive, scenario: Scenario) -> bool:
    return drive.plane_allocation_scheme == "DWCP" and any(
        tuple(flow.plane_ids) != tuple(flow.die_ids)[: len(flow.plane_ids)]
        for flow in scenario.flows
    )


def _ranked(drive: Drive, scenario: Scenario) -> bool:
    return drive.transaction_scheduling_policy == "PRIORITY_OUT_OF_ORDER"


QUIRKS: tuple[Quirk, ...] = (
    # --- results
    Quirk(
        "whole_seconds", (),
        "divides requests and bytes by the whole seconds of the run, so that IOPS and bandwidth "
        "are too high by up to a factor of two, and infinite below one second",
        "division by the time of the last completion", ASKED, _always,
    ),
    # --- requests
    Quirk(
        "whole_rate", ("Bandwidth",),
        "rounds the rate of arrivals down to whole sectors, then whole requests per second, then "
        "their interval to whole ns", "the mean interval that follows from the bandwidth", ASKED,
        _synthetic(_whole_interval),
    ),
    Quirk(
        "negative_sizes", ("Variance_Request_Size",),
        "turns a negative random size -n into 65,536 - n sectors",
        "one sector, the smallest request", ASKED,
        _synthetic(lambda f: f.request_size_distribution == "NORMAL"),
    ),
    Quirk(
        "first_size", ("Request_Size_Distribution",),
        "may use the mean as the first random size of a flow, which shifts all later sizes: a "
        "variable has no initial value", "a random first size", NAMED,
        _synthetic(lambda f: f.request_size_distribution == "NORMAL"),
    ),
    Quirk(
        "nanoseconds", ("Time_Unit",), "reads the times of every trace as ns", "the stated unit",
        ASKED, _traced(lambda f: f.time_unit != "NANOSECOND"),
    ),
    Quirk(
        "whole_trace_rounds", ("Percentage_To_Be_Executed", "Relay_Count"),
        "runs the whole trace in each of several rounds", "the stated share of the trace in "
        "each round",
        ASKED, _traced(lambda f: f.relay_count > 1 and f.percentage_to_be_executed < 100),
    ),
    Quirk(
        "short_modulus", ("File_Path",),
        "wraps addresses beyond the flow's range at one sector less than its size, which "
        "also breaks "
        "their alignment", "modulo the size", ASKED, _traced(lambda f: True),
    ),
    Quirk(
        "wrapped_requests", ("Address_Distribution", "Address_Alignment_Unit"),
        "continues a request that passes the end of its flow's addresses, or that alignment moves "
        "in front of them, at the sector number modulo the number of sectors minus one",
        "a request that ends within the flow's addresses and begins at an aligned sector", ASKED,
        _leaves_its_range,
    ),
    Quirk(
        "address_alias", (),
        "restores the upper half of a sector number one bit too low, so that addresses of "
        "2 TiB and above coincide with other addresses", "64-bit addresses", ASKED,
        lambda d, s: d.planes * d.plane_sectors(1) > 2**32,
    ),
    Quirk(
        "deviation", ("Variance_Request_Size",), "uses the variance as the standard deviation",
        "the square root of the "
        "variance", KEPT, _synthetic(lambda f: f.request_size_distribution == "NORMAL"),
    ),
    Quirk(
        "last_sector", (),
        "moves a request that would end on the last sector of the working set to its start",
        "a request may end on the last sector", KEPT,
        _synthetic(lambda f: f.address_distribution != "RANDOM_HOTCOLD"),
    ),
    Quirk(
        "stream_wrap", ("Address_Distribution",),
        "uses the first address of a STREAMING flow twice after each wrap", "once", KEPT,
        _synthetic(lambda f: f.address_distribution == "STREAMING"),
    ),
    Quirk(
        "seeds", ("Seed",),
        "overflows 64 bits when it places a seed in the random sequence, and gives seeds 199 apart "
        "the same position, for example 1 and 200", "a separate position for each seed; this only "
        "changes which random "
        "numbers are drawn", KEPT, _synthetic(lambda f: True),
    ),
    Quirk(
        "trailing_blank", ("File_Path",),
        "reads a trace line that ends in a blank as a read request, and a line without five "
        "columns "
        "as the end of the trace", "the stated type, and an error for such a line", NAMED,
        _traced(lambda f: True),
    ),
    Quirk(
        "round_delays", ("Relay_Count",),
        "shifts arrivals of later rounds twice in its end-to-end delays", "once", NAMED,
        _traced(lambda f: f.relay_count > 1),
    ),
    Quirk(
        "few_requests", ("Total_Requests_To_Generate",),
        "crashes if there are fewer requests than the queue holds", "processing these "
        "requests", NAMED,
        _synthetic(lambda f: f.closed_loop and not f.stop_time_ps
                   and f.total_requests_to_generate < f.average_no_of_reqs_in_queue),
    ),
    Quirk(
        "whole_ns", ("PCIe_Lane_Bandwidth",),
        "rounds the time of each message on the link down to whole ns", "the exact time of "
        "its bytes", KEPT,
        _always,
    ),
    # --- the host interface
    Quirk(
        "pages_of_flows", (),
        "splits the requests of a flow that begins inside a page at the drive's page "
        "boundaries, but "
        "numbers pages from the flow's first sector, so that parts of two pages that a request "
        "crosses share a number; not reproduced here for pages of 32 KiB",
        "a separate number for each page of the drive", ASKED,
        _inside_a_page,
    ),
    Quirk(
        "sata_is_nvme", ("HostInterface_Type", "IO_Queue_Depth"),
        "with SATA, sends NVMe doorbells and entries over PCIe_Lane_*, and applies "
        "the depth of the queue only to requests that the drive has not fetched",
        "frames on a serial link, and at most IO_Queue_Depth requests outstanding",
        KEPT, _sata,
    ),
    Quirk(
        "sata_one_stream",
        ("Channel_IDs", "Chip_IDs", "Die_IDs", "Plane_IDs", "Priority_Class",
         "Device_Level_Data_Caching_Mode"),
        "gives each flow all planes, class HIGH and the first flow's caching with SATA",
        "the settings of the flow, or an error", KEPT,
        lambda d, s: sata.seen(d, s.flows) != list(s.flows),
    ),
    Quirk(
        "sata_open_blocks", ("HostInterface_Type",),
        "keeps blocks open in each plane for every flow, although SATA only fills those of the "
        "first flow",
        "open blocks for one stream", KEPT, lambda d, s: sata.used(d) and len(s.flows) > 1,
    ),
    Quirk(
        "sata_preconditioning", ("Enabled_Preconditioning",),
        "crashes when it fills the drive for several flows with SATA", "the stated occupancy",
        NAMED,
        lambda d, s: sata.used(d) and d.enabled_preconditioning and len(s.flows) > 1,
    ),
    # --- the drive
    Quirk(
        "one_die_at_a_time", ("Die_No_Per_Chip",),
        "runs one command at a time on a chip, so that more dies increase the capacity but not "
        "the speed",
        "the dies of a chip work in parallel", ASKED, lambda d, s: d.die_no_per_chip > 1,
    ),
    Quirk(
        "channel_rates_rounded", ("Channel_Transfer_Rate",),
        "rounds the time of a transfer down to whole ns: 501 to 1000 MT/s count as 1000, and at "
        "higher rates a transfer takes no time",
        "the stated rate", ASKED, _cut_rate,
    ),
    Quirk(
        "suspension_never_issued", ("CMD_Suspension_Support",),
        "never suspends a program or an erase",
        "reads suspend the operations that the parameter names", ASKED,
        lambda d, s: d.cmd_suspension_support != "NONE",
    ),
    Quirk(
        "wear_levelling",
        ("Dynamic_Wearleveling_Enabled", "Static_Wearleveling_Enabled",
         "Static_Wearleveling_Threshold"),
        "ignores the settings: the least worn free block is always opened, and static wear "
        "leveling compares block numbers instead of erase counts",
        "wear leveling according to the settings", NAMED,
        lambda d, s: d.static_wearleveling_enabled or not d.dynamic_wearleveling_enabled,
    ),
    Quirk(
        "unwritten_reads", (),
        "allocates a flash page for each page that is read before it was written, and can "
        "then never "
        "collect its block", "a read that allocates no page", KEPT, _reads,
    ),
    Quirk(
        "unwritten_plane", ("Plane_Allocation_Scheme",),
        "with DWCP, takes the plane of a page that is read before it was written from the list of "
        "dies, and reads beyond the end of that list if there are more planes than dies",
        "the plane from the list of planes",
        NAMED, _both(_reads, _planes_unlike_dies),
    ),
    Quirk(
        "unwritten_not_cached", ("Device_Level_Data_Caching_Mode",),
        "does not cache reads of pages that were never programmed", "caching of every "
        "page read", KEPT,
        _both(_reads, _cached("READ_CACHE", "WRITE_READ_CACHE")),
    ),
    Quirk(
        "unwritten_slot", ("Device_Level_Data_Caching_Mode",),
        "caches all reads of pages whose flash page is not programmed yet as one page, which no "
        "request finds", "no use of the cache", ASKED,
        _both(_reads, _cached("READ_CACHE", "WRITE_READ_CACHE")),
    ),
    Quirk(
        "mapping_writes", ("Ideal_Mapping_Table", "CMT_Capacity"),
        "queues the write-back of a mapping page and never issues it, so that later accesses to "
        "that page need no read either; reads a page twice if a miss in that page evicts a changed "
        "entry of the same page, once to merge and once for the miss",
        "write-backs that take time, and one read", ASKED, _cached_map,
    ),
    Quirk(
        "shared_map_cache", ("CMT_Sharing_Mode",),
        "gives each flow a mapping cache of the full capacity although it should be shared",
        "one cache for all flows", ASKED,
        lambda d, s: (not d.ideal_mapping_table and len(s.flows) > 1 and not sata.used(d)
                      and d.cmt_sharing_mode == "SHARED"),
    ),
    Quirk(
        "lost_map_entries", ("CMT_Capacity",),
        "can evict a mapping entry for which requests wait, which then wait until another request "
        "needs the entry, or forever",
        "these requests complete", ASKED, _cached_map,
    ),
    Quirk(
        "forgotten_sectors", ("CMT_Capacity",),
        "stores only the flash pages of the other changed entries when it writes a mapping page "
        "back, not which sectors of these pages hold data; once such an entry has left the mapping "
        "cache, partial writes of its page read fewer sectors first",
        "a write reads all sectors of its page that it does not cover", ASKED, _cached_map,
    ),
    Quirk(
        "lost_requests", (),
        "deletes requests that wait for a page that collection moves, and loses the erase of a "
        "postponed collection", "every request completes", NAMED, _writes,
    ),
    Quirk(
        "stalled_writes", ("GC_Exec_Threshold",),
        "checks for collection only when a block fills or is erased, and can leave a plane's "
        "writes waiting forever, so that the run ends early",
        "a check while writes wait, and an error if no block can be collected", ASKED, _writes,
    ),
    Quirk(
        "lost_drawings", ("GC_Block_Selection_Policy",),
        "abandons a collection if the random block is free, in use, or has no invalid page",
        "another random block", ASKED,
        lambda d, s: d.gc_block_selection_policy.startswith("RANDOM") and _writes(d, s),
    ),
    Quirk(
        "parked_writes", (),
        "resumes writes that waited for a free block in the order of their memory addresses",
        "the order of arrival", NAMED, _writes,
    ),
    Quirk(
        "unsafe_victims", ("GC_Block_Selection_Policy",),
        "fails during collection, because it may select a block with pages in flight",
        "only blocks without pages in flight are selected", NAMED,
        lambda d, s: d.gc_block_selection_policy not in ("GREEDY", "RGA"),
    ),
    Quirk(
        "copyback", ("Use_Copyback_for_GC",), "crashes at the first page moved", "moving pages "
        "by copy-back",
        NAMED, lambda d, s: d.use_copyback_for_gc,
    ),
    Quirk(
        "read_cache_crash", ("Device_Level_Data_Caching_Mode",),
        "crashes when it evicts a dirty page from a read cache", "the page is written", NAMED,
        _cached("READ_CACHE"),
    ),
    Quirk(
        "evicted_pages", ("Data_Cache_Sharing_Mode",),
        "writes a page that one flow evicts from the shared cache as a page of that flow, at its "
        "number in the flow that wrote it", "the page is written where it belongs", ASKED,
        lambda d, s: (len(s.flows) > 1 and d.data_cache_sharing_mode == "SHARED"
                      and _cached("WRITE_CACHE", "WRITE_READ_CACHE")(d, s)),
    ),
    Quirk(
        "eviction_class", ("Priority_Class",),
        "writes a page that a write evicts from the data cache in class URGENT, and a page that a "
        "read evicts in class HIGH; the latter is reproduced only with --quirks",
        "the class of the flow that wrote the page", KEPT,
        _both(_ranked, _cached("WRITE_CACHE", "WRITE_READ_CACHE")),
    ),
    Quirk(
        "cache_capacity", ("Data_Cache_Capacity",), "stores the capacity "
        "in 32 bits", "the stated capacity",
        NAMED,
        lambda d, s: d.data_cache_capacity_bytes >= 2**32,
    ),
    Quirk(
        "whole_page_bitmap", ("Page_Capacity",),
        "loses the sectors of a whole page of 32 KiB, and the requests may never complete",
        "all 64 sectors", NAMED, lambda d, s: d.page_sectors == 64,
    ),
    Quirk(
        "planes", ("Plane_No_Per_Die",),
        "reads the times of commands on more than 4 planes from beyond the end of a table",
        "the times for that number of planes", NAMED, lambda d, s: d.plane_no_per_die > 4,
    ),
    Quirk(
        "erase_table", ("Block_PE_Cycles_Limit",),
        "writes beyond the end of a table if a block is erased more often "
        "than this", "no limit of erases", NAMED,
        lambda d, s: _writes(d, s) and d.block_pe_cycles_limit < 1000,
    ),
    Quirk(
        "nine_tenths", ("Enabled_Preconditioning", "Initial_Occupancy_Percentage"),
        "fills at most nine tenths of the pages of a flow with uniform addresses",
        "the stated occupancy", ASKED, lambda d, s: d.enabled_preconditioning,
    ),
    Quirk(
        "one_sector", ("Enabled_Preconditioning",),
        "fills only the first sector of each part of a page, so that few overwrites of these pages "
        "need a read of the remaining sectors first", "whole pages", ASKED,
        lambda d, s: d.enabled_preconditioning,
    ),
    Quirk(
        "warm_map", ("Enabled_Preconditioning", "CMT_Capacity"),
        "fills the mapping cache with entries of the pages that the flows hold",
        "an empty mapping cache at the start", ASKED,
        lambda d, s: d.enabled_preconditioning and not d.ideal_mapping_table,
    ),
    Quirk(
        "preconditioning", ("Enabled_Preconditioning", "Initial_Occupancy_Percentage"),
        "can leave so few free blocks that no write is placed before a collection has ended", "the "
        "steady state of the stated occupancy", ASKED, lambda d, s: d.enabled_preconditioning,
    ),
    Quirk(
        "polling", ("Transaction_Scheduling_Policy", "Priority_Class"),
        "advances the turn of the priority classes even if a chip has no command to issue",
        "the turn advances with issued commands", ASKED,
        lambda d, s: (d.transaction_scheduling_policy == "PRIORITY_OUT_OF_ORDER"
                      and len(s.flows) > 1 and not sata.used(d)),
    ),
    Quirk(
        "event_order", (),
        "handles simultaneous events in the order in which they became known, and starts the "
        "commands of one event before the next event adds others",
        "any order that is fixed; here the order of the resources, and all commands of "
        "simultaneous events of a channel together", ASKED, _always,
    ),
    Quirk(
        "start_order", (),
        "starts the flows of closed loops, all at 1 ns, in the order of a hash table of the names "
        "of its parts", "any order that is fixed; here the last flow is the first", ASKED,
        lambda d, s: len(s.flows) > 1,
    ),
    Quirk(
        "log_delays", ("Enable_ResponseTime_Logging",),
        "never fills the end-to-end column of its log with NVMe", "the mean "
        "end-to-end delay", NAMED,
        lambda d, s: d.enable_response_time_logging and not sata.used(d),
    ),
)  # fmt: skip


def obeyed(asked: bool) -> frozenset[str]:
    """Return the names of the quirks that --quirks reproduces if ``asked`` is True (--quirks is
    given), or an empty set if it is False."""
    return frozenset(quirk.name for quirk in QUIRKS if asked and quirk.treatment == ASKED)


def met(drive: Drive, scenario: Scenario) -> list[Quirk]:
    """Return the quirks that affect MQSim's run of ``scenario`` on ``drive``."""
    return [quirk for quirk in QUIRKS if quirk.met(drive, scenario)]
