"""Storage formats of the arrays of an update.

This module owns the format names, the type of each array and the bytes that an update moves. It
does not own casts (cast.py), codes (codes.py) or stochastic rounding (stochastic.py).
Source: mixed precision after Micikevicius et al., ICLR 2018; 8-bit states after Dettmers et al.,
ICLR 2022. NumPy has no bfloat16, so BF16 values are stored as uint16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

F32, H16, B16, CODES = range(4)  # storage kinds of an array; indices of TYPES
TYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16), np.dtype(np.uint8))
BLOCK = 256  # ONDIE_CODE_BLOCK: elements that share a scale
NONE = -1


@dataclass(frozen=True)
class Format:
    """A storage format of an update: the storage types of the weights ``w``, the gradient ``g`` and
    the states.

    ``out``: storage type of an additional 16-bit copy of the weights, or NONE if the format has no
    copy.
    """

    name: str
    w: int
    g: int
    state: int
    out: int
    variant: int  # enum ondie_variant
    random: bool = False
    codes: str = ""  # name of the code map of 8-bit states

    def traffic(self, states: int) -> int:
        """Return the number of DRAM bytes per parameter that one update reads and writes in total.

        The scales of coded states are excluded; they add 8 bytes per block and state.
        """
        sizes = [TYPES[k].itemsize for k in (self.w, self.g, self.state)]
        out = 0 if self.out == NONE else TYPES[self.out].itemsize
        return 2 * sizes[0] + sizes[1] + 2 * states * sizes[2] + out


FORMATS = {
    f.name: f
    for f in (
        Format("fp32", F32, F32, F32, NONE, 0),
        Format("fp16", F32, H16, F32, H16, 2),
        Format("bf16", F32, B16, F32, B16, 3),
        Format("bf16_all", B16, B16, B16, NONE, 4),
        Format("bf16_stochastic", B16, B16, B16, NONE, 5, random=True),
        Format("int8_dynamic", F32, F32, CODES, NONE, 6, codes="dynamic"),
        Format("int8_linear", F32, F32, CODES, NONE, 6, codes="linear"),
    )
}
