"""Reservoir reads: bit errors in the optimizer's pages, which bypass the controller's ECC.

Owns the wrong bits of reservoir pages at their use, in the die or in the controller. Does not own
their rates (nand/rber.py, page_health.py), their protection (nand/pe_protection.py) or the bytes
(paths/payload.py follows the log).
Source: OptimStore (HPCA 2023): on-die processing elements work on pages in pSLC mode, whose raw bit
error rate is assumed to be low enough to do without the controller's ECC.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import BARE_CORRECTED_BITS, BARE_WRONG_BITS
from ondie.emu.engine.core.events import LOG_RAW
from ondie.emu.engine.core.rng import absorb, page_key
from ondie.emu.ftl import page_health as marks
from ondie.emu.ftl import reservoir
from ondie.emu.nand import ecc, rber
from ondie.emu.nand import pe_protection as shield
from ondie.kernels.jit import njit


@njit
def sensed(st, t):
    """Count and log the wrong bits that remain in the pages of super-page ``t`` after a read. The
    draws depend on the same inputs as those of other reads (read_retry.py)."""
    c = st.cfg[0]
    x = st.txn[t]
    die = x.lpn % c.dies
    g = x.dev * c.dies + die
    b = reservoir.block_of(st, g, x.ppn)
    at = g * (c.all_blocks - c.blocks) + x.ppn // c.pages
    first = die * c.unit_pages + (c.blocks * c.pages + x.ppn) * c.planes
    cycles = -1
    rate = 0.0
    seed = absorb(c.seed, x.dev)
    time = 0  # time in the controller's decoder (ps)
    for i in range(x.n):
        plane = (i + st.block[b].turned) % c.planes
        page = first + plane
        if cycles != c.initial_cycles + st.worn[at, plane]:
            cycles = marks.worn_by(st, b, st.worn[at, plane])
            shifted = marks.shifted(st, b, page)
            rate = rber.total_rate(st.quality[b].stable, shifted, st.scale[x.ppn % c.pages])
        st.seen[x.dev, page] += 1
        key = page_key(seed, page, cycles, st.seen[x.dev, page])
        raw, left = shield.count(key, rate, c.page_bytes, c.shield_word, c.shield_limit, c.exposure)
        st.count[x.dev, BARE_WRONG_BITS] += left
        st.count[x.dev, BARE_CORRECTED_BITS] += raw - left
        if left > 0 and st.reg[0].log_on != 0:
            note(st, t, i, key, rate)
        if c.round_trip != 0:
            code = st.code[0]
            time += code.decode_limit if left > 0 else ecc.decode_ps(code, raw // c.exposure)
    st.block[b].reads += x.n
    st.reading[t].time = time


@njit
def note(st, t, i, key, rate):
    """Append a log entry: page ``i`` of the super-page of ``t`` has wrong bits."""
    reg = st.reg[0]
    y = st.txn[t]
    x = st.log[reg.logged]
    x.what = LOG_RAW
    x.row = st.row[y.row].id
    x.lpn = y.lpn
    x.ppn = y.ppn
    x.old = y.op
    x.n = i
    x.dev = y.dev
    x.die = y.die
    x.key = key
    x.rate = rate
    reg.logged += 1
