"""Processing elements on the die: what their vector passes take.

Owns the time of a stripe, and of the code on the die where there is one. Does not own the passes,
their cycles or their arithmetic (ondie.kernels.on_die), which of them wait for the die's bus
(die_bus.py), or when a die computes (backend/nand.py).
Source: OptimStore (HPCA 2023): clock a quarter of the interface rate, one 32-bit value per cycle:
a pass over a page takes as long as the page takes on the bus. AiF (ISCA 2025): a code of 10 bit in
1 KiB, at 6.4 GB/s; taken as one encoder and decoder of each die, through which its planes' pages
pass one after the other, so that pages a PE has programmed have a parity that is valid.
"""

from __future__ import annotations

from ondie.emu.clock import PS_PER_S
from ondie.emu.compute import pe_bus as die_bus
from ondie.emu.config.config import Config
from ondie.kernels.on_die import passes

__all__ = ["VALUE_BYTES", "ecc_ps", "passes", "stripe_ps"]

VALUE_BYTES = 4


def stripe_ps(
    cfg: Config, op: str, coupled_decay: bool, groups: int = 1, width: int = VALUE_BYTES
) -> tuple[int, int]:
    """PE time for one stripe in ps, and that of it in which passes read over the die's bus, or wait
    for it: passes x values of a page x one PE clock; values of ``width`` 2 bytes at
    pe.narrow_values a clock, on the bus as in the element.

    The PEs of a die work side by side, so a stripe that packs several groups takes no longer, but
    for what they want of the bus at once.
    """
    values = cfg.flash.page_bytes // width
    if width < VALUE_BYTES:
        values = -(-values // cfg.pe.narrow_values)
    found = die_bus.passes(op, groups, values, cfg.pe.bus_values, coupled_decay)
    whole = cycles_ps(cfg, found.total)
    return whole, whole - cycles_ps(cfg, found.own)


def register_move_ps(cfg: Config) -> int:
    """Time of a page from one plane's register into another's, over the die's bus, ps. A page is
    moved as words of 32 bits, whatever it holds."""
    values = cfg.flash.page_bytes // VALUE_BYTES
    return cycles_ps(cfg, die_bus.across(values, cfg.pe.bus_values))


def cycles_ps(cfg: Config, cycles: int) -> int:
    """Time of so many cycles of the elements' clock, ps."""
    return -(-cycles * cfg.pe.clock_divider * PS_PER_S // cfg.flash.bus_bytes_per_s)


def extra_passes(cfg: Config) -> int:
    """Passes beside the update's over every page in use: a key stream is taken off what was read
    and put on what is programmed; a guard is checked, and made anew."""
    return 2 * (cfg.pe.randomiser == "die") + 2 * (cfg.pe.integrity == "die")


def guarding_ps(cfg: Config, planes: int) -> int:
    """Time for one stripe that the die takes, beside its update, to keep ``planes`` pages as a
    controller would, ps: passes of the elements side by side; an AES engine of the die, over every
    page in turn, before the update and after it."""
    time = cycles_ps(cfg, extra_passes(cfg) * (cfg.flash.page_bytes // VALUE_BYTES))
    size = 2 * planes * cfg.flash.page_bytes
    if cfg.pe.cipher == "die":
        time += -(-size * PS_PER_S // cfg.pe.cipher_bytes_per_s)
    return time


def ecc_ps(cfg: Config, pages: int) -> int:
    """Time of so many pages of a die in its own decoder, or encoder, in ps; 0 without one."""
    if cfg.pe.protection != "on_die_ecc":
        return 0
    return -(-pages * cfg.flash.page_bytes * PS_PER_S // cfg.pe.ecc_bytes_per_s)
