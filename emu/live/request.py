"""Request for a cluster of drives on one machine: sizes, addresses, pace, and kind of network.

Owns the checks of `ondie tunnel up`. Does not own processes (cluster.py). Source: none.
"""

from __future__ import annotations

import dataclasses
import functools
import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ondie.emu.config.config import Config
from ondie.emu.live import namespaces
from ondie.emu.live.inject import HOLD_MS, Faults
from ondie.emu.live.loopback import loopback_network, seen_from, why_no_networks
from ondie.emu.live.network_device import MOST_QUEUES, TUN_FILE
from ondie.emu.nvme.tunnel.cost import DOWN, UP, TunnelCost
from ondie.emu.nvme.tunnel.framing import HEADER, LONGEST, OFFLOAD_HEADER, PS_PER_MS, Format
from ondie.emu.nvme.tunnel.timing import SEGMENT_HEADER
from ondie.emu.serve.tunnel import MOST_HOLD_PS
from ondie.emu.units import KINDS, InputError, parse

LEAST_MTU = 68
"""Smallest MTU of IPv4, bytes."""
MOST_DRIVES = 64
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
LONGEST_SHOWN = 60
"""Largest number of characters of a wrong name that an error shows."""
DEFAULT_PAYLOAD, DEFAULT_IN_FLIGHT, MOST_IN_FLIGHT = 64 << 10, 8, 16
"""Bytes of a block and numbers of commands in flight at the host's end, instead of those of the
preset, which determine the pace alone."""
GSO_PAYLOAD = 256 << 10
"""Bytes of a block for uncut segments: room for several segments of 64 KiB."""
DEVICES = ("auto", "tun", "veth", "relay")
MOST_PORT = (1 << 16) - 1


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked request for a cluster; :meth:`of` makes it."""

    name: str
    cfg: Config
    drives: int
    network: ipaddress.IPv4Network
    form: Format
    cost: TunnelCost | None
    """Time that commands take; None: none."""
    pcap: Path | None
    """Folder of the captured packets; None: none are captured."""
    faults: Faults | None = None
    """Faults between the relay and the controllers; None: none."""
    queues: int = 1
    """Number of queues of each network device."""
    asked: bool = False
    """True if the user has requested ``form.offloads``; False if it is the default."""
    ports: tuple[int, ...] = ()
    """TCP ports of the connections that the relays carry."""

    @classmethod
    def of(
        cls, cfg: Config, *, name: str = "cluster", drives: int = 2, subnet: str = "10.77.0.0/24",
        mtu: int | None = None, payload: int | None = None, in_flight: int | None = None,
        pace: str = "model", pcap: str | None = None, gso: bool | None = None, queues: int = 1,
        inject: str | None = None, ports: tuple[int, ...] = (),
    ) -> Request:  # fmt: skip
        """Return the request. ``subnet``: network whose first address the host gets, and the
        next ones the drives. ``mtu``, ``payload``: bytes. ``pace``: "model", "none", or a rate.
        ``gso``: packets cross as segments of TCP that are not cut; None: if nothing paces them and
        the MTU leaves room. ``queues``: number of queues of each network device. ``inject``: faults
        (inject.Faults.of). ``ports``: those that programs use, for TCP relays. Raises InputError
        that names the option."""
        check_name(name)
        if not 1 <= drives <= MOST_DRIVES:
            raise InputError(f"--drives {drives}: must be from 1 to {MOST_DRIVES}")
        model = TunnelCost.of(cfg)
        mtu = model.form.mtu if mtu is None else mtu
        if not LEAST_MTU <= mtu <= LONGEST:
            raise InputError(f"--mtu {mtu}: must be from {LEAST_MTU} to {LONGEST} bytes")
        offloads = pace == "none" and mtu <= LONGEST - OFFLOAD_HEADER if gso is None else gso
        if offloads and mtu > LONGEST - OFFLOAD_HEADER:
            raise InputError(
                f"--mtu {mtu}: must be at most {LONGEST - OFFLOAD_HEADER} bytes with --gso"
            )
        if not 1 <= queues <= MOST_QUEUES:
            raise InputError(f"--queues {queues}: must be from 1 to {MOST_QUEUES}")
        in_flight = DEFAULT_IN_FLIGHT if in_flight is None else in_flight
        if not 1 <= in_flight <= MOST_IN_FLIGHT:
            raise InputError(f"--in-flight {in_flight}: must be from 1 to {MOST_IN_FLIGHT}")
        faults = None if inject is None else Faults.of(inject)
        try:
            form = Format(
                (GSO_PAYLOAD if offloads else DEFAULT_PAYLOAD) if payload is None else payload,
                in_flight, mtu, model.form.concatenate, "hold",
                MOST_HOLD_PS if faults is None else HOLD_MS * PS_PER_MS, offloads,
            )  # fmt: skip
        except InputError as error:
            raise InputError(f"--payload {payload}: {error}") from error
        most = cfg.frontend.max_transfer_bytes
        if form.payload > most:
            raise InputError(
                f"--payload {payload}: must be at most {most}, the largest transfer of the "
                "controller (frontend.max_transfer)"
            )
        for port in ports:
            if not 1 <= port <= MOST_PORT:
                raise InputError(f"--port {port}: must be from 1 to {MOST_PORT}")
        network = network_of(subnet, drives)
        folder = None if pcap is None else Path(pcap).absolute()
        if folder is not None and not folder.is_dir():
            raise InputError(f"--pcap {pcap}: must be an existing folder")
        return cls(
            name=name, cfg=cfg, drives=drives, network=network, form=form,
            cost=cost_of(model, pace, form.longest), pcap=folder, faults=faults, queues=queues,
            asked=gso is True, ports=tuple(sorted(set(ports))),
        )  # fmt: skip

    def on(self, way: Way) -> Request:
        """Return the request as the kind of network ``way`` allows it: without offloads and with
        one queue if the network devices have no others, and in a loopback network for TCP relays.
        Raises InputError for a requested feature that is not possible."""
        if way.device == "tun":
            return self
        if self.asked or self.queues > 1:
            option = "--gso" if self.asked else f"--queues {self.queues}"
            raise InputError(f"{option}: needs TUN devices; this machine has only {way}")
        network = self.network
        if way.device == "relay":
            if not self.ports:
                raise InputError(
                    f"--port: missing, but this machine has only {way}; give each port at which "
                    "programs listen, such as --port 8000"
                )
            network = loopback_network(network, self.drives)
        form = dataclasses.replace(self.form, offloads=False)
        return dataclasses.replace(self, form=form, network=network)

    def others(self, way: Way, number: int) -> ipaddress.IPv4Network:
        """Return the network in which drive ``number``, or the host for -1, reaches other ends."""
        return seen_from(self.network, number) if way.device == "relay" else self.network

    def address(self, number: int) -> ipaddress.IPv4Address:
        """Return the address of drive ``number``, or of the host for -1."""
        return self.network[number + 2]


def check_name(name: str) -> None:
    """Raise InputError unless ``name`` can be that of a cluster."""
    if NAME.fullmatch(name) is None:
        shown = name if len(name) <= LONGEST_SHOWN else f"{name[:LONGEST_SHOWN]}..."
        shown = shown if shown.isprintable() else ascii(shown)
        raise InputError(f"--name {shown}: must be 1 to 32 letters, digits, - and _")


def network_of(subnet: str, drives: int) -> ipaddress.IPv4Network:
    """Return the network ``subnet``. Raises InputError unless it has room for host and drives."""
    try:
        network = ipaddress.IPv4Network(subnet)
    except ValueError as error:
        raise InputError(f"--subnet {subnet}: {error}; write for example 10.77.0.0/24") from error
    if network.num_addresses < drives + 3:
        raise InputError(
            f"--subnet {subnet}: has {network.num_addresses} addresses; must have {drives + 3} for "
            f"{drives} drives, the host, and two that are reserved"
        )
    return network


def cost_of(
    model: TunnelCost, pace: str, mtu: int, option: str = "--pace"
) -> TunnelCost | None:  # fmt: skip
    """Return a cost model of commands that gives TCP the rate ``pace`` of ``option`` in each
    direction. The model's rate is that of a long message, independent of the size of blocks
    here."""
    if pace == "none":
        return None
    if pace == "model":
        rates = {way: model.rate(1, (way,))[1] for way in (UP, DOWN)}
    else:
        rate = parse(pace, KINDS["bytes_per_s"], option)
        if rate < 1:
            raise InputError(f"{option} {pace}: must be model, none, or a rate above 0")
        rates = {UP: float(rate), DOWN: float(rate)}
    stream = (mtu + HEADER) / (mtu - SEGMENT_HEADER)
    return dataclasses.replace(
        model,
        up=model.up._replace(command=0, link=round(rates[UP] * stream)),
        down=model.down._replace(command=0, link=round(rates[DOWN] * stream)),
    )


@dataclass(frozen=True)
class Way:
    """Kind of network of a cluster on this machine. ``why``: reason why a better kind is not used;
    "": this is the best one."""

    own_user: bool
    """True if the cluster runs in a user namespace."""
    device: str
    """Kind of the network devices: "tun" or "veth"; "relay": none, but TCP relays."""
    why: str = ""

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        if self.device == "relay":
            return f"TCP relays on the loopback device{why}"
        place = "user namespace" if self.own_user else "root"
        kind = "TUN" if self.device == "tun" else "veth and packet sockets"
        return f"{place}, {kind}{why}"


def way_of(device: str) -> Way:
    """Return how a cluster runs on this machine. ``device``: of DEVICES. Raises InputError for
    ``device`` "tun" where there is none."""
    own_user = os.geteuid() != 0
    if device == "relay":
        return Way(False, "relay")
    if device == "auto" and (missing := why_no_networks(own_user)):
        return Way(False, "relay", ", ".join([*["not root"] * own_user, missing]))
    return way_with_networks(device)


def way_with_networks(device: str) -> Way:
    """Return how a cluster with network devices runs. ``device``: "auto", "tun" or "veth". Raises
    InputError for ``device`` "tun" where there is none."""
    own_user = os.geteuid() != 0
    reasons = ["not root"] * own_user
    if device == "veth":
        return Way(own_user, "veth", ", ".join(reasons))
    try:
        os.close(os.open(TUN_FILE, os.O_RDWR | os.O_CLOEXEC))
        return Way(own_user, "tun", ", ".join(reasons))
    except OSError as error:
        missing = f"{TUN_FILE}: {error.strerror}"
    if device == "tun":
        raise InputError(f"--network-device tun: {missing}; veth needs none")
    return Way(own_user, "veth", ", ".join([*reasons, missing]))


@functools.cache
def folder() -> Path:
    """Return the folder of the state of running clusters of this user; it exists. A process that
    enters a user namespace keeps the one that it had before. Raises InputError."""
    user = os.geteuid()
    found = Path("/run/ondie-tunnel") if user == 0 else Path(f"/tmp/ondie-tunnel-{user}")
    try:
        found.mkdir(mode=0o700, exist_ok=True)
        owner = found.lstat().st_uid
    except OSError as error:
        raise InputError(f"{found}: {error.strerror}") from error
    if owner != user or found.is_symlink():
        raise InputError(f"{found}: belongs to another user; remove it")
    return found


def file_of(name: str, kind: str) -> Path:
    """Return the file of cluster ``name`` that ends with ``kind``: "json" (its state), "sock" or
    "log". Raises InputError for a name that no cluster can have."""
    check_name(name)
    return folder() / f"{name}.{kind}"


def device_name(number: int, pid: int) -> str:
    """Return the name of the device of drive ``number`` before it is in its namespace, or of the
    host for -1."""
    return f"ondie{pid}" if number < 0 else f"ondie{pid}d{number}"


def peer_name(number: int, pid: int) -> str:
    """Return the name of the near end of a veth pair whose far end is ``device_name``: at most 15
    bytes, too, for any process and drive."""
    return f"ondie{pid}p" if number < 0 else f"ondie{pid}p{number}"


def namespace_name(number: int, pid: int) -> str:
    """Return the name of the namespace of drive ``number``."""
    return f"{namespaces.PREFIX}{pid}-{number}"
