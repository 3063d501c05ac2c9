"""Optimizer reservoir: super-page map, write pointers, plane rotation, parities, bit errors.

Owns the super-page map, the write pointer of each die, the roles of a block's planes, the time to
move pages to other planes, the places of parities and commit records, and the count of bit errors
in pages that bypass the controller's ECC. A place is a physical super-page within a die's
reservoir. Does not own the moves of super-pages to other dies (paths/on_die/wear_leveling.py), the
conventional namespace (page_map.py), the time of flash operations (nand/channel.py), bit error
rates (nand/rber.py, page_health.py), the protection against bit errors (nand/pe_protection.py), the
choice of parities and records (paths/on_die/protection.py) or the contents of the pages
(paths/payload.py, which reads the log). Source: OptimStore (HPCA 2023): mapping by super-page, and
strictly sequential writes, so that garbage collection moves nothing; one plane of four is idle,
with occasional wear leveling inside the die.

The paper does not publish the method of wear leveling. Here, the roles of a block's planes rotate
by one each time the block has been erased ``rotate`` times. Every super-page is rewritten in every
step. If the rotation of the new block differs from that of the old block, the pages of the
super-page change planes: they move one by one from register to register over the die's bus, those
next to an idle plane first.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.counters import (
    BARE_CORRECTED_BITS,
    BARE_WRONG_BITS,
    ECC_ITERATIONS,
    ECC_LATE_ITERATIONS,
)
from ondie.emu.engine.core.error_codes import E_RESERVOIR
from ondie.emu.engine.core.events import fail
from ondie.emu.engine.core.payload_log import LOG_RAW, note_log
from ondie.emu.engine.core.rng import absorb, binomial, page_key
from ondie.emu.ftl import block_manager, page_health, page_map
from ondie.emu.nand import ecc, pe_protection, rber
from ondie.emu.nand.die import Q_PE
from ondie.emu.nand.die_scheduler import select_next
from ondie.emu.nand.geometry import Geometry
from ondie.kernels.jit import cold, inline, njit

CLEAN, USED, RENEWED = range(3)
"""Values of ``dirty`` of a reservoir block.

CLEAN: no data has been written. USED: the block must be erased before it is written again. RENEWED:
the block has been erased for its next use (the erase may still be in progress).
"""


def bad_blocks(cfg: Config, geometry: Geometry, devices: int, seed: int = 0) -> np.ndarray:
    """Draw the reservoir super-blocks that are bad from the factory, from seed ``seed``. Return
    their mask, bool[devices x dies, reservoir_blocks].
    """
    shape = devices * geometry.dies, geometry.reservoir_blocks
    if cfg.ftl.bad_blocks == 0:
        return np.zeros(shape, bool)
    return np.random.default_rng((seed, 0xBAD, 1)).random(shape) < cfg.ftl.bad_blocks


@inline
def block_of(st, die, at):
    """Return the block that contains the physical super-page with index ``at`` in the reservoir of
    die ``die``. Blocks are numbered over all devices.
    """
    cfg = st.cfg[0]
    return die * cfg.all_blocks + cfg.blocks + at // cfg.pages


@inline
def rotation_of(st, die, at):
    """Return the number of planes by which the plane roles have rotated in a block. The role of a
    plane determines the page of a super-page that the plane stores. ``at``: index of a physical
    super-page of the block in the reservoir of die ``die``."""
    return st.block[block_of(st, die, at)].turned


@cold
def next_good(st, die, at):
    """Return the first physical super-page of the first good block in the reservoir of a die,
    searching from the block whose first physical super-page is ``at``. After the last block, the
    search continues with the first block.
    """
    cfg = st.cfg[0]
    for _ in range(cfg.reservoir_pages // cfg.pages):
        if st.block[block_of(st, die, at)].state != page_map.BAD:
            break
        at = at + cfg.pages if at + cfg.pages < cfg.reservoir_pages else 0
    return at


@cold
def erase_block(st, dev, die, block):
    """Erase block ``block``, which has no valid page, and set its plane roles for the new number of
    P/E cycles.
    """
    block_manager.queue_erase(st, dev, die, block, Q_PE)
    set_plane_roles(st, block, st.block[block].erases + 1)


@inline
def set_plane_roles(st, block, cycles):
    """Set the rotation of the plane roles (which plane stores which page of a super-page) of
    ``block``, which is opened after ``cycles`` P/E cycles."""
    cfg = st.cfg[0]
    if cfg.rotate > 0:
        st.block[block].turned = cycles // cfg.rotate % cfg.planes


@cold
def open_place(st, dev, super_page):
    """Allocate the place (physical super-page) for the next program of ``super_page``, and return
    it.

    Each die is written strictly in sequence. A block is written again only if it has no valid page,
    so garbage collection moves nothing. If the next block has valid pages, the reservoir is too
    small, and the run fails (E_RESERVOIR).
    """
    cfg = st.cfg[0]
    die = dev * cfg.dies + super_page % cfg.dies
    pool = st.pool[die]
    at = pool.r_next
    if at % cfg.pages == 0:
        at = next_good(st, die, at)
        bid = block_of(st, die, at)
        block = st.block[bid]
        if st.valid[bid] != 0:
            fail(st, E_RESERVOIR, die, st.valid[bid])
        if block.dirty == USED:
            erase_block(st, dev, die, bid)
        elif block.dirty == CLEAN:
            set_plane_roles(st, bid, block.erases)
        block.dirty = USED
        if cfg.errors != 0:
            st.quality[bid].since = st.reg[0].now
    pool.r_next = at + 1 if at + 1 < cfg.reservoir_pages else 0
    return at


@cold
def change_planes(st, tid, source):
    """Add the time for moving pages between planes to the program of ``tid``, whose stripe was read
    from physical super-page ``source``. Set field ``turned`` of the transaction to the number of
    page moves between registers.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    by = rotation_of(st, txn.die, txn.ppn) - rotation_of(st, txn.die, source)
    if by == 0:
        return
    by = abs(by)
    other = cfg.planes
    while other != 0:  # greatest common divisor
        by, other = other, by % other
    # Pages move in ``by`` rings. A ring without an idle plane takes one more move: one page is
    # buffered.
    txn.turned = cfg.reservoir_planes + by - min(cfg.planes - cfg.reservoir_planes, by)
    txn.array += txn.turned * cfg.register_move


@cold
def map_place(st, dev, super_page, at):
    """Map super-page ``super_page`` to the physical super-page with index ``at`` on its die."""
    cfg = st.cfg[0]
    die = dev * cfg.dies + super_page % cfg.dies
    old = st.rmap[dev, super_page]
    if old != 0:
        st.valid[block_of(st, die, int(old) - 1)] -= 1
    else:
        st.dev[dev].r_mapped += 1
    st.rmap[dev, super_page] = at + 1
    st.valid[block_of(st, die, at)] += 1


@cold
def unmap(st, dev, super_page):
    """Unmap super-page ``super_page``, whose data is now stored on another die."""
    die = dev * st.cfg[0].dies + super_page % st.cfg[0].dies
    st.valid[block_of(st, die, int(st.rmap[dev, super_page]) - 1)] -= 1
    st.rmap[dev, super_page] = 0
    st.dev[dev].r_mapped -= 1


@njit
def fill(st, dev, super_page, count):
    """Map ``count`` super-pages in sequence, starting at ``super_page``, without simulated time or
    erases.
    """
    cfg = st.cfg[0]
    for i in range(count):
        die = dev * cfg.dies + (super_page + i) % cfg.dies
        at = st.pool[die].r_next
        if at % cfg.pages == 0:
            st.block[block_of(st, die, next_good(st, die, at))].dirty = CLEAN
        map_place(st, dev, super_page + i, open_place(st, dev, super_page + i))


# --- parities and commit records


@cold
def wait_for_registers(st, tid):
    """Count the encoded parity or commit record ``tid`` as waiting for free registers of its die.
    If the next program of the die begins a block that must be erased first, erase this block.
    """
    txn = st.txn[tid]
    die = txn.dev * st.cfg[0].dies + txn.lpn % st.cfg[0].dies
    st.pool[die].made += 1
    erase_ahead(st, txn.dev, die)


@cold
def allocate_place(st, tid):
    """Allocate the die's next place (physical super-page) to parity or commit record ``tid``."""
    txn = st.txn[tid]
    die = txn.dev * st.cfg[0].dies + txn.lpn % st.cfg[0].dies
    st.pool[die].made -= 1
    txn.ppn = open_place(st, txn.dev, txn.lpn)
    select_next(st, txn.die)  # the next command depends on the new next place


@cold
def erase_ahead(st, dev, die):
    """Erase the next block of die ``die`` in advance, if a parity or commit record waits for
    registers and the next program of the die begins that block. This is necessary because the array
    operation of a parity or commit record must not begin with an erase.
    """
    cfg = st.cfg[0]
    pool = st.pool[die]
    if pool.made == 0 or pool.r_next % cfg.pages != 0:
        return
    block = block_of(st, die, next_good(st, die, pool.r_next))
    if st.valid[block] == 0 and st.block[block].dirty == USED:
        erase_block(st, dev, die, block)
        st.block[block].dirty = RENEWED


# --- bit errors of reads


@njit
def count_wrong_bits(st, tid):
    """Count and log the bit errors that remain in the pages of a super-page after read ``tid``. A
    page with bit errors that an implemented ECC code decodes is logged even if the capability model
    corrects all of them.

    The random draws depend on seed, page, P/E cycles and number of reads, as in read_retry.py.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    die = txn.lpn % cfg.dies
    index = txn.dev * cfg.dies + die
    block = block_of(st, index, txn.ppn)
    at = index * (cfg.all_blocks - cfg.blocks) + txn.ppn // cfg.pages
    first = die * cfg.unit_pages + (cfg.blocks * cfg.pages + txn.ppn) * cfg.planes * cfg.slots
    cycles = -1
    rate = 0.0
    seed = absorb(cfg.seed, txn.dev)
    time = 0  # time in the controller's decoder (ps)
    for i in range((txn.n + cfg.slots - 1) // cfg.slots):
        plane = (i + st.block[block].turned) % cfg.planes
        page = first + plane * cfg.slots
        if cycles != cfg.initial_cycles + st.worn[at, plane]:
            cycles = page_health.pe_cycles_after(st, block, st.worn[at, plane])
            shifted = page_health.shifted_rate_of(st, block, page)
            rate = rber.total_rate(st.quality[block].stable, shifted, st.scale[txn.ppn % cfg.pages])
        st.seen[txn.dev, page] += 1
        key = page_key(seed, page, cycles, st.seen[txn.dev, page])
        raw, left = pe_protection.count_wrong_bits(
            key, rate, cfg.page_bytes * cfg.slots, cfg.shield_word, cfg.shield_limit, cfg.exposure
        )
        st.count[txn.dev, BARE_WRONG_BITS] += left
        st.count[txn.dev, BARE_CORRECTED_BITS] += raw - left
        if (left > 0 or cfg.shield_coded * raw > 0) and st.reg[0].log_on != 0:
            log_wrong_page(st, tid, i, key, rate)
        if cfg.round_trip != 0:
            code = st.code[0]
            if code.coded != 0:
                made = bare_iterations(st, key, rate, raw)
                late = ecc.late_iterations(code, made)
                st.count[txn.dev, ECC_ITERATIONS] += made
                st.count[txn.dev, ECC_LATE_ITERATIONS] += late
                time += code.decode + late * code.iteration
            else:
                time += code.decode_limit if left > 0 else ecc.decode_ps(code, raw // cfg.exposure)
    st.block[block].reads += txn.n
    st.reading[tid].time = time


@njit
def bare_iterations(st, key, rate, raw):
    """Return the number of iterations that the controller's implemented ECC code needs for a
    reservoir page with ``raw`` bit errors in its data. A page without bit errors needs none.
    """
    cfg = st.cfg[0]
    code = st.code[0]
    if raw == 0:
        return np.int64(0)
    words = 8 * cfg.page_bytes * cfg.slots // code.data_bits
    beside = ecc.word_key(pe_protection.check_key(key), 0, -1)
    errors = raw + binomial(beside, words * (code.bits - code.data_bits), rate)
    return ecc.divided_iterations(code, st.effort, key, 0, words, errors, 0)


@njit
def log_wrong_page(st, tid, i, key, rate):
    """Append a log entry: page ``i`` of the super-page read by ``tid`` has bit errors. ``key``:
    random key of the read. ``rate``: raw bit error rate of the read."""
    txn = st.txn[tid]
    note_log(st, LOG_RAW, tid, txn.lpn, txn.ppn, txn.op, i, txn.dev, txn.die)
    record = st.log[st.reg[0].logged - 1]
    record.key = key
    record.rate = rate
