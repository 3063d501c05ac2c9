"""Construction of a cluster from presets: hosts, drives of one or several kinds, links, power.

Owns the conversion of configuration and workload into a cluster. Does not own the cluster's arrays
(cluster.py), the workload's speeds (workload.py) or the time of an all-reduce
(collectives/allreduce.py).
Source: the presets' constants. Power constants come from the papers' servers: host.compute_power
includes idle drives; a computing drive adds the power of its controller and cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from ondie.emu.clock import PS_PER_S
from ondie.emu.cluster.cluster import Fleet, Kind
from ondie.emu.cluster.collectives.multi_server import Exchanging
from ondie.emu.cluster.load import slowdowns
from ondie.emu.cluster.load.contention import CORES, ETHERNET
from ondie.emu.cluster.power import Server
from ondie.emu.cluster.sample_read_rate import feed_bytes_per_s
from ondie.emu.cluster.workload import Workload, of_network
from ondie.emu.config.config import Config
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.units import InputError


def assemble(
    workload: Workload,
    drives: Sequence[tuple[Config, int]],
    *,
    hosts: int = 1,
    allreduce: str = "ring",
    reads: bool = True,
    slowdown: str | None = None,
    cores_taken: float = 0.0,
) -> Fleet:
    """Return a cluster of ``hosts`` hosts, among which the drives are distributed as evenly as
    possible.

    ``drives``: (preset, number of drives) of each kind. All hosts use the section [host] of the
    first preset. ``allreduce``: an element of collectives.multi_server.CLUSTER_ALGORITHMS.
    ``reads``: True if the step time includes the time in which the emulated flash reads the
    samples. ``slowdown``: name of the slowdown model of the hosts (load/slowdowns.py); default: the
    model of the first preset's server. ``cores_taken``: number of cores of every host that other
    programs use all the time. Raises InputError for negative drive counts, fewer than one host, an
    unknown model or algorithm, or a host without a free core.
    """
    if hosts < 1:
        raise InputError(f"{hosts} hosts: must be at least 1")
    for cfg, count in drives:
        if count < 0:
            raise InputError(f"{count} drives of {cfg.system.name}: must be at least 0")
    size = workload.sample_bytes if reads else 0
    of_host = slowdowns.slowdown(slowdown or slowdowns.of_host(drives[0][0].system.name))
    of_drive = slowdowns.slowdown(slowdowns.OF_A_DRIVE)

    @cache
    def feed(at: int, host: bool) -> float:
        return feed_bytes_per_s(drives[at][0], size, host=host) if size else 0.0

    kinds = [
        Kind(
            name="host",
            count=hosts,
            engine=workload.host,
            cores=CORES,
            slowdown=of_host.ratio,
            host=True,
            # The host's samples are spread over all drives of its server.
            feed_bytes_per_s=feed(0, True) * max(sum(n for _, n in drives) / hosts, 1),
            update_s=workload.updates_s[0],
            join_s=workload.gradient_bytes / ETHERNET.bytes_per_s,
            cores_taken=cores_taken,
        )
    ]
    for i, (cfg, count) in enumerate(drives):
        kinds.append(
            Kind(
                name=cfg.system.name,
                count=count,
                engine=workload.drives[i],
                cores=cfg.isp.cores,
                slowdown=of_drive.ratio,
                feed_bytes_per_s=feed(i, False),
                update_s=workload.updates_s[1 + i],
                # The FP32 weights are as large as the gradient.
                join_s=TunnelCost.of(cfg).downward(workload.gradient_bytes).end_ps / PS_PER_S,
            )
        )
    each = np.array([0.0, *(Server.of(cfg).drive_w for cfg, _ in drives)])
    kind = np.repeat(np.arange(len(kinds)), [one.count for one in kinds])
    drive = each[kind]
    base = hosts * Server.of(drives[0][0]).host_w

    def watts(there: np.ndarray) -> float:
        return base + float(drive[there].sum())

    return Fleet(
        kinds=tuple(kinds),
        exchange=Exchanging(workload.gradient_bytes, drives, hosts, allreduce),
        sample_bytes=size,
        watts=watts,
        published=workload.published,
    )


def assemble_network(
    name: str,
    cfg: Config,
    drives: int,
    *,
    slowdown: str | None = None,
    cores_taken: float = 0.0,
) -> Fleet:
    """Return a cluster of one host and ``drives`` drives of the preset ``cfg`` that trains the
    network ``name``, an element of networks.NETWORKS.

    Reading samples takes no time. ``slowdown``, ``cores_taken`` are as in :func:`assemble`. Raises
    InputError as :func:`assemble` does.
    """
    return assemble(
        of_network(name, [cfg]), [(cfg, drives)], reads=False, slowdown=slowdown,
        cores_taken=cores_taken,
    )  # fmt: skip
