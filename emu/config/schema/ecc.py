"""Error correction of the controller, and the errors that are simulated.

Owns the leaves of the sections. Does not own the correction itself (nand/ecc.py).
Source: published bit error studies, by leaf in the presets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec


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
