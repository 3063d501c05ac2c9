"""Slowdown models by name: the speed of a node on the cores that other programs leave free.

Owns the names and the default model of each kind of server. Does not own the curves
(contention.py), the load over time (trace.py, on_off.py) or the cluster that applies a curve
(cluster/build.py).
Source: HyperTune (HeydariGorji et al.) for the curves of two kinds of server; the paper has no
curve for a drive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ondie.emu.cluster.load.contention import Slowdown, host_and_lagunas, three_nodes
from ondie.emu.units import InputError, known_names

THREE_NODES, LAGUNA_HOST, LINEAR = "three-nodes", "laguna-host", "linear"
SLOWDOWNS: Mapping[str, Callable[[], Slowdown]] = {
    THREE_NODES: lambda: three_nodes().slowdown,
    LAGUNA_HOST: lambda: host_and_lagunas().slowdown,
    LINEAR: lambda: Slowdown(((0.5, 0.5),)),
}
"""Slowdown models (training speed by fraction of free cores) by name: the measured model of one of
three equal nodes, the measured model of a host with 36 Laguna drives (which includes the relays of
its drives), and a speed in proportion to the free cores [assumed]."""
OF_A_DRIVE = LINEAR
"""Name of the slowdown model that is used for the cores of a drive [assumed]."""
_OF_A_HOST = {"laguna": LAGUNA_HOST}


def slowdown(name: str) -> Slowdown:
    """Return the slowdown model called ``name``. Raises InputError for an unknown name."""
    if name not in SLOWDOWNS:
        raise InputError(f'slowdown = "{name}": unknown; {known_names(name, SLOWDOWNS)}')
    return SLOWDOWNS[name]()


def of_host(drive: str) -> str:
    """Return the name of the default slowdown model of a host whose drives have the preset
    ``drive``. The default is THREE_NODES if HyperTune did not measure a host with these drives."""
    return _OF_A_HOST.get(drive, THREE_NODES)
