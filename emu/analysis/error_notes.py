"""Notes on raw bit errors and wear leveling in a run.

Owns the text of these notes, and the check for incorrect data. Does not own the counters
(engine/core/counters.py) or the comparison of weights (weight_check.py).
Source: this project.
"""

from __future__ import annotations

from ondie.emu.analysis.weight_check import Weights
from ondie.emu.engine.core.totals import Totals
from ondie.emu.nand.codec import BareCounts, DecodeCounts
from ondie.emu.nand.flash_pages import UncodedCounts
from ondie.emu.nand.pe_protection import WITHOUT_ECC
from ondie.emu.units import plural


def damaged(totals: Totals, decoded: DecodeCounts | None = None) -> bool:
    """Return True if a run used incorrect data: pages that ECC could not correct, reservoir pages
    with uncorrected bit errors, or code words miscorrected by the decoder. ``decoded``: counters of
    the decoder; None if the run decoded no code words."""
    if decoded is not None and decoded.miscorrected_words > 0:
        return True
    return totals.counters["uncorrectable_pages"] + totals.counters["bare_wrong_bits"] > 0


def wrong_data(totals: Totals, steps: int) -> tuple[float, float]:
    """Return the amounts of incorrect data that a run of ``steps`` steps used, per step:
    (uncorrected bit errors in reservoir pages, uncorrectable pages)."""
    counters = totals.counters
    return counters["bare_wrong_bits"] / steps, counters["uncorrectable_pages"] / steps


def wrong_words(bits: float, pages: float) -> str:
    """Return the numbers of bit errors and of uncorrectable pages per step as text, such as "12
    wrong bits per step"; "" if both numbers are 0."""
    found = [
        f"{number:.3g} {what}s" if number < 1 else plural(round(number), what)
        for number, what in ((bits, "wrong bit"), (pages, "uncorrectable page"))
        if number
    ]
    return f"{' and '.join(found)} per step" if found else ""


def uncoded_notes(counts: UncodedCounts) -> list[str]:
    """Return a list with one note on the reservoir pages without valid check bytes; an empty list
    if the dies programmed no such pages."""
    if not counts.unprotected_pages:
        return []
    return [
        f"{counts.unprotected_pages} pages were programmed on the dies without check bytes; the "
        f"controller read {counts.unprotected_taken} such pages without decoding them"
    ]


def error_notes(
    totals: Totals,
    weights: Weights | None,
    protection: str,
    decoded: DecodeCounts | None = None,
    bare: BareCounts | None = None,
) -> list[str]:
    """Return notes on the effects of raw bit errors (read retries, uncorrected bit errors) and on
    wear leveling.

    ``weights``: result of the weight check, or None. ``protection``: value of pe.protection.
    ``decoded``: counters of the drives' decoder; None if the run decoded no code words. ``bare``:
    counters of the decoder for the optimizer's pages; None if the run decoded none of these pages.
    """
    counters = totals.counters
    notes = []
    if counters["retried_pages"]:
        again = counters["retry_read_pages"] + counters["soft_read_pages"]
        notes += [f"{counters['retried_pages']} pages needed {again} additional reads"]
    failed = model = counters["uncorrectable_pages"]
    if decoded is not None:
        model += decoded.corrects_beside_model - decoded.fails_beside_model
    if failed + model:
        notes += [
            f"{plural(failed, 'page')} could not be corrected"
            f"{'' if decoded is None else ' by the decoder'}: "
            f"{counters['media_errors']} commands ended with an unrecovered read error "
            "(NVMe status 0x281)"
            + (
                ""
                if decoded is None
                else "; the capability model, which sets the number of reads, cannot correct "
                f"{model} of the pages that were read"
            )
        ]
    if bare is not None and bare.words:
        notes += [
            f"{plural(bare.words, 'code word')} of the optimizer's pages decoded: "
            f"{bare.failed_words} could not be corrected; the capability model cannot correct "
            f"{bare.failed_words - bare.fails_beside_model + bare.corrects_beside_model}; "
            f"the run used {plural(bare.wrong_bits_left, 'wrong bit')}"
        ]
    elif counters["bare_wrong_bits"]:
        why = "were read without ECC" if protection in WITHOUT_ECC else "ECC could not correct"
        notes += [f"{counters['bare_wrong_bits']} wrong bits in pages that {why}"]
    if counters["bare_corrected_bits"] and bare is None:
        notes += [
            f"{counters['bare_corrected_bits']} wrong bits in the optimizer's pages were corrected"
        ]
    if counters["landed_pages"]:
        notes += [f"{counters['landed_pages']} pages moved between dies for wear leveling"]
    if counters["turned_pages"]:
        notes += [f"{counters['turned_pages']} pages changed planes for wear leveling"]
    if weights is not None and damaged(totals, decoded):
        wrong = weights.elements - weights.equal_bits
        notes += [f"{wrong} of {weights.elements} weights are wrong because of bit errors"]
    return notes
