"""Record of an on-die update's devices, for the modules that add plan rows of the update.

Owns the record alone. Does not own the values (path.py), the rows of a round (uneven_rounds.py)
or the moves between dies (wear_leveling.py).
Source: this project.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.nand.geometry import Geometry
from ondie.emu.paths.layout.regions import Stripes
from ondie.emu.paths.layout.stripe_map import Homes
from ondie.emu.paths.on_die.protection import Guarded


@dataclass(frozen=True)
class Devices:
    """Stripes of all devices and the constants of their update. Tuples have one element per
    device, except ``steps``."""

    cfg: Config
    geometry: Geometry
    steps: tuple[int, ...]
    """Steps of one stripe, in order (numbers of protection.py)."""
    stripes: tuple[Stripes, ...]
    homes: tuple[Homes, ...]
    guarded: tuple[Guarded, ...]
    good_blocks: np.ndarray
    """Mask of good blocks in each die's reservoir, bool[devices x dies, blocks]."""
    compute_ps: int
    """Time of a stripe between sense and program, excluding ECC in the die, ps."""
    round_trip: bool
    """True if the pages of a stripe pass the controller's ECC."""
