"""Drives of `ondie study errors`: the preset, and the drives with each error-correcting code.

Owns the preset, the codes of `--codes`, and the configuration of a drive with one of these codes.
Does not own the training runs (errors.py, codes.py). Does not import torch.
Source: AiF, ISCA 2025 (BCH code of 10 bit/1 KiB on the die, BCH code of 50 bit/1 KiB in the
controller); measurement of the LDPC code's limit by `ondie validate ecc`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ondie.emu.config.config import Config, load_preset

DEVICE = "optimstore-r1"
LDPC_BITS = load_preset("gen4-tlc").ecc.correctable_bits
"""Number of bit errors in 4 KiB that the capability model corrects when it represents the LDPC
code."""


@dataclass(frozen=True)
class Code:
    """Error-correcting code that the study tests, with the configuration of the drive that uses it.
    ``changes``: values of configuration keys that differ from the preset DEVICE, by key. ``rates``:
    raw bit error rates below and above the limit of the code."""

    changes: Mapping[str, Any]
    rates: tuple[float, ...]


CODES = {
    "BCH 10 bit/1 KiB on the die": Code(
        {"pe.protection": "on_die_ecc", "ecc.code": "bch"}, (1e-4, 3e-4, 6e-4, 1e-3)
    ),
    "BCH 50 bit/1 KiB": Code(
        {"pe.protection": "controller_ecc", "ecc.code": "bch"}, (2.5e-3, 3.3e-3, 3.7e-3, 4.5e-3)
    ),
    "LDPC 4 KiB": Code(
        {
            "pe.protection": "controller_ecc", "ecc.code": "ldpc", "ecc.codeword": "4 KiB",
            "ecc.correctable_bits": LDPC_BITS,
        },
        (6e-3, 7e-3, 7.5e-3, 8e-3),
    ),
}  # fmt: skip


def device(code: str, rate: float, real: bool) -> Config:
    """Return the configuration of a drive of the study with an error-correcting code. ``code``: a
    key of CODES. ``rate``: raw bit error rate. ``real``: True to decode with the code; False to use
    the capability model with the limit of the code."""
    changes = dict(CODES[code].changes) | {"errors.kind": "rate", "errors.rate": rate}
    if not real:
        changes["ecc.code"] = "capability"
    return load_preset(DEVICE).replace(changes)
