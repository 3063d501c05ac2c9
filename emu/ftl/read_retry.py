"""How a read turns out: raw errors, read retry, soft decision, correction or a media error.

Owns the verdict on a page, the readings that it takes until it is right or given up, and their
time in the decoder. Does not own the rates (rber.py), the code (ecc.py) or marks (marks.py).
Source: Cai et al., Proc. IEEE 105(9), 2017 (hard decision, retries at other voltages, then soft
decision); NVMe base specification, status code type 2h, code 81h (unrecovered read error).

A page is judged when it first comes to the controller. Each reading more goes through the queue of
its die, array and channel, after the decoder has given the last one up; those for soft decision are
decoded together, behind the last. Of pages that were read together each that is not right is read
again alone. The draws depend on the seed, the page, its block's P/E cycles and how often the page
has been read, never on the order of events; the rate depends on the reads of the block as well.
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
    key="u8",  # of the verdict's draws
    rate="f8",  # of bit errors, in the last reading that hard decision was tried on
    time="i8",  # ps of the last decoding
    lost="i8",  # bit per sector that the drive's own read could not save
    total="i4",  # readings that the page takes; 0 = not judged
    done="i4",  # those that have come to the controller
    hard="i4",  # those that hard decision is tried on
    level="i4",  # retry level of the last of these
    spoilt="i4",  # 1: given up, its bytes are wrong
)


@njit
def sensed(st, t):
    """A reading of the pages of ``t`` has come to the controller. True when another follows."""
    r = st.reading[t]
    if r.total == 0:
        judge(st, t)
    r.done += 1
    return r.done < r.total


@njit
def tired(st, t):
    """Has the block that ``t`` reads been read so often, or was it so hard to read, that its data
    should move? Reads are counted for each of a super-block's blocks."""
    c = st.cfg[0]
    x = st.txn[t]
    if c.reclaim_retries > 0 and st.reading[t].total > c.reclaim_retries:
        return True
    if c.reclaim_reads == 0:
        return False
    return st.block[block_at(st, x.dev, x.ppn)].reads >= c.reclaim_reads * c.unit_planes


@njit
def judge(st, t):
    """Decide how the pages of ``t``, which have been read once, turn out. Those that have to be
    read again go on alone, all but the last when none is right."""
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
    """Bit per sector of its pages that somebody wants of the read ``t``: all, those that a command
    asks for, or those that a write does not have."""
    x = st.txn[t]
    if x.kind == OWN or st.cfg[0].partial == 0:
        return marks.ALL_SECTORS
    if x.bare != MERGING:
        return x.sectors
    sectors = st.cfg[0].page_bytes // 512
    return ~x.sectors if sectors >= 64 else ~x.sectors & ((1 << sectors) - 1)


@njit
def last_ps(st, outcome, errors):
    """ps of the decoding that ends a read."""
    code = st.code[0]
    if outcome == ecc.CORRECTED:
        return ecc.decode_ps(code, errors)
    return code.soft_decode if code.soft_reads > 0 else code.decode_limit


@njit
def count(st, dev, outcome, total, errors, lost):
    """Count a page as it turned out."""
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
    """The command for which ``t`` reads will complete with a media error."""
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
    """A transaction for one page of ``t`` that goes its own way from now on."""
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
    """Through the decoder of the channel, then on to ``step`` or to the next reading. False when
    that takes no time."""
    x = st.txn[t]
    r = st.reading[t]
    time = r.time
    n = x.n
    if r.done < r.total:
        step = s.AGAIN
        time = st.code[0].decode_limit
        if r.done > r.hard:  # for soft decision: decoded with the last
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
    """Read a page once more: command, array and data through the queue of its die."""
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
    """Factor on the rates of a page by its offset in the block, float64[pages], and behind these
    of pages in pSLC mode where there are any."""
    kinds = page_kinds(cfg)
    scales = rber.scales(cfg)
    native = scales[CELLS.index(cfg.flash.cell)][kinds]
    if cfg.ftl.pslc == "off":
        return np.ascontiguousarray(native)
    return np.concatenate([native, np.full(len(kinds), scales[CELLS.index("pSLC"), 0])])


def tables(cfg: Config, txns: int, blocks: int) -> dict[str, np.ndarray]:
    """The tables of the state that this room and marks.py own by transaction, block and constant;
    of one record where there are no errors."""
    on = cfg.errors.kind != "none"
    return {
        "rate": rber.rates(cfg),
        "code": ecc.code(cfg),
        "scale": page_scales(cfg) if on else np.ones(1),
        "quality": records(marks.QUALITY, blocks if on else 1),
        "reading": records(READING, txns if on else 1),
    }
