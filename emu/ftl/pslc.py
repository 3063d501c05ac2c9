"""pSLC: blocks in pSLC mode (one bit per cell) in a drive with native blocks.

Owns which blocks are in pSLC mode, what they hold, their times, and their source (fixed region or
borrowed native blocks). Does not own the folding of pSLC blocks (pslc_folding.py) or native blocks
(page_map.py).
Source: Swissbit, "4 reasons to use industrial 3D TLC NAND flash as pseudo-SLC", 2023 (a third of
the pages, other times and endurance); Samsung, TurboWrite (a fixed region plus borrowed blocks).

A block is in pSLC mode from its opening to its erase if the stream that fills it is
``cfg.pslc_stream``. It keeps the addresses of a native block and uses only the first ones, one page
per word line. Its page offsets (``txn.page``) follow the native offsets. So tables by page have an
entry for each mode, and no command combines pages of both modes.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.config.rules import WORD_LINE
from ondie.emu.engine.core.counters import DIRECT_PAGES, PSLC_PAGES
from ondie.emu.engine.core.state import record_type, records
from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl.page_map import FOLDABLE, FREE, OPEN
from ondie.emu.nand import channel as nand
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.timing import page_times
from ondie.kernels.jit import cold, inline

OFF, STATIC, DYNAMIC = range(3)
MODES = ("off", "static", "dynamic")
NO_STREAM = -2
"""``cfg.pslc_stream`` of a drive without pSLC blocks: a stream that no block has."""
SLC = record_type(
    free_head="i8",  # free blocks of the fixed region
    free_n="i8",
    lent="i8",  # blocks in pSLC mode: open, full or being folded
    full="i8",  # of these, full blocks whose folding has not begun
)


@inline
def cached(st, b):
    """Return True if block ``b`` is in pSLC mode."""
    return st.block[b].stream == st.cfg[0].pslc_stream


@inline
def either(st, b, native, folded):
    """Return the counter for block ``b``: ``folded`` if it is in pSLC mode, else ``native``
    (garbage collection)."""
    return folded if st.block[b].stream == st.cfg[0].pslc_stream else native


@inline
def takes(st, stream):
    """Return True if writes of a host stream go to pSLC blocks."""
    c = st.cfg[0]
    return c.pslc_hosts == 0 or stream < c.pslc_hosts


@cold
def left(st, u):
    """Return how many more blocks of unit ``u`` may be opened in pSLC mode. Borrowed blocks leave
    enough free blocks that borrowing does not trigger garbage collection."""
    c = st.cfg[0]
    if c.pslc == STATIC:
        return st.slc[u].free_n
    return min(c.pslc_most - st.slc[u].lent, st.pool[u].free_n - c.pslc_keep)


@cold
def open_block(st, u):
    """Open a block of unit ``u`` in pSLC mode. Return False if none is available."""
    c = st.cfg[0]
    s = st.slc[u]
    if left(st, u) <= 0:
        return False
    if c.pslc == STATIC:
        b = st.slc_free[u, s.free_head]
        s.free_head = s.free_head + 1 if s.free_head + 1 < c.pslc_most else 0
        s.free_n -= 1
    else:
        if not mapping.spare(st, u):
            return False
        b = mapping.take_free(st, u, 0)
    s.lent += 1
    at = u * c.all_blocks + b
    st.block[at].state = OPEN
    st.block[at].stream = c.pslc_stream
    if c.errors != 0:
        st.quality[at].since = st.reg[0].now
    front = st.front[c.pslc_stream, u]
    front.block = b
    front.next = 0
    mapping.urgency(st, u)
    return True


@cold
def allocate(st, dev, u, n):
    """Allocate up to ``n`` pages at consecutive planes of one page offset in unit ``u``'s pSLC
    block. Return (first ppn, count), or (-1, 0). ``reg.filled`` is 1 if the block is now full."""
    c = st.cfg[0]
    front = st.front[c.pslc_stream, u]
    st.reg[0].filled = 0
    if front.block < 0 and not open_block(st, u):
        return -1, 0
    k = 1
    if n > 1 and c.multi_plane != 0:
        k = min(n, c.unit_planes - front.next % c.unit_planes)
    at = u * c.all_blocks + front.block
    block = st.block[at]
    ppn = mapping.first_page(st, dev, at) + front.next
    if front.next == 0 and block.dirty != 0:
        mapping.erase(st, dev, u, at, nand.Q_WRITE)
    block.dirty = 1
    front.next += k
    block.flying += k
    if front.next == c.pslc_pages:
        front.block = -1
        filled(st, u, at)
        block.filled = st.dev[dev].filled
        block.written = st.reg[0].now
        st.dev[dev].filled += 1
        st.reg[0].filled = 1
    return ppn, k


@cold
def filled(st, u, b):
    """Mark block ``b``, which is in pSLC mode and full, as ready to be folded."""
    st.block[b].state = FOLDABLE
    st.slc[u].full += 1


@cold
def landed(st, t, b):
    """Count a host write that was programmed in block ``b`` by mode. Return True after the last
    program of a full pSLC block, which can then be folded."""
    x = st.txn[t]
    if not cached(st, b):
        if takes(st, st.block[b].stream):
            st.count[x.dev, DIRECT_PAGES] += x.n
        return False
    st.count[x.dev, PSLC_PAGES] += x.n
    return st.block[b].state == FOLDABLE and st.block[b].flying == 0


@cold
def given_back(st, u, b):
    """Return the empty block ``b``, in pSLC mode until now, to the free blocks of its source."""
    c = st.cfg[0]
    s = st.slc[u]
    s.lent -= 1
    if c.pslc == DYNAMIC:
        mapping.free_block(st, u, b)
        return
    st.slc_free[u, (s.free_head + s.free_n) % c.pslc_most] = b - u * c.all_blocks
    s.free_n += 1
    st.block[b].state = FREE
    st.block[b].stream = -1


def block_pages(cfg: Config) -> int:
    """Return the pages of one plane's block in pSLC mode: one per word line."""
    return cfg.flash.pages_per_block // WORD_LINE.get(cfg.flash.cell, 1)


def capacity(cfg: Config) -> int:
    """Return the maximum bytes that a drive's blocks hold in pSLC mode, 0 if there are none."""
    if cfg.ftl.pslc == "off":
        return 0
    g = Geometry.of(cfg)
    blocks = g.units * g.unit_planes * int(g.blocks * cfg.ftl.pslc_share)
    return blocks * block_pages(cfg) * g.page_bytes


def array_times(cfg: Config) -> np.ndarray:
    """Return ``timing.page_times``, followed by the times of pages in pSLC mode if there are any:
    int64[3, pages or 2 * pages]."""
    native = page_times(cfg)
    if cfg.ftl.pslc == "off":
        return native
    flash = cfg.flash
    more = np.zeros_like(native)
    more[0] = flash.pslc_t_read_ps - flash.t_read_ps
    more[1:] = flash.pslc_t_program_ps - flash.t_program_ps
    return np.ascontiguousarray(np.concatenate([native, more], axis=1))


def tables(cfg: Config, units: int, blocks: int, region: int) -> dict[str, np.ndarray]:
    """Return the state tables of this module. A unit has ``blocks`` conventional blocks, of which
    the last ``region`` are the fixed region (0: none)."""
    slc = records(SLC, units if cfg.ftl.pslc != "off" else 1)
    slc.free_n = region
    ring = np.arange(blocks - region, blocks, dtype=np.int32) if region else np.zeros(1, np.int32)
    return {"slc": slc, "slc_free": np.tile(ring, (units if region else 1, 1))}
