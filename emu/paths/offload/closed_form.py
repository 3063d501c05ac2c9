"""Closed form of an offloaded update stage, from the configuration alone.

Owns the sums of demands. Does not own the demands (paths/closed_form.py), and takes no value from
the simulation.
Source: ZeRO-Infinity's order: serial T = N(16/R + 12/W + 1/c), pipelined T = N max(16/R, 12/W, 1/c)
+ fill, with N parameters, read rate R, write rate W (B/s) and c updates per second. Resources that
both reads and writes use are counted once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from ondie.emu.config.config import Config
from ondie.emu.paths.closed_form import (
    Bound,
    Demand,
    handle_depth,
    host_update_s,
    parts_text,
    with_latency,
    words,
)
from ondie.emu.paths.offload.options import Offload


def bound(
    cfg: Config,
    options: Offload,
    groups: Sequence[tuple[int, int]],
    on_nvme: Sequence[tuple[int, int]],
    moved: Mapping[str, int],
    traffic: Fraction | int,
) -> Bound:
    """Return the bound on the duration of the update stage of host offload.

    ``groups``: ranges of parameters [start, stop) of all sub-groups; ``on_nvme``: those of the
    sub-groups with states on NVMe. ``moved``: number of bytes that the update reads and writes, by
    key "read" and "written". ``traffic``: DRAM bytes per parameter of the update.

    Serial: the sum of the three stages (read, compute, write) of every sub-group, each at the rate
    of its bottleneck. Pipelined reads and writes: the longest of the three stages over all
    sub-groups, plus the times of the first and last sub-group that do not overlap. If only reads or
    only writes are pipelined: for each sub-group, the pipelined stage or the sum of the other two
    stages, whichever is longer.
    """
    devices = cfg.system.devices
    pipelined = options.pipeline_read or options.pipeline_write
    per_drive = None
    if options.threads is not None:
        per_drive = options.threads * cfg.host.io_queue_depth / devices
    elif pipelined:
        per_drive = handle_depth(cfg)
    read, write, both = (Demand(cfg, per_drive) for _ in range(3))
    for demand in (read, both):
        demand.host_read(moved["read"] / devices)
    for demand in (write, both):
        demand.host_write(moved["written"] / devices)
    params = sum(stop - start for start, stop in groups)
    cpu = host_update_s(cfg, params, traffic)
    shared = both.largest[1]
    both.add("host CPU", cpu)
    held = sum(stop - start for start, stop in on_nvme)
    share = [(stop - start) / held for start, stop in on_nvme]
    if not share:
        return with_latency("host CPU", cpu, 0.0, parts_text([("compute", "host CPU", cpu)]))
    ends_bare = read.first_read() + write.last_write()
    if not pipelined or len(share) == 1 or options.in_flight == 1:
        stages = {
            "read": read.largest, "compute": ("host CPU", cpu), "write": write.largest,
        }  # fmt: skip
        parts = [(what, name, seconds) for what, (name, seconds) in stages.items()]
        name = max(stages.values(), key=lambda item: item[1])[0]
        work = sum(seconds for _, seconds in stages.values())
        return with_latency(name, work, len(share) * ends_bare, parts_text(parts))
    read_most, write_most = read.largest[1], write.largest[1]
    name, seconds = both.largest
    if not (options.pipeline_read and options.pipeline_write):
        kept = (cpu, write_most) if options.pipeline_read else (read_most, cpu)
        aside = read_most if options.pipeline_read else write_most
        overlap = sum(
            max(aside * ahead, sum(kept) * mine, shared * mine)
            for mine, ahead in zip(share, share[1:], strict=False)
        )
        first, last = (share[0], share[-1]) if options.pipeline_read else (share[-1], share[0])
        alone = aside * first + sum(kept) * last
        text = f"{words(overlap)} overlapped ({name}) + {words(alone)} not overlapped"
        return with_latency(name, overlap + alone, len(share) * ends_bare, text)
    if name == "host CPU":
        behind = max(share[-2] * write_most - share[-1] * cpu, 0)  # of the last but one's writes
        ends = share[0] * read_most + behind + share[-1] * write_most
    elif read.seconds[name] and write.seconds[name]:
        # Reads continue while the first group is computed, writes while the last one is.
        ends = max(share[0] * cpu - share[1] * read_most, 0) + max(
            share[-1] * cpu - share[-2] * write_most, 0
        )
    elif read.seconds[name]:
        before = share[-2] * (cpu + write_most) - share[-1] * (
            read_most + cpu
        )  # of the last but one's writes
        ends = share[-1] * (cpu + write_most) + max(before, 0)
    else:
        ends = share[0] * (read_most + cpu)
    text = f"{parts_text([('all', name, seconds)])} + {words(ends)} not overlapped at the ends"
    return with_latency(name, seconds + ends, ends_bare, text)
