"""Processing elements (PEs) on the die: time of their vector passes.

Owns the PE time of a stripe, and the time of the on-die ECC. Does not own the passes, their cycles
or their arithmetic (ondie.kernels.on_die), the contention for the die's bus (pe_bus.py), or the
time at which a die computes (nand/channel.py). Source: OptimStore (HPCA 2023): the PE clock is a
quarter of the interface rate, and a PE processes one 32-bit value per cycle, so a pass over a page
takes as long as the transfer of the page on the bus. AiF (ISCA 2025): a code that corrects 10 bits
in 1 KiB, at 6.4 GB/s.

Assumption: each die has one ECC encoder and decoder. It processes the pages of the die's planes one
after another, so that pages programmed by a PE have valid check bytes.
"""

from __future__ import annotations

from ondie.emu.clock import PS_PER_S
from ondie.emu.compute import pe_bus
from ondie.emu.config.config import Config
from ondie.kernels.on_die import passes

__all__ = ["VALUE_BYTES", "ecc_ps", "passes", "stripe_ps"]

VALUE_BYTES = 4


def stripe_ps(
    cfg: Config, op: str, coupled_decay: bool, groups: int = 1, width: int = VALUE_BYTES
) -> tuple[int, int]:
    """Return (PE time, bus time) of the update of one stripe, both in ps. A stripe is the values
    that a die updates at once. The bus time is the part of the PE time that is spent on the die's
    bus or waiting for the bus.

    If the bus causes no delay, the PE time is the number of passes (vector operations over a page)
    times the values of a page times one PE clock period. ``width``: bytes of a value;
    pe.narrow_values 2-byte values are processed per clock cycle, on the bus as well as in the PE.
    ``groups``: number of groups of planes in the stripe. The PEs of a die work in parallel, so a
    stripe with several groups takes longer only because the groups contend for the bus.
    """
    values = cfg.flash.page_bytes // width
    if width < VALUE_BYTES:
        values = -(-values // cfg.pe.narrow_values)
    found = pe_bus.passes(op, groups, values, cfg.pe.bus_values, coupled_decay)
    whole = cycles_ps(cfg, found.total)
    return whole, whole - cycles_ps(cfg, found.own)


def register_move_ps(cfg: Config) -> int:
    """Return the time to move a page between the registers of two planes over the die's bus (ps).

    A page is moved as 32-bit words, regardless of the format of its values.
    """
    values = cfg.flash.page_bytes // VALUE_BYTES
    return cycles_ps(cfg, pe_bus.across(values, cfg.pe.bus_values))


def cycles_ps(cfg: Config, cycles: int) -> int:
    """Return the duration of ``cycles`` cycles of the PE clock (ps)."""
    return -(-cycles * cfg.pe.clock_divider * PS_PER_S // cfg.flash.bus_bytes_per_s)


def extra_passes(cfg: Config) -> int:
    """Return the number of passes (vector operations) over each page of the stripe in addition to
    the passes of the update.

    A randomizer on the die takes two passes: it removes the key stream after the read and applies
    it before the program. The guard of end-to-end protection takes two passes: it is checked after
    the read and recomputed before the program.
    """
    return 2 * (cfg.pe.randomiser == "die") + 2 * (cfg.pe.integrity == "die")


def guarding_ps(cfg: Config, planes: int) -> int:
    """Return the additional time per stripe to randomize, check and encrypt its pages on the die
    (ps).

    ``planes``: number of pages of the stripe. The PEs of the planes process their pages in
    parallel. The die's AES engine processes one page after another, before and after the update.
    """
    time = cycles_ps(cfg, extra_passes(cfg) * (cfg.flash.page_bytes // VALUE_BYTES))
    size = 2 * planes * cfg.flash.page_bytes
    if cfg.pe.cipher == "die":
        time += -(-size * PS_PER_S // cfg.pe.cipher_bytes_per_s)
    return time


def ecc_ps(cfg: Config, pages: int) -> int:
    """Return the time that the on-die decoder or encoder takes for ``pages`` pages of a die (ps),
    or 0 if the die has no ECC.
    """
    if cfg.pe.protection != "on_die_ecc":
        return 0
    return -(-pages * cfg.flash.page_bytes * PS_PER_S // cfg.pe.ecc_bytes_per_s)
