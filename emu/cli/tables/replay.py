"""Statistics of a run as tables for a person.

Owns titles, columns and units of latencies, flash work and busy shares. Does not own any number.
Source: the fields of `--json` (replay/statistics.py).
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
    "gc_reads": "pages read by collection",
    "gc_writes": "pages programmed by collection",
    "map_reads": "map pages read",
    "map_writes": "map pages programmed",
    "erases": "blocks erased",
}
ERRORS = {
    "corrected_bits": "bits corrected",
    "retried_pages": "pages that were read again",
    "retry_read_pages": "readings after the first",
    "soft_pages": "pages that went to soft decision",
    "soft_read_pages": "readings for it",
    "uncorrectable_pages": "pages that could not be corrected",
    "lost_pages": "reads of pages that were lost before they were moved",
    "media_errors": "commands that ended with an unrecovered read error",
    "reclaimed_blocks": "blocks emptied because of their reads",
}


PSLC = {
    "pslc_pages": "pages programmed in pSLC blocks for the host",
    "direct_pages": "pages that found none, and went to native blocks",
    "folds": "pSLC blocks emptied",
    "fold_read_pages": "pages read to be folded",
    "fold_program_pages": "pages programmed in native blocks by folding",
    "pslc_erased_blocks": "of the blocks erased, those in pSLC mode",
}


WORD_LINES = {
    "padding_pages": "pages without data, programmed to complete a word line",
    "padded_at_flush": "word lines completed so for a FLUSH or a write with FUA",
    "padded_at_rest": "as the host waited and nothing else was under way",
    "padded_in_time": "after ftl.gather_time",
    "second_pass_pages": "pages programmed once more, in their second pass",
    "gathered_most": "most pages in DRAM for word lines not yet programmed",
}


def tables(data: Mapping[str, Any]) -> list[Table]:
    """Latencies, then flash work, of what `--json` writes."""
    return [latency_table(data), flash_table(data)]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def latency_table(data: Mapping[str, Any]) -> Table:
    """Latencies of all, reads and writes, of the whole run and its second half."""
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
    """What the flash did, in the whole run and in its second half where that was counted."""
    later = data["second_half"].get("flash")
    columns = ("flash", "whole run", "second half") if later else ("flash", "whole run")
    table = _table("", *columns)
    for name, words in FLASH.items():
        cells = [data["flash"][name], *([later[name]] if later else [])]
        table.add_row(words, *(f"{n:,}" for n in cells))
    factors = [data["waf"], *([data["second_half"]["waf"]] if later else [])]
    table.add_row("write amplification", *("" if f is None else f"{f:.3f}" for f in factors))
    return table


def errors_table(errors: Mapping[str, int]) -> Table:
    """What came of raw bit errors."""
    table = _table("", "bit errors", "whole run")
    for name, words in ERRORS.items():
        table.add_row(words, f"{errors[name]:,}")
    return table


def pslc_table(pslc: Mapping[str, Any]) -> Table:
    """What went through blocks in pSLC mode, and the capacity beside them."""
    table = _table("", f"pSLC blocks, {pslc['mode']}", "whole run")
    for name, words in PSLC.items():
        table.add_row(words, f"{pslc[name]:,}")
    table.add_row("erases that such a block stands", f"{pslc['rated_erases']:,}")
    table.add_row("bytes that they hold at most", fmt_bytes(pslc["pslc_bytes"]))
    table.add_row("bytes that the drive offers", fmt_bytes(pslc["offered_bytes"]))
    return table


def word_lines_table(lines: Mapping[str, int]) -> Table:
    """What it took to program whole word lines."""
    table = _table("", "word lines", "whole run")
    for name, words in WORD_LINES.items():
        table.add_row(words, f"{lines[name]:,}")
    return table


def busy_table(shares: Mapping[str, Mapping[str, float]]) -> Table:
    """Where the time went: shares of the simulated time in which resources worked."""
    table = _table(
        "Where the time went: share of the simulated time at work",
        "resource", "mean", "busiest", "of the mean, collection",
    )  # fmt: skip
    for name, share in sorted(shares.items(), key=lambda item: -item[1]["most"]):
        cells = (share["mean"], share["most"], share["collection"])
        table.add_row(name, *(f"{x:.1%}" for x in cells))
    return table


def operations_table(operations: Mapping[str, Mapping[str, Any]]) -> Table:
    """Requests, bytes and latencies by operation, from arrival to completion."""
    table = _table("", "operation", "requests", "bytes", "mean", "p99", "max")
    for name, of in operations.items():
        times = (fmt_time(of["latency_us"][x] * PS_PER_US) for x in ("mean", "p99", "max"))
        size = fmt_bytes(int(of["bytes"])) if of["bytes"] else ""
        table.add_row(name, f"{of['requests']:,}", size, *times)
    return table


def run_words(data: Mapping[str, Any]) -> str:
    """What the run took of this machine."""
    rate = data["requests"] / data["wall_s"] if data["wall_s"] else 0.0
    return (
        f"wall time {fmt_time(data['wall_s'] * 1e12)} ({rate:,.0f} requests/s), "
        f"peak memory {fmt_bytes(data['peak_rss_bytes'], binary=True)}"
    )
