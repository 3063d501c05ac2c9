"""Processing elements on the die: what their vector passes take.

Owns the time of a stripe. Does not own the passes, their cycles or their arithmetic
(ondie.kernels.on_die), or when a die computes (backend/nand.py).
Source: OptimStore (HPCA 2023): clock a quarter of the interface rate, one 32-bit value per cycle:
a pass over a page takes as long as the page takes on the bus.
"""

from __future__ import annotations

from ondie.emu.clock import PS_PER_S
from ondie.emu.config import Config
from ondie.kernels import on_die
from ondie.kernels.on_die import passes

__all__ = ["VALUE_BYTES", "passes", "stripe_ps"]

VALUE_BYTES = 4


def stripe_ps(cfg: Config, op: str, coupled_decay: bool) -> int:
    """PE time for one stripe in ps: passes x values of a page x one PE clock.

    The PEs of a die work side by side, so a stripe that packs several groups takes no longer.
    """
    values = cfg.flash.page_bytes // VALUE_BYTES
    cycles = sum(on_die.cycles(op, values, coupled_decay).values())
    return -(-cycles * cfg.pe.clock_divider * PS_PER_S // cfg.flash.bus_bytes_per_s)
