"""Reservoir reads: bit errors in the optimizer's pages, which bypass the controller's ECC.

Owns the count of wrong bits in reservoir pages when the die or the controller uses them. Does not
own the bit error rates (nand/rber.py, page_health.py), the protection against bit errors
(nand/pe_protection.py) or the bytes of the pages (paths/payload.py, which reads the log).
Source: OptimStore (HPCA 2023): on-die processing elements work on pages in pSLC mode, whose raw bit
error rate is assumed to be low enough to do without the controller's ECC.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import BARE_CORRECTED_BITS, BARE_WRONG_BITS
from ondie.emu.engine.core.payload_log import LOG_RAW, note_log
from ondie.emu.engine.core.rng import absorb, page_key
from ondie.emu.ftl import page_health, reservoir
from ondie.emu.nand import ecc, pe_protection, rber
from ondie.kernels.jit import njit


@njit
def count_wrong_bits(st, tid):
    """Count and log the wrong bits that remain in the pages of a super-page after read ``tid``.

    The random draws depend on seed, page, P/E cycles and number of reads, as in read_retry.py.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    die = txn.lpn % cfg.dies
    index = txn.dev * cfg.dies + die
    block = reservoir.block_of(st, index, txn.ppn)
    at = index * (cfg.all_blocks - cfg.blocks) + txn.ppn // cfg.pages
    first = die * cfg.unit_pages + (cfg.blocks * cfg.pages + txn.ppn) * cfg.planes
    cycles = -1
    rate = 0.0
    seed = absorb(cfg.seed, txn.dev)
    time = 0  # time in the controller's decoder (ps)
    for i in range(txn.n):
        plane = (i + st.block[block].turned) % cfg.planes
        page = first + plane
        if cycles != cfg.initial_cycles + st.worn[at, plane]:
            cycles = page_health.pe_cycles_after(st, block, st.worn[at, plane])
            shifted = page_health.shifted_rate_of(st, block, page)
            rate = rber.total_rate(st.quality[block].stable, shifted, st.scale[txn.ppn % cfg.pages])
        st.seen[txn.dev, page] += 1
        key = page_key(seed, page, cycles, st.seen[txn.dev, page])
        raw, left = pe_protection.count_wrong_bits(
            key, rate, cfg.page_bytes, cfg.shield_word, cfg.shield_limit, cfg.exposure
        )
        st.count[txn.dev, BARE_WRONG_BITS] += left
        st.count[txn.dev, BARE_CORRECTED_BITS] += raw - left
        if left > 0 and st.reg[0].log_on != 0:
            log_wrong_page(st, tid, i, key, rate)
        if cfg.round_trip != 0:
            code = st.code[0]
            time += code.decode_limit if left > 0 else ecc.decode_ps(code, raw // cfg.exposure)
    st.block[block].reads += txn.n
    st.reading[tid].time = time


@njit
def log_wrong_page(st, tid, i, key, rate):
    """Append a log entry that page ``i`` of the super-page read by ``tid`` has wrong bits."""
    txn = st.txn[tid]
    note_log(st, LOG_RAW, tid, txn.lpn, txn.ppn, txn.op, i, txn.dev, txn.die)
    record = st.log[st.reg[0].logged - 1]
    record.key = key
    record.rate = rate
