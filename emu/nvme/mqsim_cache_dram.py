"""DRAM of MQSim's data cache: time of an access, and the order of the accesses of several caches.

Owns the access time and the order of accesses. Does not own the pages in the cache
(mqsim_cache.py). Source: MQSim's data cache.

The accesses of one cache are served in order of arrival. With several caches, one for each flow,
the DRAM serves one access of each cache in round-robin order.
"""

from __future__ import annotations

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.events import enter, give_txn, line, take_txn
from ondie.emu.nand.timing import READ
from ondie.kernels.jit import cold, inline, njit

PS_PER_NS = 1000


@njit
def access_ps(st, n_bytes):
    """Return the time of one access of ``n_bytes`` to the cache's DRAM, ps.

    For an access to several DRAM rows, only half of the rows are counted, as in MQSim.
    """
    cfg = st.cfg[0]
    row = int(cfg.buffer_row)
    pairs = n_bytes // cfg.buffer_burst // 2
    if n_bytes <= row:
        return cfg.buffer_open + int(pairs * cfg.buffer_ns) * PS_PER_NS
    whole = int((row // cfg.buffer_burst // 2) * cfg.buffer_ns + cfg.buffer_close) * (
        n_bytes // row // 2
    )
    rest = int((n_bytes % row) / (cfg.buffer_burst * cfg.buffer_ns))
    return 2 * cfg.buffer_open + (whole + rest) * PS_PER_NS


@njit
def access(st, tid, n_bytes, step):
    """Queue an access of ``n_bytes`` by transaction ``tid`` to the cache's DRAM.

    The transaction continues with stage ``step`` when the access ends. Returns False if the access
    takes no time.
    """
    station = stages.station(st, st.txn[tid].dev, stages.DRAM)
    if st.cache.shape[0] > 1 and st.fifo[station].head >= 0:
        wait_for_turn(st, station, tid, n_bytes, step)
        return True
    return enter(st, station, tid, n_bytes, access_ps(st, n_bytes), step)


@inline
def turns_ahead(st, tid, turn):
    """Return the number of caches that are served before the cache of transaction ``tid`` in the
    current round, while the DRAM serves cache ``turn``."""
    groups = st.cache.shape[0]
    return (int(st.zone[st.txn[tid].stream].group) - turn - 1 + groups) % groups


@cold
def wait_for_turn(st, station, tid, n_bytes, step):
    """Queue an access to the busy DRAM that several caches share. The DRAM serves one access of
    each cache in round-robin order.

    The accesses of one cache are served in order of arrival. The new access delays all queued
    accesses that are served after it. The transaction ``tid`` continues with stage ``step`` when
    its access ends.
    """
    fifo = st.fifo[station]
    service = access_ps(st, n_bytes)
    turn = int(st.zone[st.txn[fifo.head].stream].group)
    own = turns_ahead(st, tid, turn)
    own_round = 0
    other = st.txn[fifo.head].next
    while other >= 0:
        own_round += int(turns_ahead(st, other, turn) == own)
        other = st.txn[other].next
    before = int(fifo.head)
    other = st.txn[before].next
    last = -1
    rounds = 0
    while other >= 0:
        ahead = turns_ahead(st, other, turn)
        rounds += int(ahead <= last)
        last = ahead
        if rounds > own_round or (rounds == own_round and ahead > own):
            break
        before = other
        other = st.txn[other].next
    txn = st.txn[tid]
    txn.step = step
    txn.next = other
    st.txn[before].next = tid
    start = st.txn[before].time
    if other < 0:
        start = fifo.free_at
        fifo.tail = tid
    txn.time = start + service
    line(st, st.reg[0].fifo0 + station, start, txn.time, tid)
    while other >= 0:
        st.txn[other].time += service
        other = st.txn[other].next
    fifo.free_at += service
    fifo.size += n_bytes
    fifo.jobs += 1
    st.use[txn.phase, st.reg[0].fifo0 + station] += service


@cold
def occupy(st, tid, n_bytes):
    """Occupy the DRAM for an access of ``n_bytes`` bytes on behalf of transaction ``tid``. The
    transaction does not wait for the end of the access.

    With several caches, a separate transaction makes the access, so that the access takes part in
    the round-robin order of the caches. If the pool of transaction records is nearly empty, the
    access is instead queued after all other accesses.
    """
    reg = st.reg[0]
    txn = st.txn[tid]
    dev = txn.dev
    if st.cache.shape[0] > 1 and reg.txns_free > 2 * st.cfg[0].budget:
        other = take_txn(st)
        st.txn[other].op = READ
        st.txn[other].dev = dev
        st.txn[other].stream = txn.stream
        st.txn[other].phase = txn.phase
        st.txn[other].size = n_bytes
        if not access(st, other, n_bytes, stages.DESTAGE):
            give_txn(st, other)
        return
    fifo = st.fifo[stages.station(st, dev, stages.DRAM)]
    time = access_ps(st, n_bytes)
    fifo.free_at = max(reg.now, fifo.free_at) + time
    fifo.size += n_bytes
    fifo.jobs += 1
    st.use[0, reg.fifo0 + stages.station(st, dev, stages.DRAM)] += time
