"""Statistics of a replay as tables.

Owns titles, columns and units of latencies, flash operations and utilization. Does not own any
number. Source: the fields of `ondie replay --json` (replay/statistics.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from ondie.emu.units import fmt_bytes, fmt_rate, fmt_time

PS_PER_US = 10**6
LATENCY = ("mean", "p50", "p90", "p99", "p999", "max")
FLASH = {
    "user_reads": "pages read for the host",
    "user_writes": "pages programmed for the host",
    "gc_reads": "pages read by garbage collection",
    "gc_writes": "pages programmed by garbage collection",
    "map_reads": "map pages read",
    "map_writes": "map pages programmed",
    "erases": "blocks erased",
}
BYTES = {"written_bytes": "written by the host", "programmed_bytes": "programmed"}
FACTORS = {
    "waf": "write amplification: bytes programmed / bytes written",
    "page_write_ratio": "pages programmed / pages programmed for the host",
}
ERRORS = {
    "corrected_bits": "bits corrected",
    "retried_pages": "pages with read retries",
    "retry_read_pages": "read retries",
    "soft_pages": "pages decoded with soft decision",
    "soft_read_pages": "reads for soft decision",
    "uncorrectable_pages": "uncorrectable pages",
    "newly_lost_pages": "pages whose data was lost when they were moved",
    "lost_pages": "reads of pages whose data had been lost in an earlier move",
    "media_errors": "commands that ended with an unrecovered read error",
    "reclaimed_blocks": "blocks reclaimed because of their read errors",
}

UPKEEP = {
    "scrub_read_pages": "pages read by scrubbing",
    "refreshed_blocks": "blocks refreshed",
    "refresh_read_pages": "pages read by refresh",
    "refresh_program_pages": "pages programmed by refresh",
    "refresh_dropped_pages": "pages overwritten between their read and program by refresh",
}


PSLC = {
    "pslc_pages": "pages programmed in pSLC blocks for the host",
    "direct_pages": "pages programmed in native blocks because no pSLC block was free",
    "folds": "pSLC blocks folded",
    "fold_read_pages": "pages read by folding",
    "fold_program_pages": "pages programmed in native blocks by folding",
    "pslc_erased_blocks": "erased blocks in pSLC mode",
}


WORD_LINES = {
    "padding_pages": "padding pages, programmed to complete a word line",
    "padded_at_flush": "word lines padded for a FLUSH or a write with FUA",
    "padded_at_rest": "word lines padded because the host waited and the drive was idle",
    "padded_in_time": "word lines padded after ftl.gather_time",
    "second_pass_pages": "pages programmed in a second pass",
    "gathered_most": "maximum number of pages in DRAM for incomplete word lines",
}


def tables(data: Mapping[str, Any]) -> list[Table]:
    """Return the tables of latencies and flash operations. ``data``: document of `ondie replay
    --json`."""
    return [latency_table(data), flash_table(data)]


def _table(title: str, *columns: str) -> Table:
    """Return an empty table whose first column is left-aligned. All other columns are
    right-aligned."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def latency_table(data: Mapping[str, Any]) -> Table:
    """Return the table of latencies of all requests, of reads and of writes.

    The first rows show the latencies of the whole run, and the following rows show the latencies of
    its second half.
    """
    title = f"{data['requests']:,} requests in {fmt_time(data['simulated_ns'] * 1000)} simulated"
    if data["iops"] is not None:
        title += f": {data['iops']:,.0f} IOPS, {fmt_rate(data['bandwidth_bytes_per_s'])}"
    table = _table(title, "latency", *("p99.9" if x == "p999" else x for x in LATENCY))
    for words, part in (("", data), (", second half", data["second_half"])):
        for kind, found in part["latency_us"].items():
            if found is not None:
                table.add_row(kind + words, *(fmt_time(found[x] * PS_PER_US) for x in LATENCY))
    return table


def flash_table(data: Mapping[str, Any]) -> Table:
    """Return the table of flash operations in the whole run.

    The table has a second column if the operations of the second half were counted.
    """
    later = data["second_half"].get("flash")
    columns = ("flash", "whole run", "second half") if later else ("flash", "whole run")
    table = _table("", *columns)
    for name, words in FLASH.items():
        cells = [data["flash"][name], *([later[name]] if later else [])]
        table.add_row(words, *(f"{n:,}" for n in cells))
    parts = [data, *([data["second_half"]] if later else [])]
    for name, words in BYTES.items():
        table.add_row(words, *(fmt_bytes(part[name]) for part in parts))
    for name, words in FACTORS.items():
        factors = [part[name] for part in parts]
        table.add_row(words, *("n/a" if f is None else f"{f:.3f}" for f in factors))
    return table


def errors_table(errors: Mapping[str, int]) -> Table:
    """Return the table of bit errors: corrected bits, retries and lost pages."""
    table = _table("", "bit errors", "whole run")
    for name, words in ERRORS.items():
        table.add_row(words, f"{errors[name]:,}")
    return table


def upkeep_table(upkeep: Mapping[str, int]) -> Table:
    """Return the table of the numbers of blocks and pages that scrubbing and refresh processed."""
    table = _table("", "refresh and scrubbing", "whole run")
    for name, words in UPKEEP.items():
        table.add_row(words, f"{upkeep[name]:,}")
    return table


def pslc_table(pslc: Mapping[str, Any]) -> Table:
    """Return the table of the page operations and the capacity of pSLC blocks."""
    table = _table("", f"pSLC blocks ({pslc['mode']})", "whole run")
    for name, words in PSLC.items():
        table.add_row(words, f"{pslc[name]:,}")
    table.add_row("rated erases of a pSLC block", f"{pslc['rated_erases']:,}")
    table.add_row("capacity of pSLC blocks", fmt_bytes(pslc["pslc_bytes"]))
    table.add_row("capacity of the drive", fmt_bytes(pslc["offered_bytes"]))
    return table


def word_lines_table(lines: Mapping[str, int]) -> Table:
    """Return the table of incomplete word lines: padding pages, padded word lines, and pages that
    were programmed in a second pass."""
    table = _table("", "word lines", "whole run")
    for name, words in WORD_LINES.items():
        table.add_row(words, f"{lines[name]:,}")
    return table


def busy_table(shares: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the table of the utilization of each resource: busy time divided by simulated
    time."""
    table = _table(
        "Busy time of each resource (share of the simulated time)",
        "resource", "mean", "maximum", "mean, garbage collection",
    )  # fmt: skip
    for name, share in sorted(shares.items(), key=lambda item: -item[1]["most"]):
        cells = (share["mean"], share["most"], share["collection"])
        table.add_row(name, *(f"{x:.1%}" for x in cells))
    return table


def operations_table(operations: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the table of requests, bytes and latencies (arrival to completion) by operation."""
    table = _table("", "operation", "requests", "bytes", "mean", "p99", "max")
    for name, of in operations.items():
        times = (fmt_time(of["latency_us"][x] * PS_PER_US) for x in ("mean", "p99", "max"))
        size = fmt_bytes(int(of["bytes"])) if of["bytes"] else ""
        table.add_row(name, f"{of['requests']:,}", size, *times)
    return table


def run_words(data: Mapping[str, Any]) -> str:
    """Return a line with the wall time of the replay and the peak memory of the program."""
    rate = data["requests"] / data["wall_s"] if data["wall_s"] else 0.0
    return (
        f"wall time {fmt_time(data['wall_s'] * 1e12)} ({rate:,.0f} requests/s), "
        f"peak memory {fmt_bytes(data['peak_rss_bytes'], binary=True)}"
    )
