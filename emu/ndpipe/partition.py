"""Cut of a network between stores and Tuner, and the number of stores.

Owns the rates of a cut, the selection of a cut by throughput, and the number of stores beyond which
the throughput does not increase. Does not own layer tables (layers.py), servers (servers.py), or
the simulation of the pipeline (pipeline.py).
Source: NDPipe (ASPLOS 2024): every store runs the forward pass of the layers before the cut, and
one Tuner runs all other layers. The rates of the stages are this project's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ondie.emu.ndpipe.layers import Network
from ondie.emu.ndpipe.servers import Server, server
from ondie.emu.units import InputError, whole_number

FP16 = 2
"""Bytes per tensor element that crosses the network between stores and Tuner."""
HEAD_PASSES = 2
"""Number of passes over the head per sample and epoch of training, each with as many MACs as the
forward pass: the forward pass, and the gradient of the weights. The gradient of the head's inputs
is not needed, because all other layers are frozen."""
MOST_STORES = 1 << 40
"""Maximum number of stores of a Fleet."""


@dataclass(frozen=True)
class Fleet:
    """Servers of NDPipe: stores, which run the frozen layers, and a Tuner, which trains the head.

    ``stores``: number of stores. Rates of computation are multiply-accumulates/s; rates of networks
    are bytes/s. The rates of the stores apply to each store. ``epochs``: number of times that the
    Tuner trains the head on the features of a photo.
    """

    stores: int
    store_macs_per_s: float
    store_bytes_per_s: float
    tuner_macs_per_s: float
    tuner_bytes_per_s: float
    epochs: int = 1

    def __post_init__(self) -> None:
        whole_number("stores", self.stores, 1, MOST_STORES)
        whole_number("epochs", self.epochs, 1, 1 << 20)
        for name in (
            "store_macs_per_s", "store_bytes_per_s", "tuner_macs_per_s", "tuner_bytes_per_s",
        ):  # fmt: skip
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} = {value}: must be a finite number above 0")


def fleet(stores: int, store: Server | None = None, tuner: Server | None = None) -> Fleet:
    """Return a fleet of ``stores`` stores and a Tuner. By default, the servers are those of
    NDPipe's evaluation."""
    each, one = store or server("store"), tuner or server("tuner")
    return Fleet(stores, each.macs_per_s, each.bytes_per_s, one.macs_per_s, one.bytes_per_s)


@dataclass(frozen=True)
class Rates:
    """Throughput of each stage of the fine-tuning pipeline for one cut of the network,
    samples/s."""

    cut: str
    crossing_bytes: int
    """Bytes per sample that cross the network from the stores to the Tuner."""
    stores: float
    store_network: float
    tuner_network: float
    tuner: float

    @property
    def throughput(self) -> float:
        """Throughput of the pipeline, which is that of its slowest stage, samples/s."""
        return min(self.stores, self.store_network, self.tuner_network, self.tuner)

    @property
    def limited_by(self) -> str:
        """Name of the slowest stage of the pipeline."""
        each = {
            "stores": self.stores,
            "network of the stores": self.store_network,
            "network of the Tuner": self.tuner_network,
            "Tuner": self.tuner,
        }
        return min(each, key=lambda name: each[name])


def rates(net: Network, cut: str, servers: Fleet) -> Rates:
    """Return the throughput of each pipeline stage for a network that is cut after ``cut``.

    Stores: n F_store / c_k. Networks: n B_store / s_k and B_tuner / s_k. Tuner: F_tuner / (c_L -
    c_k + 2 e c_head). Here n is the number of stores and e the number of epochs. F is a computing
    rate in MACs (multiply-accumulates) per second, and B a network rate in bytes/s. c_k, c_L and
    c_head are the numbers of MACs per sample before the cut, of all layers, and of the head. s_k is
    the number of bytes per sample that cross the cut. Raises InputError if ``cut`` is neither INPUT
    nor a frozen stage of the network.
    """
    before, size = net.macs_before(cut), FP16 * net.crossing(cut)
    rest = net.macs - before + servers.epochs * HEAD_PASSES * net.head.macs
    return Rates(
        cut,
        size,
        servers.stores * servers.store_macs_per_s / before if before else math.inf,
        servers.stores * servers.store_bytes_per_s / size,
        servers.tuner_bytes_per_s / size,
        servers.tuner_macs_per_s / rest,
    )


def best_cut(net: Network, servers: Fleet) -> Rates:
    """Return the rates of the cut with the highest throughput. Among cuts with equal throughput,
    select the cut with the least traffic."""
    each = [rates(net, cut, servers) for cut in net.cuts]
    return min(each, key=lambda found: (-found.throughput, found.crossing_bytes))


def enough_stores(net: Network, servers: Fleet) -> int:
    """Return the smallest number of stores with which the Tuner or its network limits the
    throughput at the best cut, so that more stores do not raise it. ``servers.stores`` is not
    used."""
    each = [rates(net, cut, replace(servers, stores=1)) for cut in net.cuts]
    goal = max(min(found.tuner, found.tuner_network) for found in each)
    counts = []
    for found in each:
        if min(found.tuner, found.tuner_network) < goal:
            continue
        count = max(1, math.floor(goal / min(found.stores, found.store_network)))
        while rates(net, found.cut, replace(servers, stores=count)).throughput < goal:
            count += 1
        counts.append(count)
    return min(counts)


def central_rate(net: Network, sample_bytes: int, stores: int, epochs: int = 1) -> float:
    """Return the throughput (samples/s) of NDPipe's typical system: plain stores send
    ``sample_bytes`` per photo to the host, which runs all layers. The rate is limited by the
    stores' networks, the host's network and the host's accelerators."""
    host, plain = server("host"), server("plain-store")
    network_rate = min(host.bytes_per_s, stores * plain.bytes_per_s) / sample_bytes
    return min(network_rate, host.macs_per_s / (net.macs + epochs * HEAD_PASSES * net.head.macs))


def traffic_ratio(net: Network, cut: str) -> float:
    """Return the bytes per sample that cross cut ``cut``, divided by the bytes of the FP16
    input."""
    return net.crossing(cut) / net.inputs
