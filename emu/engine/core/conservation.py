"""Conservation laws: counts that must agree if no page, byte or command was lost.

Owns the laws, the points at which each law is checked, the check and the error. Does not own the
quantities, which these modules supply by name: totals.py (Totals.quantities), ftl/invariants.py,
replay/player.py and analysis/power_loss/conservation.py.
Source: this project. Rule: bytes in = bytes out, issued = completed, valid pages = mapped pages.

Both sides of a law are integer expressions over named quantities. A name denotes a counter
(counters.py), one of TERMS below, or another quantity that the caller supplies. ``planned_X`` is
the amount that plans or requests require. ``station_X`` is the number of bytes that have passed a
station. ``started_X`` is the amount of work in progress, and ``lost_X`` the excess that an earlier
law subtracted from X.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import CodeType


class Imbalance(RuntimeError):
    """Error: a conservation law does not hold, so the simulator has a defect.

    A run in which this error occurs reports no result.
    """


class Place(StrEnum):
    """Point in a simulation at which laws are checked. The value of a member is its text in error
    messages."""

    EVENT = "between two events"
    IDLE = "in an idle drive"
    PAYLOAD = "in the stored bytes"
    REPLAY = "at the end of the replay"
    RUN = "at the end of the run"
    CUT = "at the power cut"
    CUT_SYSTEM = "at the power cut of all drives"


@dataclass(frozen=True)
class Law:
    """Conservation law: ``left`` equals ``right`` at each of ``places``. Both are integer
    expressions over named quantities, such as counters.

    At a power cut, ``left`` includes work in progress and may exceed ``right`` by ``least`` to
    ``most``. The excess is lost work. The excess is subtracted from each quantity in ``settles``,
    so that the law holds exactly afterwards.
    """

    name: str
    left: str
    right: str
    places: tuple[Place, ...]
    least: str = "0"
    most: str = "0"
    settles: tuple[str, ...] = ()

    def excess(self, place: Place, values: Mapping[str, int], detail: str) -> int:
        """Return the excess of ``left`` over ``right``. The excess is 0 except at a power cut.

        ``values``: quantities by name. ``detail``: text that follows ``place`` in the error
        message. Raises Imbalance if the law does not hold at ``place``.
        """
        left, right = evaluate(self.left, values), evaluate(self.right, values)
        least = most = 0
        if place in (Place.CUT, Place.CUT_SYSTEM):
            least, most = evaluate(self.least, values), evaluate(self.most, values)
        if least <= left - right <= most:
            return left - right
        wanted = f"it must be {right}" if self.right.isdecimal() else f"{self.right} = {right}"
        if most:
            wanted += f" and {least} to {most} more are in progress"
        where = f"{place} ({detail})" if detail else place
        raise Imbalance(f"{self.name}, {where}: {self.left} = {left}, but {wanted}")


TERMS = {
    "link_down_bytes": "host_write_bytes + down_bytes",
    "link_up_bytes": "host_read_bytes + up_bytes + reservoir_up_bytes",
    "written_pages": "program_pages - destaged_pages + cache_write_pages",
    "sensed_pages": (
        "read_pages + gc_read_pages + merge_read_pages + map_read_pages + retry_read_pages"
        " + fold_read_pages + scrub_read_pages + refresh_read_pages - copyback_pages"
    ),
    "programmed_pages": (
        "program_pages + gc_program_pages + failed_pages + map_program_pages + padding_pages"
        " + fold_program_pages + stored_pages + kept_pages + remerged_pages"
        " + refresh_program_pages - copyback_pages"
    ),
    "channel_out_bytes": (
        "page_bytes * (sensed_pages + soft_read_pages + fetched_pages + pe_returned_pages"
        " + pe_encoded_pages + lifted_pages) + scan_bytes + reservoir_up_bytes - unasked_out_bytes"
    ),
    "channel_in_bytes": (
        "page_bytes * (programmed_pages + second_pass_pages + pe_returned_pages + landed_pages)"
        " + load_bytes - unasked_in_bytes - unasked_again_bytes"
    ),
}
"""Named sums of quantities that the laws use.

Copied-back pages are subtracted, because copy-back moves them inside a die without a transfer. Each
soft read of a page counts as a transfer, whereas the law "pages decoded" counts one decoding for
all soft reads of a page.
"""

_ENDS = (Place.RUN, Place.IDLE)
_ALL_ENDS = (*_ENDS, Place.REPLAY)
_DIES = (Place.RUN, Place.CUT)
_EVENT, _IDLE, _RUN, _CUT = (Place.EVENT,), (Place.IDLE,), (Place.RUN,), (Place.CUT,)


def _planned(name: str, counter: str, *, least: str = "0", most: str = "0") -> Law:
    """Return the law that a counter of die operations equals the amount requested by the plans."""
    settles = () if most == "0" else (counter,)
    return Law(name, counter, f"planned_{counter}", _DIES, least, most, settles)


COMMAND_LAWS = (
    Law("commands fetched", "commands", "submitted_commands", (Place.IDLE, Place.REPLAY)),
    Law("commands completed", "commands_done", "commands", _ALL_ENDS),
    Law("commands outstanding", "outstanding_commands", "0", (Place.IDLE, Place.REPLAY)),
    Law("transactions in flight", "transactions_in_flight", "0", _ALL_ENDS),
    Law("free transactions", "free_transactions", "all_transactions", _IDLE),
    Law(
        "bytes down the link", "link_down_bytes", "planned_link_down_bytes",
        (*_ALL_ENDS, Place.CUT),
        "started_link_down_bytes", "started_link_down_bytes", ("down_bytes",),
    ),
    Law(
        "bytes up the link", "link_up_bytes", "planned_link_up_bytes",
        (*_ALL_ENDS, Place.CUT),
        "started_link_up_bytes", "started_link_up_bytes", ("reservoir_up_bytes",),
    ),
    Law(
        "pages read", "read_pages + unmapped_pages + cache_hit_pages - split_hit_pages",
        "planned_read_pages", _ENDS,
    ),
    Law("pages written", "written_pages", "planned_program_pages", _ENDS),
    Law(
        "pages accepted by the data cache", "cache_write_pages",
        "cache_merged_pages + cache_dropped_pages + destaged_pages + cached_pages", _ENDS,
    ),
    Law(
        "pages moved by garbage collection", "gc_read_pages",
        "gc_program_pages + gc_dropped_pages", _ALL_ENDS,
    ),
    Law("pages folded", "fold_read_pages", "fold_program_pages + fold_dropped_pages", _ALL_ENDS),
    Law(
        "pages refreshed", "refresh_read_pages",
        "refresh_program_pages + refresh_dropped_pages", _ALL_ENDS,
    ),
    Law("erases of blocks", "block_erases", "array_erases", _IDLE),
    Law("blocks erased", "erased_blocks",
        "(block_erases - reservoir_erases) * planes_per_erase"
        " + reservoir_erased_planes", _IDLE),
    Law("tunnel bytes", "tunnel_bytes", "planned_tunnel_bytes", _RUN),
    Law("tunnel commands", "tunnel_commands", "planned_tunnel_commands", _RUN),
    Law("tunnel bytes on the link", "tunnel_wire_bytes", "planned_tunnel_wire_bytes", _RUN),
)  # fmt: skip
DIE_LAWS = (
    _planned("VPP pages", "vpp_pages"),
    _planned("BPP pages", "bpp_pages"),
    _planned("BPR pages", "bpr_pages", most="controller_ecc * started_bpr_pages"),
    _planned("ODC operations", "odc_ops", most="controller_ecc * started_odc_ops"),
    _planned("register pages fetched", "fetched_pages", most="started_fetched_pages"),
    _planned("reservoir pages stored by the controller", "stored_pages"),
    _planned(
        "reservoir pages read", "reservoir_read_pages",
        least="started_reservoir_read_pages", most="started_reservoir_read_pages",
    ),
    Law("gradient pages kept", "kept_pages", "planned_kept_pages", _RUN),
    _planned(
        "reservoir pages lifted", "lifted_pages",
        least="started_lifted_pages", most="started_lifted_pages",
    ),
    _planned("reservoir pages landed", "landed_pages"),
    Law(
        # A lift may be the last row of a chunk; its landing is then not among the unfinished rows.
        "reservoir pages moved between dies", "lifted_pages", "landed_pages", _DIES,
        most="unfinished_landed_pages + stripe_pages",
        settles=("lifted_pages", "planned_lifted_pages"),
    ),
)  # fmt: skip
ECC_LAWS = (
    Law(
        "reservoir pages decoded", "pe_decoded_pages",
        "controller_ecc * (bpr_pages + reservoir_up_bytes // page_bytes + lifted_pages)", _CUT,
        most="controller_ecc * (started_bpr_pages + started_link_up_bytes // page_bytes"
        " + lost_lifted_pages)",
        settles=("pe_decoded_pages",),
    ),
    Law(
        "decoded pages returned to registers", "pe_returned_pages", "controller_ecc * bpr_pages",
        _CUT, most="controller_ecc * started_bpr_pages", settles=("pe_returned_pages",),
    ),
    Law(
        "computed pages encoded", "pe_encoded_pages", "controller_ecc * odc_ops * stripe_pages",
        _CUT, most="controller_ecc * started_odc_ops * stripe_pages",
        settles=("pe_encoded_pages",),
    ),
    Law(
        "pages decoded", "ecc_decoded_pages", "sensed_pages + soft_pages + pe_decoded_pages",
        (*_ALL_ENDS, Place.CUT), most="lost_pe_decoded_pages", settles=("ecc_decoded_pages",),
    ),
    Law(
        "pages encoded", "ecc_encoded_pages",
        "programmed_pages + pe_encoded_pages + controller_ecc * landed_pages",
        (*_ALL_ENDS, Place.CUT),
        most="started_parity_bytes // page_bytes"
        " + controller_ecc * (started_odc_ops * stripe_pages + started_landed_pages)",
        settles=("ecc_encoded_pages",),
    ),
)  # fmt: skip
STATION_LAWS = (
    Law(
        "bytes of the station link down", "station_link_down",
        "link_down_bytes + link_extra_down_bytes", (*_ENDS, Place.CUT),
        most="started_link_down_bytes", settles=("station_link_down",),
    ),
    Law(
        "bytes of the station link up", "station_link_up",
        "link_up_bytes + link_extra_up_bytes", (*_ENDS, Place.CUT),
        most="started_link_up_bytes", settles=("station_link_up",),
    ),
    Law("bytes of the tunnel stations", "station_tunnel_up + station_tunnel_down",
        "tunnel_bytes", _RUN),
    Law(
        # Pages whose coding takes no time pass no station.
        "bytes of the stations ECC", "station_ecc",
        "timed_decode * (page_bytes * ecc_decoded_pages - unasked_out_bytes)"
        " + timed_encode * (page_bytes * ecc_encoded_pages - unasked_in_bytes)", _IDLE,
    ),
    Law(
        # Bytes to the host pass DRAM twice: they are stored, then forwarded.
        "bytes of the station DRAM", "station_dram",
        "down_bytes + load_bytes + 2 * reservoir_up_bytes + scan_bytes"
        " + page_bytes * (fetched_pages + stored_pages + lifted_pages + landed_pages)", _CUT,
        most="started_link_down_bytes + started_load_bytes + 2 * started_link_up_bytes"
        " + started_scan_bytes + started_fetched_bytes + started_parity_bytes"
        " + page_bytes * (lost_lifted_pages + started_landed_pages)",
        settles=("station_dram",),
    ),
    Law(
        "bytes into the dies over the channels", "station_channels_in", "channel_in_bytes",
        (*_ENDS, Place.CUT),
        most="started_load_bytes + started_parity_bytes"
        " + page_bytes * (controller_ecc * started_bpr_pages + started_landed_pages)",
        settles=("station_channels_in",),
    ),
    Law(
        "bytes out of the dies over the channels", "station_channels_out", "channel_out_bytes",
        (*_ENDS, Place.CUT),
        most="started_link_up_bytes + started_scan_bytes + started_fetched_bytes + page_bytes"
        " * (controller_ecc * (started_bpr_pages + started_odc_ops * stripe_pages)"
        " + lost_lifted_pages)",
        settles=("station_channels_out",),
    ),
    Law(
        # Each die may erase a block before its next program, which no row plans.
        "transactions of rows in progress", "transactions_in_flight", "pending_transactions",
        (Place.CUT_SYSTEM,), most="dies",
    ),
)  # fmt: skip
MAP_LAWS = (
    Law("valid pages", "valid_pages", "mapped_pages", (Place.RUN, Place.EVENT)),
    Law("valid super-pages", "valid_super_pages", "mapped_super_pages", _RUN),
    Law("entries of the page map", "map_entries", "mapped_pages", _EVENT),
    Law("physical pages in the page map", "mapped_physical_pages", "mapped_pages", _EVENT),
    Law("valid pages of each block", "block_valid_pages", "block_mapped_pages", _EVENT),
    Law("pages whose sectors and mapping disagree", "pages_with_wrong_sectors", "0", _EVENT),
    Law("stored pages at their places", "misplaced_pages", "0", (Place.PAYLOAD,)),
    Law("entries of the cached mapping table", "map_cache_entries", "map_cache_chained", _IDLE),
    Law("translation pages in write-back", "map_write_backs", "0", _IDLE),
)
CACHE_LAWS = (
    Law("slots of the data cache", "cache_slots", "cache_spare_slots + cache_chained_slots", _IDLE),
    Law(
        "pages in transit from the data cache to flash", "cache_flying_pages", "0",
        (Place.IDLE, Place.REPLAY),
    ),
    Law("dirty pages of the data cache", "cache_dirty_pages", "cached_pages", _IDLE),
    Law("requests that wait for the data cache", "cache_waiting_requests", "0", _IDLE),
)  # fmt: skip
BLOCK_LAWS = (
    Law("free blocks", "free_blocks", "free_count", _EVENT),
    Law("blocks in the free rings", "ring_blocks", "free_blocks", _EVENT),
    Law("entries of the free rings with a wrong block", "wrong_ring_blocks", "0", _EVENT),
    Law("pages of free and bad blocks", "pages_of_empty_blocks", "0", _EVENT),
    Law("negative counts of blocks", "negative_block_counts", "0", _EVENT),
    Law("open blocks", "open_blocks", "frontier_blocks", _EVENT),
    Law("write frontiers on wrong blocks", "wrong_frontiers", "0", _EVENT),
    Law("write frontiers past the end of their block", "frontiers_past_end", "0", _EVENT),
    Law("write frontiers behind pages already programmed", "frontiers_behind", "0", _EVENT),
    Law("pages in unfinished programs", "programming_pages", "0", _IDLE),
    Law("reads in progress on blocks", "reading_pages", "0", _IDLE),
    Law("units with a wrong number of pSLC blocks", "units_with_wrong_pslc", "0", _EVENT),
    Law("units with a wrong number of full pSLC blocks", "units_with_wrong_full_pslc", "0", _EVENT),
    Law("full pSLC blocks in native mode", "full_pslc_in_native_mode", "0", _EVENT),
    Law("pSLC blocks with more pages than word lines", "overfull_pslc_blocks", "0", _EVENT),
    Law("native blocks in the fixed pSLC region", "native_in_pslc_region", "0", _EVENT),
    Law("free pSLC blocks in the rings", "pslc_ring_blocks", "free_pslc_blocks", _EVENT),
    Law("count of free pSLC blocks", "pslc_free_count", "free_pslc_blocks", _EVENT),
    Law("units with too many pSLC blocks", "units_over_pslc_limit", "0", _EVENT),
)
COLLECTION_LAWS = (
    Law("victims of garbage collection", "gc_victims", "0", _IDLE),
    Law("pages that garbage collection moves", "gc_moving_pages", "0", _IDLE),
    Law("collections that block the host", "blocking_collections", "0", _IDLE),
    Law("lists of transactions that wait for a collection", "parked_lists", "0", _IDLE),
    Law("units with a wrong number of victims", "units_with_wrong_victims", "0", _EVENT),
    Law("units with a wrong number of retiring blocks", "units_with_wrong_retiring", "0", _EVENT),
    Law("pages in motion from blocks that are not victims", "moving_outside_victims", "0", _EVENT),
    Law("reserved pages of blocks that are not victims", "owed_outside_victims", "0", _EVENT),
    Law("units with a wrong number of reserved pages", "units_with_wrong_owed", "0", _EVENT),
    Law("pages reserved in streams of the host", "owed_to_host_streams", "0", _EVENT),
    Law("dies with a wrong number of collections", "dies_with_wrong_collections", "0", _EVENT),
    Law("wear-leveling blocks that are not victims", "levelled_outside_victims", "0", _EVENT),
    Law("victims and full blocks without a stream", "blocks_without_stream", "0", _EVENT),
    Law("dies with a wrong urgency of collection", "dies_with_wrong_urgency", "0", _EVENT),
)
WAITING_LAWS = (
    Law("lists of waiting writes", "waiting_lists", "0", _IDLE),
    Law("lists of waiting writes with a wrong tail", "lists_with_wrong_tail", "0", _EVENT),
    Law("writes in two waiting lists", "waiting_writes", "distinct_waiting_writes", _EVENT),
    Law("units whose stalled writes are to be retried", "retries", "marked_retries", _EVENT),
    Law("units left to be retried between events", "retries", "0", _EVENT),
    Law("transactions that can continue without an event", "immediate_transactions", "0", _IDLE),
    Law(
        "transactions available to plan rows",
        "transaction_budget",
        "full_transaction_budget",
        _IDLE,
    ),
)
LAW_GROUPS = {
    "Commands and pages": COMMAND_LAWS,
    "Operations on dies": DIE_LAWS,
    "ECC": ECC_LAWS,
    "Bytes of stations": STATION_LAWS,
    "Page map": MAP_LAWS,
    "Data cache": CACHE_LAWS,
    "Blocks": BLOCK_LAWS,
    "Garbage collection": COLLECTION_LAWS,
    "Waiting writes": WAITING_LAWS,
}
LAWS = tuple(law for group in LAW_GROUPS.values() for law in group)
"""All conservation laws, in the order in which they are checked.

The order matters at a power cut, because earlier laws subtract lost work from quantities that later
laws use.
"""


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<conservation law>", "eval")


class _Values(dict[str, int]):
    """Values of quantities by name. A name in TERMS is evaluated when it is looked up."""

    def __missing__(self, name: str) -> int:
        return evaluate(TERMS[name], self)


def evaluate(expression: str, values: Mapping[str, int]) -> int:
    """Return the integer value of an expression over ``values``.

    Raises NameError for a quantity that is not supplied.
    """
    known = values if isinstance(values, _Values) else _Values(values)
    return int(eval(_compiled(expression), {"__builtins__": {}}, known))


def station_quantity(name: str) -> str:
    """Return the name of the quantity that counts the bytes passed through a station (a shared
    resource of host or drive). ``name``: name of the station, for example "link down"."""
    return "station_" + name.lower().replace(" ", "_")


def names_in(*expressions: str) -> Iterator[str]:
    """Yield the names of the quantities in expressions, including those in the TERMS used."""
    for expression in expressions:
        for name in _compiled(expression).co_names:
            if name in TERMS:
                yield from names_in(TERMS[name])
            else:
                yield name


def check_laws(place: Place, quantities: Mapping[str, int], detail: str = "") -> None:
    """Check the conservation laws that apply at ``place``.

    Raises Imbalance if a law does not hold. The error message contains ``detail``, for example the
    name of a device.
    """
    values = _Values(quantities)
    for law in laws_at(place):
        law.excess(place, values, detail)


def settle_laws(quantities: MutableMapping[str, int], detail: str = "") -> dict[str, int]:
    """Check the laws of a drive at a power cut and subtract lost work from ``quantities``.

    Returns the amounts of lost work by quantity name. If a law subtracts the same lost work from
    several quantities, the result contains only the first of these quantities. Raises Imbalance if
    a law does not hold even when work in progress is included.
    """
    values = _Values(quantities)
    lost: dict[str, int] = {}
    for law in laws_at(Place.CUT):
        excess = law.excess(Place.CUT, values, detail)
        for name in law.settles:
            values[name] -= excess
        if law.settles:
            name = law.settles[0]
            lost[name] = values[f"lost_{name}"] = lost.get(name, 0) + excess
    quantities.update(values)
    return lost


@cache
def laws_at(place: Place) -> tuple[Law, ...]:
    """Return the conservation laws that are checked at ``place``, in the order of LAWS."""
    return tuple(law for law in LAWS if place in law.places)
