"""Policies of victim selection and of write streams: built-in and user functions.

Owns the built-in policies, their names, and the loading of a policy function from a file. Does not
own the calls of the policies (gc_victims.py, gc.py).
Source: greedy, d-choices (Van Houdt, SIGMETRICS 2013; MQSim's RGA), FIFO, cost-benefit (Kawaguchi
et al., USENIX 1995), random with and without a condition (MQSim's RANDOM, RANDOM_P, RANDOM_PP).

A victim policy is a function ``victim(st, unit) -> block``. It selects the next block of the unit
for garbage collection, or returns -1 to select none. docs/gc-policy.md lists the fields that a
policy may read. A stream policy is a function ``stream(st, tid) ->
stream``, which returns the write stream of transaction ``tid``.
"""

from __future__ import annotations

import dis
import hashlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

from ondie.emu.engine.core.rng import absorb, below
from ondie.emu.ftl.page_map import FULL, OPEN
from ondie.emu.units import InputError, nearest
from ondie.kernels.jit import njit


@njit
def first_block(st, unit):
    """Return the index of the first block of unit ``unit``."""
    return unit * st.cfg[0].all_blocks


@njit
def collectable(st, bid):
    """Return True if block ``bid`` can be collected: it is full, has no program in progress, is not
    to be retired, and is not already a victim.
    """
    block = st.block[bid]
    return block.state == FULL and block.flying == 0 and block.retire == 0


@njit
def draw(st, count):
    """Return a random integer from 0 to ``count`` - 1, drawn from the run's seed and a counter."""
    reg = st.reg[0]
    reg.draws += 1
    return below(absorb(st.cfg[0].seed, reg.draws), 0, count)


@njit
def greedy(st, unit):
    """Return the block with the fewest valid pages, or -1 if no block is worth collecting."""
    cfg = st.cfg[0]
    best = -1
    fewest = cfg.worth + 1
    for block in range(first_block(st, unit), first_block(st, unit) + cfg.blocks):
        if st.valid[block] < fewest and collectable(st, block):
            best = block
            fewest = st.valid[block]
    return best


@njit
def d_choices(st, unit):
    """Return the block with the fewest valid pages among up to ``floor(log2(blocks))`` random
    blocks that can be collected, or -1 if none is drawn.
    """
    cfg = st.cfg[0]
    d = 0
    while cfg.blocks >> (d + 1) > 0:
        d += 1
    best = -1
    found = 0
    for _ in range(64 * d):
        block = first_block(st, unit) + draw(st, cfg.blocks)
        if collectable(st, block):
            found += 1
            if best < 0 or st.valid[block] < st.valid[best]:
                best = block
            if found == d:
                break
    return best


@njit
def random(st, unit):
    """Return a random block that can be collected. Return the result of :func:`greedy` if no draw
    finds such a block."""
    cfg = st.cfg[0]
    for _ in range(cfg.blocks):
        block = first_block(st, unit) + draw(st, cfg.blocks)
        if collectable(st, block):
            return block
    return greedy(st, unit)


@njit
def random_some(st, unit):
    """Return a random block in which the fraction of invalid pages is at least the drive's fraction
    of spare pages. Return the result of :func:`greedy` if no draw finds such a block."""
    cfg = st.cfg[0]
    for _ in range(cfg.blocks):
        block = first_block(st, unit) + draw(st, cfg.blocks)
        if (
            collectable(st, block)
            and (cfg.block_pages - st.valid[block]) * cfg.spare_parts >= cfg.block_pages
        ):
            return block
    return greedy(st, unit)


@njit
def fifo(st, unit):
    """Return the block that was filled first among the blocks worth collecting, or -1 if there is
    none."""
    cfg = st.cfg[0]
    best = -1
    for block in range(first_block(st, unit), first_block(st, unit) + cfg.blocks):
        if st.valid[block] > cfg.worth or not collectable(st, block):
            continue
        if best < 0 or st.block[block].filled < st.block[best].filled:
            best = block
    return best


@njit
def cost_benefit(st, unit):
    """Return the block with the largest age x (1 - u) / 2u (u: fraction of valid pages) among the
    blocks that are worth collecting, or -1 if there is none.
    """
    cfg = st.cfg[0]
    best = -1
    most = -1.0
    for block in range(first_block(st, unit), first_block(st, unit) + cfg.blocks):
        if not collectable(st, block) or st.valid[block] > cfg.worth:
            continue
        share = st.valid[block] / cfg.block_pages
        age = float(st.reg[0].now - st.block[block].written + 1)
        benefit = age * (1.0 - share) / (2.0 * share + 1e-9)
        if benefit > most:
            most = benefit
            best = block
    return best


@njit
def by_command(st, tid):
    """Return the stream number given in the host's command."""
    return st.txn[tid].stream


@njit
def one_stream(st, tid):
    """Return stream 0, so that all host writes fill one open block."""
    return 0


@njit
def by_age(st, tid):
    """Return stream 0 for a hot page and stream 1 for a cold page, by the time since the page was
    last written. A page is hot if fewer pages than the drive's capacity have been programmed since
    then, including pages programmed by garbage collection. Pages never written and pages moved by
    garbage collection are cold.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    old = int(st.l2p[txn.dev, txn.lpn]) - 1
    if old < 0:
        return 1
    block = st.block[txn.dev * cfg.device_blocks + old // cfg.block_pages]
    if block.stream >= cfg.collected and block.stream != cfg.pslc_stream:
        return 1
    ago = (st.dev[txn.dev].filled - block.filled) * cfg.block_pages
    return 0 if block.state == OPEN or ago < cfg.lpns else 1


# Preconditioning to steady state has the same policies: precondition/untimed_ftl.py, POLICIES.
VICTIMS: dict[str, Callable[..., Any]] = {
    "greedy": greedy,
    "d_choices": d_choices,
    "random": random,
    "random_some": random_some,
    "fifo": fifo,
    "cost_benefit": cost_benefit,
}
STREAMS: dict[str, Callable[..., Any]] = {
    "by_command": by_command,
    "one": one_stream,
    "by_age": by_age,
}


def find(name: str, known: dict[str, Callable[..., Any]], key: str) -> Callable[..., Any]:
    """Return the policy called ``name``, or, if ``name`` is "FILE.py:FUNCTION", that function of
    the file.

    Raises InputError if there is no such policy, file or function, if the file cannot be imported,
    or if the function has the wrong number of arguments or raises exceptions. ``key``: name of the
    configuration key in the error message.
    """
    if name in known:
        return known[name]
    path, colon, function = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        near = nearest(name, known)
        raise InputError(
            f"{key} = {name!r}: unknown policy; {f'nearest: {near}; ' if near else ''}"
            f"use one of {', '.join(known)}, or FILE.py:FUNCTION"
        )
    found: Any = getattr(import_file(Path(path), key), function, None)
    plain = getattr(found, "py_func", found)
    if not isinstance(plain, FunctionType):
        raise InputError(f"{key} = {name!r}: {path} has no function {function!r}")
    if plain.__code__.co_argcount != 2:
        raise InputError(
            f"{key} = {name!r}: {function} takes {plain.__code__.co_argcount} arguments; "
            f"it must take the arguments {_FORMS[key]}"
        )
    for each in _with_helpers(plain, set()):
        if any(step.opname.startswith("RAISE") for step in dis.get_instructions(each)):
            raise InputError(
                f"{key} = {name!r}: {each.__name__} raises exceptions; a compiled policy cannot "
                "raise exceptions, so return -1 instead"
            )
    return found if hasattr(found, "py_func") else _compiled(plain)


def _with_helpers(function: FunctionType, seen: set[FunctionType]) -> set[FunctionType]:
    """Return ``function`` and the compiled user functions that it calls, directly or indirectly."""
    seen.add(function)
    for name in function.__code__.co_names:
        helper = getattr(function.__globals__.get(name), "py_func", None)
        if isinstance(helper, FunctionType) and helper not in seen:
            if not helper.__module__.startswith("ondie."):
                _with_helpers(helper, seen)
    return seen


@cache
def _compiled(function: FunctionType) -> Any:
    """Compile a function. Later calls with the same function return the cached result."""
    return njit(function)


_FORMS = {"ftl.gc_policy": "(st, u)", "ftl.stream_policy": "(st, t)"}


def import_file(path: Path, key: str) -> Any:
    """Import the user's file as a module and return the module. A changed file is imported again.
    Raises InputError if the file cannot be read or imported.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{key}: {path}: cannot be read: {error.strerror}") from error
    digest = hashlib.sha256(str(path.resolve()).encode() + b"\0" + content).hexdigest()[:8]
    name = f"{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{key}: {path} cannot be imported as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (
        Exception,
        SystemExit,
    ) as error:  # the import of the user's file may raise any exception
        del sys.modules[name]
        raise InputError(f"{key}: {path}: cannot be imported: {one_line(error)}") from error
    return module


def one_line(error: BaseException) -> str:
    """Format an exception as one line: type and message."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
