"""Owns: a page-mapped FTL without time, as plain as it gets, to compare theory and preconditioning
with. Does not: share code with the emulator. Source: own; the rules are those of its docstring.
"""

from typing import NamedTuple

import numpy as np

from ondie.kernels.jit import njit

FREE, OPEN, FULL = range(3)
GREEDY, FIFO = 0, -1
"""As a number of choices; from 1 on the best of so many full blocks."""


class Ftl(NamedTuple):
    """U units of B blocks of b pages. A write goes to the open block of its region; when there is
    none, the longest free block of the unit is opened, and while ``low`` blocks or fewer are free,
    a victim's valid pages are written to the open block for collected pages and it becomes free.
    """

    l2p: np.ndarray  # int64[lpns]: page of the drive, -1 = unmapped
    p2l: np.ndarray  # int64[U * B * b]: lpn written there last
    valid: np.ndarray  # int64[U, B]
    state: np.ndarray  # int64[U, B]
    since: np.ndarray  # int64[U, B]: when it was filled, by a count of filled blocks
    erases: np.ndarray  # int64[U, B]
    free: np.ndarray  # int64[U, B]: from the left, longest free first
    free_n: np.ndarray  # int64[U]
    block: np.ndarray  # int64[U, streams]: open block, -1 = none
    page: np.ndarray  # int64[U, streams]: next page of it
    table: np.ndarray  # int64[n]: unit of lpn mod n; none: round the units
    user: np.ndarray  # int64[regions]: stream of the user's pages, by region
    moved: np.ndarray  # int64[regions]: of collected pages
    edges: np.ndarray  # int64[regions - 1]: first LPNs of the regions but the first
    tally: np.ndarray  # int64[4]: user pages, moved pages, blocks filled, next unit
    b: int
    low: int
    choices: int


def new(
    units: int,
    blocks: int,
    b: int,
    low: int,
    lpns: int,
    *,
    choices: int = GREEDY,
    table: tuple[int, ...] = (),
    user: tuple[int, ...] = (0,),
    moved: tuple[int, ...] = (1,),
    edges: tuple[int, ...] = (),
) -> Ftl:
    """An empty drive. Random victims start from the same seed."""
    _seed(1)
    streams = 1 + max(user + moved)
    grid = np.zeros((units, blocks), np.int64)
    integers = [np.array(x, np.int64) for x in (table, user, moved, edges)]
    return Ftl(
        np.full(lpns, -1), np.zeros(units * blocks * b, np.int64), grid, grid.copy(), grid.copy(),
        grid.copy(), np.tile(np.arange(blocks), (units, 1)), np.full(units, blocks),
        np.full((units, streams), -1), np.zeros((units, streams), np.int64), *integers,
        np.zeros(4, np.int64), b, low, choices,
    )  # fmt: skip


def waf(ftl: Ftl, lpns: np.ndarray) -> float:
    """Write amplification of these writes."""
    before = ftl.tally.copy()
    write(ftl, lpns)
    done = ftl.tally - before
    return 1 + done[1] / done[0]


@njit
def _seed(n):
    """Of the compiled generator, which is not NumPy's."""
    np.random.seed(n)


@njit
def write(ftl, lpns):
    """The user writes these LPNs."""
    l2p, p2l, valid, state, since, erases = ftl[:6]
    free, free_n, open_at, next_page, table, user, moved, edges, tally, b, low, choices = ftl[6:]
    blocks = valid.shape[1]

    def region(lpn):
        r = 0
        while r < edges.size and lpn >= edges[r]:
            r += 1
        return r

    def open_block(u, stream):
        block = free[u, 0]
        free_n[u] -= 1
        for i in range(free_n[u]):
            free[u, i] = free[u, i + 1]
        state[u, block] = OPEN
        open_at[u, stream] = block
        next_page[u, stream] = 0

    def put(u, stream, lpn):
        block = open_at[u, stream]
        at = (u * blocks + block) * b + next_page[u, stream]
        if l2p[lpn] >= 0:
            old = l2p[lpn] // b
            valid[old // blocks, old % blocks] -= 1
        l2p[lpn] = at
        p2l[at] = lpn
        valid[u, block] += 1
        next_page[u, stream] += 1
        if next_page[u, stream] == b:
            open_at[u, stream] = -1
            state[u, block] = FULL
            tally[2] += 1
            since[u, block] = tally[2]

    def victim(u):
        best = -1
        if choices > 0:
            for _ in range(choices):
                block = np.random.randint(0, blocks)
                while state[u, block] != FULL:
                    block = np.random.randint(0, blocks)
                if best < 0 or valid[u, block] < valid[u, best]:
                    best = block
        else:
            key = valid if choices == GREEDY else since
            for block in range(blocks):
                if state[u, block] == FULL and (best < 0 or key[u, block] < key[u, best]):
                    best = block
        return best

    def collect(u):
        block = victim(u)
        for at in range((u * blocks + block) * b, (u * blocks + block + 1) * b):
            lpn = p2l[at]
            if l2p[lpn] == at:
                stream = moved[region(lpn)]
                if open_at[u, stream] < 0:
                    open_block(u, stream)
                put(u, stream, lpn)
                tally[1] += 1
        state[u, block] = FREE
        erases[u, block] += 1
        free[u, free_n[u]] = block
        free_n[u] += 1

    for lpn in lpns:
        if table.size:
            u = table[lpn % table.size]
        else:
            u = tally[3]
            tally[3] = (u + 1) % free_n.size
        stream = user[region(lpn)]
        while open_at[u, stream] < 0:
            open_block(u, stream)
            while free_n[u] <= low:
                collect(u)
        put(u, stream, lpn)
        tally[0] += 1
