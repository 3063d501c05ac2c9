"""Completion of die operations: a table that assigns a handler to each operation and owner.

Owns the dispatch, and the order in which FTL, data cache and host are notified of the end of an
operation. Does not own the actions of FTL, data cache and processing elements (ftl/completion.py,
nvme/data_cache.py, pe_completion.py).
Source: NVMeVirt, in which each command has one completion function and the FTL does not call the
front end.

============ ============================ ==========================================
operation    owner                        handler
============ ============================ ==========================================
any          reservoir, for controller    pe_completion.on_helped_done
READ         garbage collection           write_collected_page, after ECC, DRAM
READ         translation page, scrubbing  stage MAP_SENSED (datapath.py)
READ         host, ISP                    stage SENSED (datapath.py)
PROGRAM      FTL: GC, translation page    completion.on_own_program_done
PROGRAM      data cache                   on_cache_program_done
PROGRAM      host, ISP                    completion.map_host_write
ERASE        FTL                          on_erase_done
VPP ... BPP  processing elements          pe_completion.on_pe_done
============ ============================ ==========================================
"""

from __future__ import annotations

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import (
    PROGRAM_PAGES,
)
from ondie.emu.engine.core.events import CACHED, OWN, go
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.run import pe_completion
from ondie.emu.ftl import (
    completion,
    padding,
    pslc,
    read_retry,
    refresh,
    reservoir,
    write_frontier,
    write_path,
)
from ondie.emu.ftl.gc import resume_after_read, start_read_reclaim
from ondie.emu.ftl.transfers import HOST_PASSES, decode, dram
from ondie.emu.nand import scheduler_statistics, timing
from ondie.emu.nvme import data_cache, mqsim_cache
from ondie.kernels.jit import cold, njit


@njit
def on_erase_done(st, tid):
    """Complete an erase. If the erase ends a garbage collection, retry the writes that wait for a
    free block.
    """
    cfg = st.cfg[0]
    dev = st.txn[tid].dev
    page = st.txn[tid].page
    unit, collected = completion.on_block_erased(st, tid)
    if not collected:
        return
    if cfg.gc_stop > 0:
        retry_stalled(st, dev, unit)
    st.reg[0].cause = 1 + page
    completion.after_free_block(st, dev, unit)
    st.reg[0].cause = 0


@njit
def check_unit(st, dev, unit):
    """Retry the stalled writes of unit ``unit`` (blocks that are written and collected together).
    schedule_check has scheduled this call.

    With ordered events, only internal writes are retried. As in MQSim, stalled host writes are then
    retried only after erases.
    """
    if st.cfg[0].ordered != 0:
        write_path.retry_internal(st, dev, unit)
    else:
        retry_stalled(st, dev, unit)


@njit
def retry_stalled(st, dev, unit):
    """Retry stalled writes, in order of arrival, after a block of unit ``unit`` (blocks that are
    written and collected together) has become free.
    """
    write_path.retry_internal(st, dev, unit)
    if st.cfg[0].cache == 1:
        data_cache.run_deferred(st, dev)
    write_path.retry_writes(st, dev, unit)


@cold
def on_cache_program_done(st, tid):
    """Complete a program in a drive with a data cache.

    Return True if the write came from the cache, so that no command waits for the program.
    """
    cfg = st.cfg[0]
    if cfg.cache != mqsim_cache.BUFFER:
        return data_cache.on_programmed(st, tid)
    if cfg.placed == 0:
        completion.map_programmed_pages(st, tid)
    return mqsim_cache.on_programmed(st, tid)


@njit
def on_program_done(st, tid):
    """Complete program ``tid`` and map its pages.

    Return ``tid`` if a command waits for the program, else -1.
    """
    cfg = st.cfg[0]
    block = completion.on_pages_programmed(st, tid)
    if block < 0:
        return -1
    txn = st.txn[tid]
    dev = txn.dev
    unit = block // cfg.all_blocks
    if txn.kind == OWN:
        completion.on_own_program_done(st, tid, unit)
        return -1
    if cfg.pslc != 0 and pslc.count_programmed(st, tid, block):
        write_frontier.schedule_check(st, unit)
        st.pool[unit].asked = 1
    if cfg.partial != 0 and cfg.placed == 0 and txn.kind != CACHED:
        if write_path.has_missed_a_write(st, tid):
            if cfg.line > 1:
                padding.count_again(st, tid)
            write_path.merge_again(st, tid)
            completion.after_host_write(st, dev, unit)
            return -1
    st.count[dev, PROGRAM_PAGES] += txn.n
    if cfg.cache != 0 and on_cache_program_done(st, tid):
        completion.after_host_write(st, dev, unit)
        return -1
    completion.map_host_write(st, tid)
    completion.after_host_write(st, dev, unit)
    return tid


@njit
def on_read_done(st, tid):
    """Send a sensed page to its destination: the host (through ECC), the cached mapping table, or
    another flash page.

    A page with bit errors may be sensed again first.
    """
    txn = st.txn[tid]
    dev = txn.dev
    more = False
    if st.cfg[0].errors != 0:
        if txn.kind == OWN or txn.role != Role.RESERVOIR:
            more = read_retry.on_sensed(st, tid)
        elif st.row[txn.row].kind != timing.SCAN:
            reservoir.count_wrong_bits(st, tid)
    if txn.kind == OWN and txn.role == Role.NONE:
        if st.cfg[0].errors != 0:
            go(st, tid, stages.MOVE_SENSED)
        elif not decode(st, tid, stages.MOVE_DECODED) and not dram(
            st, tid, HOST_PASSES, stages.MOVE_IN_DRAM
        ):
            completion.write_collected_page(st, tid)
        return
    if (txn.kind == OWN or txn.role != Role.RESERVOIR) and not more:
        resume_after_read(st, dev, txn.ppn)
        if txn.kind == OWN and txn.role == Role.SCRUB:
            refresh.judge(st, tid)
        elif st.cfg[0].errors != 0 and read_retry.needs_refresh(st, tid):
            start_read_reclaim(st, dev, txn.ppn)
    go(st, tid, stages.MAP_SENSED if txn.kind == OWN else stages.SENSED)


@njit
def on_flash_done(st, tid):
    """Complete the die operation of transaction ``tid`` with the handler for its operation and
    owner.

    Return ``tid`` if the transaction is finished, else -1.
    """
    txn = st.txn[tid]
    if st.cfg[0].probe != 0:
        scheduler_statistics.on_done(st, tid)
    if txn.role >= Role.REGISTERS or (txn.role == Role.RESERVOIR and txn.op == timing.PROGRAM):
        return pe_completion.on_helped_done(st, tid)
    if txn.op == timing.READ:
        on_read_done(st, tid)
        return -1
    if txn.op == timing.PROGRAM:
        return on_program_done(st, tid)
    if txn.op == timing.ERASE:
        on_erase_done(st, tid)
        return -1
    return pe_completion.on_pe_done(st, tid)
