"""Numbers of flash operations of a run, by the names that MQSim uses.

Owns the assignment of the engine's counters to these names. Does not own the counting
(engine/core/counters.py). Source: MQSim's statistics of user, garbage collection and mapping
operations.
"""

from __future__ import annotations

from ondie.emu.replay.player import Replayed


def counters(count: dict[str, int]) -> dict[str, int]:
    """Return the numbers of flash operations by name, separately for user requests, garbage
    collection and mapping. ``count``: the engine's counters (engine/core/counters.py), by name."""
    return {
        "user_reads": count["read_pages"] + count["merge_read_pages"],
        "host_read_pages": count["read_pages"],
        "user_writes": count["program_pages"] + count.get("remerged_pages", 0),
        "gc_reads": count["gc_read_pages"],
        "gc_writes": count["gc_program_pages"],
        "fold_writes": count.get("fold_program_pages", 0),
        "refresh_writes": count.get("refresh_program_pages", 0),
        "map_reads": count.get("map_read_pages", 0),
        "map_writes": count.get("map_program_pages", 0),
        "padding_writes": count.get("padding_pages", 0),
        "failed_writes": count.get("failed_pages", 0),
        "erases": count["erased_blocks"],
        "collections": count["collections"],
        "levelings": count["wear_moves"],
        "program_suspensions": count["program_suspensions"],
        "erase_suspensions": count["erase_suspensions"],
    }


def half(done: Replayed) -> dict[str, int] | None:
    """Return the counters at the start of the second half of a run, with MQSim's names.

    Returns None if they are unknown or if some requests do not complete.
    """
    return None if done.half is None or any(map(any, done.unserved)) else counters(done.half)
