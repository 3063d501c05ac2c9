"""Processing elements on the dies, their registers and protection.

Owns the leaves of the section. Does not own the time of a job (compute/pe.py).
Source: OptimStore (Kim et al., HPCA 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec


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
