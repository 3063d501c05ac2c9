"""Processing elements on the die: vector passes and their cycles.

Owns which passes each optimizer takes, the cycles of a pass and its arithmetic. Does not own when a
die computes (backend/nand.py) or the bits (ondie.kernels).
Source: OptimStore (HPCA 2023): operations LVS, QVS, ISQRT, VMUL; clock a quarter of the interface
rate, one 32-bit value per cycle, so a pass over a page takes as long as the page takes on the bus.
"""

from __future__ import annotations

from dataclasses import dataclass

from ondie.emu.clock import PS_PER_S
from ondie.emu.config import Config

VALUE_BYTES = 4


@dataclass(frozen=True)
class Pass:
    """One vector pass: additions and multiplications per value, values read and written."""

    name: str
    adds: int
    multiplies: int
    reads: int
    writes: int = 1


LVS = Pass("LVS", adds=1, multiplies=2, reads=2)  # v1 <- a v1 + b v2
QVS = Pass("QVS", adds=1, multiplies=3, reads=2)  # v1 <- a v1 + b v2^2
ISQRT = Pass("ISQRT", adds=2, multiplies=4, reads=1)  # shift, subtract, one Newton step
VMUL = Pass("VMUL", adds=0, multiplies=1, reads=2)

PASSES: dict[str, tuple[Pass, ...]] = {
    "sgd": (LVS,),
    "momentum": (LVS, LVS),
    "nesterov": (LVS, LVS, LVS),
    "adam": (LVS, QVS, ISQRT, VMUL, LVS),
    "adamw": (LVS, QVS, ISQRT, VMUL, LVS),  # decoupled decay is the last pass's coefficient a
    "adagrad": (QVS, ISQRT, VMUL, LVS),
}
COUPLED_DECAY = LVS
"""Weight decay added to the gradient (all but adamw) takes a pass of its own."""


def passes(op: str, coupled_decay: bool) -> tuple[Pass, ...]:
    """The passes of an optimizer, with weight decay added to the gradient or not."""
    if coupled_decay and op != "adamw":
        return (COUPLED_DECAY, *PASSES[op])
    return PASSES[op]


def stripe_ps(cfg: Config, op: str, coupled_decay: bool) -> int:
    """PE time for one stripe in ps: passes x values of a page x one PE clock.

    The PEs of a die work side by side, so a stripe that packs several groups takes no longer.
    """
    values = cfg.flash.page_bytes // VALUE_BYTES
    cycles = values * len(passes(op, coupled_decay))
    return -(-cycles * cfg.pe.clock_divider * PS_PER_S // cfg.flash.bus_bytes_per_s)
