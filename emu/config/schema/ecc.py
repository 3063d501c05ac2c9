"""Configuration of the controller's error correction and of the simulated errors.

Owns the leaves of sections `ecc` and `errors`. Does not own the correction of errors (nand/ecc.py).
Source: published studies of bit errors; the presets give the source of each value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec


@dataclass(frozen=True, slots=True)
class Ecc:
    code: Annotated[
        str,
        Spec(
            "correction of the data that a drive with payload reads; capability: without a code, "
            "up to correctable_bits bit errors are undone, bch: BCH code for correctable_bits, "
            "ldpc: the quasi-cyclic LDPC code with the largest circulant that fits flash.spare",
            choices=("capability", "bch", "ldpc"),
        ),
    ]
    decode_ps: Annotated[int, Spec("time to decode one page; one engine per channel")]
    ldpc_iteration_ps: Annotated[
        int,
        Spec(
            "time of one iteration of LDPC decoding on one code word; only with ecc.code ldpc, "
            "which takes ecc.decode and the time of iterations beyond ecc.decode"
        ),
    ]
    bch_error_ps: Annotated[
        int,
        Spec(
            "time per bit error of a code word; only with ecc.code bch, which takes ecc.decode "
            "and the time of bit errors beyond ecc.decode; a failed word has correctable_bits"
        ),
    ]
    encode_ps: Annotated[int, Spec("time to encode one page; one engine per channel")]
    codeword_bytes: Annotated[int, Spec("user bytes of one code word", least=1)]
    correctable_bits: Annotated[
        int, Spec("bit errors per code word that hard decision decoding corrects")
    ]
    decode_limit_ps: Annotated[
        int,
        Spec(
            "time to decode a page at its correction limit, or until failure; only with ecc.code "
            "capability"
        ),
    ]
    retries: Annotated[int, Spec("largest number of read retries of a page, at shifted voltages")]
    retry_gain: Annotated[
        float, Spec("share of the errors from shifted voltages that remains after a retry")
    ]
    soft_reads: Annotated[
        int, Spec("additional reads for soft decision decoding; 0: no soft decision")
    ]
    soft_gain: Annotated[
        float, Spec("bit errors that soft decision corrects relative to hard decision")
    ]
    soft_decode_ps: Annotated[
        int, Spec("time to decode one page with soft decision; only with ecc.code capability")
    ]


@dataclass(frozen=True, slots=True)
class Errors:
    kind: Annotated[
        str,
        Spec(
            "raw bit errors; none: no errors, rate: errors.rate for every page, model: the "
            "model of the following keys",
            choices=("none", "rate", "model"),
        ),
    ]
    rate: Annotated[float, Spec("raw bit error rate of every read; only with kind rate")]
    exposure: Annotated[
        int,
        Spec(
            "number of reads of an optimizer page on the die that one simulated read represents, "
            "as in a model that is larger by this factor",
            least=1,
        ),
    ]
    floor: Annotated[float, Spec("raw bit error rate of a new, freshly programmed block")]
    wear: Annotated[float, Spec("error rate per (P/E cycle)^wear_exponent")]
    wear_exponent: Annotated[float, Spec("exponent of P/E cycles")]
    retention: Annotated[float, Spec("error rate per day^retention_exponent, for a new block")]
    retention_cycles: Annotated[int, Spec("scale of the P/E cycles in the retention term", least=1)]
    retention_cycles_exponent: Annotated[float, Spec("exponent of (1 + cycles / retention_cycles)")]
    retention_exponent: Annotated[float, Spec("exponent of the days since the page was programmed")]
    disturb: Annotated[
        float, Spec("error rate per (reads / disturb_reads)^disturb_exponent, at one P/E cycle")
    ]
    disturb_reads: Annotated[
        int, Spec("scale of a block's reads in the read disturb term", least=1)
    ]
    disturb_exponent: Annotated[float, Spec("exponent of (reads / disturb_reads)")]
    disturb_cycles_exponent: Annotated[
        float, Spec("exponent of P/E cycles in the read disturb term")
    ]
    coding: Annotated[
        str,
        Spec(
            "Gray code, which determines the reference voltages per page type",
            choices=("balanced", "binary"),
        ),
    ]
    pslc: Annotated[float, Spec("factor on the error rates of the model for blocks in pSLC mode")]
    slc: Annotated[float, Spec("factor on the error rates of the model for SLC")]
    mlc: Annotated[float, Spec("factor on the error rates of the model for MLC")]
    tlc: Annotated[float, Spec("factor on the error rates of the model for TLC")]
    qlc: Annotated[float, Spec("factor on the error rates of the model for QLC")]
    initial_cycles: Annotated[int, Spec("P/E cycles of every block at the start of the run")]
    initial_days: Annotated[float, Spec("age in days of the data present at the start of the run")]
