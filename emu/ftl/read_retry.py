"""Read retry: the outcome of a page read by hard decision, retries, soft decision or media error.

Owns the verdict on a page, the readings until the page is corrected or given up, and their decoding
time. Does not own the bit error rates (nand/rber.py), the code (nand/ecc.py) or the marks of pages
(page_health.py).
Source: Cai et al., Proc. IEEE 105(9), 2017 (hard decision, retries at other voltages, then soft
decision); NVMe base specification, status code type 2h, code 81h (unrecovered read error).

The verdict on a page is drawn when its first reading reaches the controller. Each further reading
goes through the queue of its die, the array and the channel after the decoder has given up the
previous one. Readings for soft decision are decoded together, after the last one. If pages were
read together, each page that is not corrected is read again separately. The draws depend on the
seed, the page, the P/E cycles of its block and the number of reads of the page, never on the order
of events. The rate also depends on the reads of the block.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.config.schema import CELLS
from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.counters import (
    CORRECTED_BITS,
    ECC_DECODED_PAGES,
    LOST_PAGES,
    MEDIA_ERRORS,
    RETRIED_PAGES,
    RETRY_READ_PAGES,
    SOFT_PAGES,
    SOFT_READ_PAGES,
    UNASKED_OUT_BYTES,
    UNCORRECTABLE_PAGES,
)
from ondie.emu.engine.core.events import MERGING, OWN, REQUEST, enter, go, take_txn
from ondie.emu.engine.core.rng import absorb, page_key
from ondie.emu.engine.core.state import record_type, records
from ondie.emu.ftl import page_health as marks
from ondie.emu.ftl import subpage_sense as sharing
from ondie.emu.ftl.page_map import block_at, place_of, read_from
from ondie.emu.nand import channel as nand
from ondie.emu.nand import ecc, rber
from ondie.emu.nand.timing import page_kinds
from ondie.kernels.jit import njit

UNRECOVERED = 0x281
"""Status of a command: type 2h (media and data integrity), code 81h (unrecovered read error)."""
READING = record_type(
    key="u8",  # key of the verdict's draws
    rate="f8",  # bit error rate of the last reading with hard decision
    time="i8",  # time of the last decoding (ps)
    lost="i8",  # mask of sectors that an internal read could not recover
    total="i4",  # readings that the page takes; 0 = no verdict yet
    done="i4",  # readings that have reached the controller
    hard="i4",  # readings with hard decision
    level="i4",  # retry level of the last reading with hard decision
    spoilt="i4",  # 1: given up, the bytes are wrong
)


@njit
def sensed(st, t):
    """Count a reading of the pages of ``t`` that reached the controller. Return True if another
    reading follows."""
    r = st.reading[t]
    if r.total == 0:
        judge(st, t)
    r.done += 1
    return r.done < r.total


@njit
def tired(st, t):
    """Return True if the data of the block that ``t`` reads should be moved: the block was read too
    often, or the page took too many readings. The count of reads is the sum over all planes of a
    super-block, so the limit per block is multiplied by their number."""
    c = st.cfg[0]
    x = st.txn[t]
    if c.reclaim_retries > 0 and st.reading[t].total > c.reclaim_retries:
        return True
    if c.reclaim_reads == 0:
        return False
    return st.block[block_at(st, x.dev, x.ppn)].reads >= c.reclaim_reads * c.unit_planes


@njit
def judge(st, t):
    """Draw the verdict on the pages of ``t`` after their first reading. Each page that must be read
    again gets its own transaction, except the last page if no page was corrected."""
    c = st.cfg[0]
    x = st.txn[t]
    b = block_at(st, x.dev, x.ppn)
    q = st.quality[b]
    cycles = marks.worn(st, b)
    shifted = marks.shifted(st, b, x.ppn)
    if c.slots == 1:
        st.block[b].reads += x.n
    seed = absorb(c.seed, x.dev)
    scale = st.scale[x.page]
    lpn = x.lpn
    ppn = x.ppn
    n = x.n
    st.reading[t].time = 0
    st.reading[t].lost = 0
    kept = 0
    for i in range(n):
        dev = x.dev
        st.seen[dev, ppn + i] += 1
        key = page_key(seed, ppn + i, cycles, st.seen[dev, ppn + i])
        stable = q.stable + marks.kept_rate(st, b, dev, ppn + i) / scale
        outcome, retries, errors = ecc.read_page(st.code[0], key, stable, shifted, scale)
        total = ecc.senses(st.code[0], outcome, retries)
        v = t
        if total > 1 and (kept > 0 or i < n - 1):
            v = apart(st, t, lpn + i, ppn + i)
            if v < 0:
                return
        else:
            kept += 1
            x.lpn = lpn + i if total > 1 else lpn
            x.ppn = ppn + i if total > 1 else ppn
        r = st.reading[v]
        r.key = key
        r.rate = rber.retry_rate(stable, shifted, scale, st.code[0].gain, retries)
        r.level = retries
        r.total = total
        r.done = 0
        r.hard = 1 + retries
        r.spoilt = int(outcome == ecc.UNCORRECTABLE)
        r.time += last_ps(st, outcome, errors)
        lost = marks.lost_of(st, b, dev, ppn + i)
        if r.spoilt != 0:
            lost = marks.ALL_SECTORS
        lost &= wanted(st, t)
        count(st, dev, outcome, total, errors, lost)
        if x.kind == OWN or x.bare == MERGING:
            r.lost = lost
        elif lost != 0:
            unrecovered(st, v)
        if r.spoilt != 0 and total == 1 and x.kind != OWN:
            marks.log_bad(st, v, lpn + i, ppn + i)
        if v != t:
            r.done = 1
            go(st, v, s.SENSED)


@njit
def wanted(st, t):
    """Return the mask of sectors (one bit each) that the read ``t`` needs of its pages: all
    sectors, those that a command asks for, or those that a partial write lacks."""
    x = st.txn[t]
    if x.kind == OWN or st.cfg[0].partial == 0:
        return marks.ALL_SECTORS
    if x.bare != MERGING:
        return x.sectors
    sectors = st.cfg[0].page_bytes // 512
    return ~x.sectors if sectors >= 64 else ~x.sectors & ((1 << sectors) - 1)


@njit
def last_ps(st, outcome, errors):
    """Return the time of the last decoding of a read (ps)."""
    code = st.code[0]
    if outcome == ecc.CORRECTED:
        return ecc.decode_ps(code, errors)
    return code.soft_decode if code.soft_reads > 0 else code.decode_limit


@njit
def count(st, dev, outcome, total, errors, lost):
    """Count a page by its outcome."""
    if total > 1:
        st.count[dev, RETRIED_PAGES] += 1
    if outcome != ecc.CORRECTED and st.code[0].soft_reads > 0:
        st.count[dev, SOFT_PAGES] += 1
    if outcome == ecc.UNCORRECTABLE:
        st.count[dev, UNCORRECTABLE_PAGES] += 1
    else:
        st.count[dev, CORRECTED_BITS] += errors
        if lost != 0:
            st.count[dev, LOST_PAGES] += 1


@njit
def unrecovered(st, t):
    """Set the media error status of the command for which ``t`` reads."""
    x = st.txn[t]
    if x.kind == REQUEST:
        done = st.req[x.row]
        if done.status == 0:
            done.status = UNRECOVERED
            st.count[x.dev, MEDIA_ERRORS] += 1
    else:
        row = st.row[x.row]
        if row.status == 0:
            row.status = UNRECOVERED
            st.count[x.dev, MEDIA_ERRORS] += 1


@njit
def apart(st, t, lpn, ppn):
    """Split one page of ``t`` off into a new transaction, and return it (below 0: none free)."""
    u = take_txn(st)
    if u < 0:
        return u
    x = st.txn[t]
    y = st.txn[u]
    y.row = x.row
    y.kind = x.kind
    y.phase = x.phase
    y.dev = x.dev
    y.stream = x.stream
    y.op = x.op
    y.bare = x.bare
    y.queue = x.queue
    y.lpn = lpn
    y.ppn = ppn
    y.n = 1
    y.size = x.size // x.n
    y.bus = x.bus // x.n
    place_of(st, x.dev, u)
    x.size -= y.size
    x.bus -= y.bus
    x.n -= 1
    st.reading[u].time = 0
    st.reading[u].lost = 0
    if x.kind == REQUEST:
        st.req[x.row].pending += 1
    else:
        st.row[x.row].pending += 1
    read_from(st, x.dev, ppn)
    return u


@njit
def decode(st, t, step):
    """Pass ``t`` through the decoder of the channel, then continue at ``step`` or at the next
    reading. Return False if decoding takes no time."""
    x = st.txn[t]
    r = st.reading[t]
    time = r.time
    n = x.n
    if r.done < r.total:
        step = s.AGAIN
        time = st.code[0].decode_limit
        if r.done > r.hard:  # for soft decision: decoded with the last reading
            time = 0
            n = 0
    else:
        if r.spoilt != 0 and r.total > 1 and x.kind != OWN:
            marks.log_bad(st, t, x.lpn, x.ppn)
        r.total = 0
    st.count[x.dev, ECC_DECODED_PAGES] += n
    if time == 0:
        x.step = step
        return False
    station = s.station(st, x.dev, s.ECC) + st.die[x.die].bus % st.cfg[0].channels
    return enter(st, station, t, x.bus, time, step)


@njit
def again(st, t):
    """Read a page again: command, array and data transfer through the queue of its die."""
    c = st.cfg[0]
    x = st.txn[t]
    r = st.reading[t]
    if r.done < r.hard:
        st.count[x.dev, RETRY_READ_PAGES] += 1
    else:
        st.count[x.dev, SOFT_READ_PAGES] += 1
        x.bus = c.page_bytes  # soft decision takes whole code words
    st.count[x.dev, UNASKED_OUT_BYTES] += c.page_bytes - x.bus
    g = place_of(st, x.dev, t)
    sharing.count(st, t)
    if c.slots == 1:
        st.block[block_at(st, x.dev, x.ppn)].reads += 1
    x.array = st.page_ps[0, x.page]
    nand.push(st, g, t, x.queue)


def page_scales(cfg: Config) -> np.ndarray:
    """Return the factor on the bit error rate by page offset in the block, followed by the factors
    of pages in pSLC mode if there are any: float64[pages or 2 * pages]."""
    kinds = page_kinds(cfg)
    scales = rber.scales(cfg)
    native = scales[CELLS.index(cfg.flash.cell)][kinds]
    if cfg.ftl.pslc == "off":
        return np.ascontiguousarray(native)
    return np.concatenate([native, np.full(len(kinds), scales[CELLS.index("pSLC"), 0])])


def tables(cfg: Config, txns: int, blocks: int) -> dict[str, np.ndarray]:
    """Return the state tables of this module and of page_health.py, by transaction, block and
    constant. They have one record each if errors are off."""
    on = cfg.errors.kind != "none"
    return {
        "rate": rber.rates(cfg),
        "code": ecc.code(cfg),
        "scale": page_scales(cfg) if on else np.ones(1),
        "quality": records(marks.QUALITY, blocks if on else 1),
        "reading": records(READING, txns if on else 1),
    }
