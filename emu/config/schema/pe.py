"""Configuration of the processing elements on the dies, of their registers and of their protection.

Owns the leaves of section `pe`. Does not own the time of a job (compute/pe.py).
Source: OptimStore (Kim et al., HPCA 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec


@dataclass(frozen=True, slots=True)
class Pe:
    kind: Annotated[
        str, Spec("processing elements (PEs) on the dies", choices=("none", "per_plane"))
    ]
    clock_divider: Annotated[int, Spec("clock of the flash interface divided by the clock of a PE")]
    narrow_values: Annotated[
        int, Spec("16-bit values that a PE processes per clock; 0: only 32-bit values")
    ]
    bus_values: Annotated[
        float,
        Spec("values that the shared bus of a die carries between planes, per PE clock"),
    ]
    dispatch: Annotated[
        str,
        Spec(
            "start of a stripe on a die; lockstep: when all dies of the channel have their "
            "gradients, free: when the die has its gradient, double_buffered: as free, with a "
            "second gradient buffer that is loaded during the update",
            choices=("lockstep", "free", "double_buffered"),
        ),
    ]
    protection: Annotated[
        str,
        Spec(
            "protection of the optimizer's pages from bit errors; none: none, nan_comparator: a "
            "comparator of exponents, on_die_ecc: an ECC engine on the die, controller_ecc: the "
            "ECC engine of the controller, over the channel and back",
            choices=("none", "nan_comparator", "on_die_ecc", "controller_ecc"),
        ),
    ]
    ecc_codeword_bytes: Annotated[int, Spec("user bytes of a code word of the on-die ECC", least=1)]
    ecc_correctable_bits: Annotated[
        int, Spec("bit errors per code word that the on-die ECC corrects")
    ]
    ecc_bytes_per_s: Annotated[
        int,
        Spec(
            "rate of the on-die encoder and decoder, one of each per die", least=1, key="ecc_rate"
        ),
    ]
    randomiser: Annotated[
        str,
        Spec(
            "data randomizer on the dies; none: stored patterns are not randomized",
            choices=("none", "die"),
        ),
    ]
    cipher: Annotated[
        str,
        Spec(
            "encryption of the stored states on the dies; none: not encrypted",
            choices=("none", "die"),
        ),
    ]
    cipher_bytes_per_s: Annotated[
        int,
        Spec("rate of the AES-XTS engine of a die, one page after the other", key="cipher_rate"),
    ]
    integrity: Annotated[
        str,
        Spec(
            "renewal of the guards of end-to-end protection on the dies; none: guards become stale",
            choices=("none", "die"),
        ),
    ]
    rain: Annotated[int, Spec("dies per parity stripe, including the parity die; 0: no parity")]
    atomicity: Annotated[
        str,
        Spec(
            "state after a power cut during an update; none: a mixture of old and new, resume: "
            "the step resumes from recorded cursors, undo: the step is rolled back",
            choices=("none", "resume", "undo"),
        ),
    ]
