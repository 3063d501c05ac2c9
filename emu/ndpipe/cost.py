"""Throughput, traffic, energy and cost of three systems as functions of the number of stores.

Owns the three systems: typical (plain stores send every photo over the network to a host), ndpipe
(stores and a Tuner), and ideal (a host that has all photos on its own drives). Does not own prices
and power (servers.toml) or the cut (partition.py).
Source: NDPipe (ASPLOS 2024) compares these systems; the formulas are this project's. The time on
CPU cores and drives is left out for all three: loading and preprocessing are assumed not to limit
the throughput.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ondie.emu.ndpipe.layers import Network
from ondie.emu.ndpipe.partition import FP16, HEAD_PASSES, MOST_STORES, best_cut, fleet, rates
from ondie.emu.ndpipe.servers import Server, inference_constant, jpeg_bytes, server
from ondie.emu.units import InputError, known_names, whole_number

TYPICAL, NDPIPE, IDEAL = SYSTEMS = ("typical", "ndpipe", "ideal")
TRAINING, INFERENCE = TASKS = ("training", "inference")
"""Tasks of a system: training of the head, and inference on stored photos (only labels are
sent)."""
INPUTS, JPEG = SENT = ("inputs", "jpeg")
"""Data that the stores of the typical system send: preprocessed FP16 inputs, or the stored JPEG
files."""
BEST_CUT = "best"
HOUR_S = 3600


@dataclass(frozen=True)
class Point:
    """Throughput, traffic, energy and price of one system with ``stores`` storage servers (stores).

    ``traffic_bytes``: bytes per photo that cross the network. ``joules``: energy per photo (J).
    ``dollars_per_hour``: price of all servers. ``limited_by``: name of the slowest resource.
    ``cut``: last stage of the network that the stores of ndpipe run, or INPUT; empty for the other
    systems, and for inference, in which the stores run all layers.
    """

    system: str
    stores: int
    photos_per_s: float
    traffic_bytes: int
    joules: float
    dollars_per_hour: float
    limited_by: str
    cut: str = ""

    @property
    def dollars(self) -> float:
        """Price of the servers per processed photo, US dollars."""
        return self.dollars_per_hour / HOUR_S / self.photos_per_s


def sent_bytes(net: Network, sent: str) -> int:
    """Return the number of bytes per photo that a store sends to the host in the system TYPICAL,
    where the host runs the whole network. Raises InputError if ``sent`` is not in SENT."""
    if sent not in SENT:
        raise InputError(f"sent {sent!r}: unknown; {known_names(sent, SENT)}")
    return FP16 * net.inputs if sent == INPUTS else jpeg_bytes()


def point(
    system: str, net: Network, stores: int, task: str = TRAINING, sent: str = INPUTS,
    cut: str | None = None,
) -> Point:  # fmt: skip
    """Return throughput, traffic, energy and price of one system with ``stores`` stores.

    ``task``: a member of TASKS. ``sent``: a member of SENT. ``cut``: layer after which ndpipe cuts
    the network for training; None cuts before the head, and BEST_CUT selects the cut with the
    highest throughput. Raises InputError if a name or the cut is unknown, or if the number of
    stores is not from 1 to MOST_STORES.
    """
    for what, name, known in (("system", system, SYSTEMS), ("task", task, TASKS)):
        if name not in known:
            raise InputError(f"{what} {name!r}: unknown; {known_names(name, known)}")
    whole_number("stores", stores, 1, MOST_STORES)
    if system == NDPIPE:
        return _trained(net, stores, cut) if task == TRAINING else _inferred(net, stores)
    size = sent_bytes(net, sent)
    host, plain = server("host"), server("plain-store")
    macs = net.macs + (HEAD_PASSES * net.head.macs if task == TRAINING else 0)
    parts = {"accelerators of the host": host.macs_per_s / macs}
    if system == TYPICAL:
        parts["network of the host"] = host.bytes_per_s / size
        parts["networks of the stores"] = stores * plain.bytes_per_s / size
    name = min(parts, key=lambda part: parts[part])
    used = [(host, 1, parts[name] * macs / host.macs_per_s)]
    if system == TYPICAL:
        used.append((plain, stores, 0.0))
    else:
        size = 0
    return _priced(system, stores, parts[name], size, used, name)


def _trained(net: Network, stores: int, cut: str | None) -> Point:
    """Return the results for NDPipe's training of the head."""
    servers = fleet(stores)
    if cut == BEST_CUT:
        found = best_cut(net, servers)
    else:
        found = rates(net, net.cuts[-1] if cut is None else cut, servers)
    rate = found.throughput
    used = [
        (server("store"), stores, rate / found.stores),
        (server("tuner"), 1, rate / found.tuner),
    ]
    size, name = found.crossing_bytes, found.limited_by
    return replace(_priced(NDPIPE, stores, rate, size, used, name), cut=found.cut)


def _inferred(net: Network, stores: int) -> Point:
    """Return the results for NDPipe's inference: the stores run all layers and send labels to the
    Tuner, which stores the labels."""
    store, tuner, size = server("store"), server("tuner"), round(inference_constant("label"))
    parts = {
        "stores": stores * store.macs_per_s / net.macs,
        "networks of the stores": stores * store.bytes_per_s / size,
        "network of the Tuner": tuner.bytes_per_s / size,
    }
    name = min(parts, key=lambda part: parts[part])
    used = [(store, stores, parts[name] / parts["stores"]), (tuner, 1, 0.0)]
    return _priced(NDPIPE, stores, parts[name], size, used, name)


def _priced(
    system: str, stores: int, rate: float, size: int, used: Sequence[tuple[Server, int, float]],
    limited_by: str,
) -> Point:  # fmt: skip
    """Return a Point with the price and the energy of the system's servers. ``used``: for each kind
    of server, the number of servers and the fraction of time in which their accelerators
    compute."""
    watts = sum(count * each.watts(min(busy, 1.0)) for each, count, busy in used)
    price = sum(count * each.price for each, count, _ in used)
    return Point(system, stores, rate, size, watts / rate, price, limited_by)


def equal_speed(net: Network, stores: int, sent: str = INPUTS) -> Point:
    """Return the Point of NDPipe with the smallest number of stores that trains at least as fast as
    the typical system with ``stores`` stores. Raises InputError if no number of stores is enough,
    or if an argument is invalid (see :func:`point`)."""
    goal = point(TYPICAL, net, stores, sent=sent).photos_per_s
    count = 1
    while (found := point(NDPIPE, net, count)).photos_per_s < goal:
        if found.limited_by != "stores":
            raise InputError(
                f"{net.title}: {goal:,.0f} photos/s cannot be reached with any number of stores; "
                f"the {found.limited_by} limits training to {found.photos_per_s:,.0f} photos/s"
            )
        count += 1
    return found
