"""Request for a cluster of drives on one machine: sizes, addresses, pace (data rate of the
tunnels), and kind of network.

Owns the checks of `ondie tunnel up`. Does not own processes (cluster.py).
Source: this project.
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
"""Smallest MTU that IPv4 allows, bytes."""
MOST_DRIVES = 64
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
LONGEST_SHOWN = 60
"""Maximum number of characters of an invalid cluster name that an error message shows."""
DEFAULT_PAYLOAD, DEFAULT_IN_FLIGHT, MOST_IN_FLIGHT = 64 << 10, 8, 16
"""Default size of a block of packets, in bytes; default and maximum number of commands in flight in
each direction. The corresponding values of the drive's preset only determine the pace."""
GSO_PAYLOAD = 256 << 10
"""Size of a block of packets if TCP segments are transferred unsplit, bytes. A block has room for
several segments of 64 KiB."""
DEVICES = ("auto", "tun", "veth", "relay")
MOST_PORT = (1 << 16) - 1


@dataclass(frozen=True, kw_only=True)
class Request:
    """Validated parameters of a cluster of `ondie tunnel`; :meth:`of` creates the object."""

    name: str
    cfg: Config
    drives: int
    network: ipaddress.IPv4Network
    form: Format
    cost: TunnelCost | None
    """Model of the time that the commands of the tunnel take, or None if they take no simulated
    time."""
    pcap: Path | None
    """Folder of the pcap files with the captured packets, or None if no packets are captured."""
    faults: Faults | None = None
    """Faults that are injected between the relay and the drives' controllers, or None."""
    queues: int = 1
    """Number of queues of each TUN device."""
    asked: bool = False
    """True if the user has requested that TCP segments are transferred unsplit (``form.offloads``);
    False if this is the default."""
    ports: tuple[int, ...] = ()
    """TCP ports at which programs of the cluster listen. Only TCP relays use these values."""

    @classmethod
    def of(
        cls, cfg: Config, *, name: str = "cluster", drives: int = 2, subnet: str = "10.77.0.0/24",
        mtu: int | None = None, payload: int | None = None, in_flight: int | None = None,
        pace: str = "model", pcap: str | None = None, gso: bool | None = None, queues: int = 1,
        inject: str | None = None, ports: tuple[int, ...] = (),
    ) -> Request:  # fmt: skip
        """Return the validated request. Raises InputError, with the name of the option, for an
        invalid value.

        ``subnet``: network whose first address belongs to the host and whose next addresses belong
        to the drives. ``mtu``, ``payload``: bytes. ``pace``: "model", "none", or a rate. ``gso``:
        True to transfer TCP segments unsplit; with None, they are unsplit if ``pace`` is "none" and
        the MTU leaves room. ``queues``: number of queues of each network device. ``inject``: faults
        (inject.Faults.of). ``ports``: ports on which programs listen, for TCP relays.
        """
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
        """Return the request adapted to the kind of network ``way``: without offloads and with one
        queue if the network devices are not TUN devices, and with a loopback network for TCP
        relays. Raises InputError if a requested feature is not available."""
        if way.device == "tun":
            return self
        if self.asked or self.queues > 1:
            option = "--gso" if self.asked else f"--queues {self.queues}"
            raise InputError(f"{option}: needs TUN devices; this machine supports only {way}")
        network = self.network
        if way.device == "relay":
            if not self.ports:
                raise InputError(
                    f"--port: missing, but this machine supports only {way}; give each port at "
                    "which programs listen, such as --port 8000"
                )
            network = loopback_network(network, self.drives)
        form = dataclasses.replace(self.form, offloads=False)
        return dataclasses.replace(self, form=form, network=network)

    def others(self, way: Way, number: int) -> ipaddress.IPv4Network:
        """Return the network of the addresses at which drive ``number``, or the host if ``number``
        is -1, reaches the other ends."""
        return seen_from(self.network, number) if way.device == "relay" else self.network

    def address(self, number: int) -> ipaddress.IPv4Address:
        """Return the IPv4 address of drive ``number``, or of the host if ``number`` is -1."""
        return self.network[number + 2]


def check_name(name: str) -> None:
    """Raise InputError unless ``name`` is a valid name of a cluster."""
    if NAME.fullmatch(name) is None:
        shown = name if len(name) <= LONGEST_SHOWN else f"{name[:LONGEST_SHOWN]}..."
        shown = shown if shown.isprintable() else ascii(shown)
        raise InputError(f"--name {shown}: must be 1 to 32 letters, digits, - or _")


def network_of(subnet: str, drives: int) -> ipaddress.IPv4Network:
    """Return the IPv4 network ``subnet`` of a cluster. Raises InputError if ``subnet`` is invalid
    or has no room for the host and ``drives`` drives."""
    try:
        network = ipaddress.IPv4Network(subnet)
    except ValueError as error:
        raise InputError(f"--subnet {subnet}: {error}; use for example 10.77.0.0/24") from error
    if network.num_addresses < drives + 3:
        raise InputError(
            f"--subnet {subnet}: has {network.num_addresses} addresses; must have {drives + 3} for "
            f"{drives} drives, the host, and two reserved addresses"
        )
    return network


def cost_of(
    model: TunnelCost, pace: str, mtu: int, option: str = "--pace"
) -> TunnelCost | None:  # fmt: skip
    """Return the cost model ``model`` with the link rate at which TCP reaches the data rate
    ``pace`` in each direction, and without command time. Return None if ``pace`` is "none".
    ``mtu``: maximum size of a packet in the stream, bytes (Format.longest). ``option``: name of the
    option in error messages. Raises InputError if ``pace`` is invalid.

    With the pace "model", the rate is that of a long message in ``model``, independent of the block
    size in use.
    """
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
    """Kind of network of a cluster on this machine: network devices in network namespaces, or TCP
    relays. ``why``: reason why a better kind of network is not used, or "" if this is the best
    kind."""

    own_user: bool
    """True if the cluster runs in a user namespace."""
    device: str
    """Kind of the network devices: "tun" or "veth"; or "relay" for TCP relays instead of network
    devices."""
    why: str = ""

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        if self.device == "relay":
            return f"TCP relays on the loopback device{why}"
        place = "user namespace" if self.own_user else "root"
        kind = "TUN" if self.device == "tun" else "veth and packet sockets"
        return f"{place}, {kind}{why}"


def way_of(device: str) -> Way:
    """Return the kind of network of a cluster on this machine. ``device``: an element of DEVICES.
    Raises InputError if ``device`` is "tun" and there are no TUN devices."""
    own_user = os.geteuid() != 0
    if device == "relay":
        return Way(False, "relay")
    if device == "auto" and (missing := why_no_networks(own_user)):
        return Way(False, "relay", ", ".join([*["not root"] * own_user, missing]))
    return way_with_networks(device)


def way_with_networks(device: str) -> Way:
    """Return the kind of network of a cluster with network devices. ``device``: "auto", "tun" or
    "veth". Raises InputError if ``device`` is "tun" and there are no TUN devices."""
    own_user = os.geteuid() != 0
    reasons = ["not root"] * own_user
    if device == "veth":
        return Way(own_user, "veth", ", ".join(reasons))
    try:
        os.close(os.open(TUN_FILE, os.O_RDWR | os.O_CLOEXEC))
        return Way(own_user, "tun", ", ".join(reasons))
    except OSError as error:
        missing = f"{TUN_FILE}: cannot be opened: {error.strerror}"
    if device == "tun":
        raise InputError(
            f"--network-device tun: {missing}; use veth, which does not need this file"
        )
    return Way(own_user, "veth", ", ".join([*reasons, missing]))


@functools.cache
def folder() -> Path:
    """Return the folder with the state of this user's running clusters; create it if necessary. A
    process that enters a user namespace keeps its previous folder. Raises InputError if the folder
    cannot be created, belongs to another user, or is a symbolic link."""
    user = os.geteuid()
    found = Path("/run/ondie-tunnel") if user == 0 else Path(f"/tmp/ondie-tunnel-{user}")
    try:
        found.mkdir(mode=0o700, exist_ok=True)
        owner = found.lstat().st_uid
    except OSError as error:
        raise InputError(f"{found}: cannot be created: {error.strerror}") from error
    if owner != user or found.is_symlink():
        raise InputError(f"{found}: belongs to another user or is a symbolic link; remove it")
    return found


def file_of(name: str, kind: str) -> Path:
    """Return the path of the file of cluster ``name`` with the extension ``kind``: "json" (state),
    "sock" or "log". Raises InputError if the name is invalid."""
    check_name(name)
    return folder() / f"{name}.{kind}"


def device_name(number: int, pid: int) -> str:
    """Return the name of the host's network device if ``number`` is -1, or the name of the device
    of drive ``number`` before it is moved into its namespace."""
    return f"ondie{pid}" if number < 0 else f"ondie{pid}d{number}"


def peer_name(number: int, pid: int) -> str:
    """Return the name of the end of a veth pair from which the relay or the drive's process reads
    packets. :func:`device_name` returns the name of the other end, which programs use. The name has
    at most 15 bytes for every process ID and every drive number."""
    return f"ondie{pid}p" if number < 0 else f"ondie{pid}p{number}"


def namespace_name(number: int, pid: int) -> str:
    """Return the name of the network namespace of drive ``number``. ``pid``: ID of the process that
    creates it."""
    return f"{namespaces.PREFIX}{pid}-{number}"
