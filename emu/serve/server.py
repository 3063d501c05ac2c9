"""Server of a drive: opens the addresses, the drive and its service, and closes them in the reverse
order.

Owns the order of the start and the end of all parts. Does not own the protocols or the drive.
Source: this project.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, fields

from ondie.emu.config.config import Config
from ondie.emu.controller.fabrics import MOST_NAME_BYTES, is_name
from ondie.emu.drive import Drive
from ondie.emu.engine.run.system import NO_RESERVOIR
from ondie.emu.nvme.tables import PAIR_RING
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.control import ControlServer, socket_address
from ondie.emu.serve.controller_state import follow_marks
from ondie.emu.serve.health_watch import HealthWatch
from ondie.emu.serve.memory_drive import MemoryDrive
from ondie.emu.serve.nbd import NbdServer
from ondie.emu.serve.nbd_session import warm_up
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.nvme_tcp import NvmeTcpServer
from ondie.emu.serve.served import Served, ServedDrive
from ondie.emu.serve.served_states import StatesOptions, check_without_states
from ondie.emu.serve.tunnel import DriveTunnel
from ondie.emu.serve.vfio_user import VfioUserServer
from ondie.emu.service import Service
from ondie.emu.states.resident import ResidentStates
from ondie.emu.units import InputError


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of a server: the drive, its addresses and its clock. Fields without a description
    have the meaning of the arguments of drive.Drive and service.Service with the same names."""

    nbd: str | None = None
    """Address for NBD, or None to disable NBD."""
    vfio_user: str | None = None
    """Path of the Unix socket for vfio-user, or None to disable vfio-user."""
    doorbell_buffers: bool = True
    """True if a virtual machine may use shadow doorbells in its memory."""
    nvme_tcp: str | None = None
    """Address for NVMe/TCP, or None to disable NVMe/TCP."""
    nvme_hosts: tuple[str, ...] = ()
    """NQNs of the hosts that may connect to the drive with NVMe/TCP; empty to admit any host. The
    discovery service admits any host."""
    ctl: str | None = None
    """Path of the control socket, or None to disable the control socket."""
    store: str | None = None
    durability: str | None = None
    block_bytes: int | None = None
    seed: int = 0
    clock: str = "virtual"
    scale: float = 1.0
    read_only: bool = False
    states: StatesOptions | None = None
    """Optimizer states on the drive, or None if the drive holds no states."""
    tunnel: DriveTunnel | None = None
    """Drive end of a tunnel, or None if the drive has no tunnel. The server does not close the
    tunnel."""


OF_MEMORY = frozenset(
    {"nbd", "vfio_user", "doorbell_buffers", "nvme_tcp", "nvme_hosts", "block_bytes", "tunnel"}
)
"""Names of the fields of ServeOptions that MemoryServer accepts."""


def nothing() -> None:
    """Do nothing: default of the argument ``ready`` of Server and MemoryServer."""


class Protocols:
    """Servers of the protocols that ``options`` select for one drive. The constructor opens their
    sockets, and :meth:`start` starts the servers.

    ``undo``: stack to which the constructor adds functions that close the sockets if the drive
    cannot be served. Raises InputError if no address is given, if an address cannot be used, or if
    options contradict each other.
    """

    def __init__(self, options: ServeOptions, undo: contextlib.ExitStack) -> None:
        if options.nbd is options.vfio_user is options.nvme_tcp is None:
            raise InputError("serve: give at least one of --nbd, --vfio-user and --nvme-tcp")
        if options.vfio_user is None and not options.doorbell_buffers:
            raise InputError("--no-doorbell-buffers requires --vfio-user SOCK")
        if options.vfio_user is options.nvme_tcp is None and options.tunnel is not None:
            raise InputError(
                "--tunnel requires --vfio-user or --nvme-tcp, because only NVMe hosts can use it"
            )
        self._tunnel = options.tunnel
        self._hosts, self._shadow_doorbells = options.nvme_hosts, options.doorbell_buffers
        self._listeners: dict[str, Listener] = {}
        tcp = listener_of_nvme_tcp(options)
        if tcp is not None:
            undo.callback(tcp.close)
            self._listeners["nvme-tcp"] = tcp
        if options.nbd is not None:
            self._listen("nbd", Address.parse(options.nbd, "--nbd"), undo)
        if options.vfio_user is not None:
            self._listen("vfio-user", Address(path=options.vfio_user), undo)
        self.nvme: NvmeDrive | None = None
        self.nbd: NbdServer | None = None
        self.vfio_user: VfioUserServer | None = None
        self.nvme_tcp: NvmeTcpServer | None = None
        self.watch: HealthWatch | None = None

    def _listen(self, name: str, address: Address, undo: contextlib.ExitStack) -> None:
        self._listeners[name] = Listener(address, f"--{name}")
        undo.callback(self._listeners[name].close)

    def prepare(self, served: Served, states: ResidentStates | None = None) -> None:
        """Create the state needed by the servers, so that errors occur before the servers start.
        ``states``: optimizer states on the drive, or None. Raises InputError if a protocol cannot
        serve the drive."""
        over_tcp = "nvme-tcp" in self._listeners
        if over_tcp or "vfio-user" in self._listeners:
            self.nvme = NvmeDrive(
                served,
                several_controllers=over_tcp,
                states=states,
                shadow_doorbells=self._shadow_doorbells,
                tunnel=self._tunnel,
            )
        else:
            follow_marks(served)
        if "nbd" in self._listeners:
            warm_up(served)

    def start(self, served: Served) -> None:
        """Start the servers. ``served``: drive with which :meth:`prepare` was called."""
        found = self._listeners
        count = len(found.keys() & {"nbd", "nvme-tcp"})
        if "nbd" in found:
            self.nbd = NbdServer(served, found["nbd"], count)
        if self.nvme is not None and "vfio-user" in found:
            self.vfio_user = VfioUserServer(self.nvme, found["vfio-user"])
        if self.nvme is not None and "nvme-tcp" in found:
            hosts = self._hosts or None
            self.nvme_tcp = NvmeTcpServer(self.nvme, found["nvme-tcp"], hosts, count)
        self.watch = None if self.nvme is None else HealthWatch(self.nvme)

    @property
    def addresses(self) -> dict[str, Address]:
        """Addresses at which the drive is served, by protocol."""
        order = ("nbd", "vfio-user", "nvme-tcp")
        return {name: self._listeners[name].address for name in order if name in self._listeners}

    def close(self) -> None:
        """Disconnect all clients, and close the servers. If a server cannot be closed, the other
        servers are closed nevertheless."""
        with contextlib.ExitStack() as parts:  # closes the last one first
            for each in (self.nvme, self.watch, self.nvme_tcp, self.vfio_user, self.nbd):
                if each is not None:
                    parts.callback(each.close)


class Server(Protocols):
    """Server that serves a drive with configuration ``cfg`` until :meth:`close`.

    ``ready``: function that is called just before the servers start. If it raises an exception, or
    if an earlier step fails, everything that was opened is closed. Raises InputError if an option
    is invalid, or if an address, the configuration or the store cannot be used.
    """

    def __init__(
        self, cfg: Config, options: ServeOptions, ready: Callable[[], None] = nothing
    ) -> None:
        weights = None
        if options.states is not None:
            weights = options.states.check()
            if options.vfio_user is options.nvme_tcp is None:
                raise InputError(
                    "--states requires --vfio-user or --nvme-tcp, because only NVMe hosts can use "
                    "the states"
                )
        with contextlib.ExitStack() as undo:
            super().__init__(options, undo)
            control = None
            if options.ctl is not None:
                control = Listener(socket_address(options.ctl, "--ctl"), "--ctl", private=True)
                undo.callback(control.close)
            states = None
            if options.states is None:
                check_without_states(options.store)
            else:
                states = options.states.states(cfg, options.seed)
                cfg = states.cfg
            self.drive = Drive(
                cfg,
                payload=True,
                queue_depth=min(cfg.frontend.queue_depth, PAIR_RING),
                block_bytes=options.block_bytes,
                seed=options.seed,
                store=options.store,
                durability=options.durability,
                read_only=options.read_only,
                reservoir=NO_RESERVOIR if states is None else states.reservoir,
            )
            undo.callback(self.drive.abandon)
            if options.states is not None and states is not None:
                options.states.place(states, self.drive, weights)
            self.service = Service(self.drive, options.clock, options.scale)
            undo.callback(self.service.close)
            self.served = ServedDrive(self.drive, self.service)
            self.prepare(self.served, states)
            ready()
            undo.pop_all()
        self.start(self.served)
        self.control = None if control is None else ControlServer(self.served, control)

    def close(self) -> None:
        """Disconnect all clients, flush the drive, and close its store. If a part cannot be closed,
        the other parts are closed nevertheless. Raises CommandError if data is lost, and InputError
        if a file cannot be written."""
        with contextlib.ExitStack() as parts:  # closes the last one first
            parts.callback(self.drive.close)
            parts.callback(self.service.close)
            parts.callback(super().close)
            if self.control is not None:
                parts.callback(self.control.close)


def listener_of_nvme_tcp(options: ServeOptions) -> Listener | None:
    """Return the listening socket for NVMe/TCP, or None if the options do not request NVMe/TCP.
    Raises InputError if an option is invalid or the address cannot be used."""
    if options.nvme_tcp is None:
        if options.nvme_hosts:
            raise InputError("--nvme-host requires --nvme-tcp ADDR")
        return None
    for host in options.nvme_hosts:
        if not is_name(host):
            raise InputError(
                f"--nvme-host {host}: must be an NVMe Qualified Name ('nqn.' followed by at "
                f"most {MOST_NAME_BYTES - 4} bytes)"
            )
    address = Address.parse(options.nvme_tcp, "--nvme-tcp")
    if address.path:
        raise InputError(f"--nvme-tcp {options.nvme_tcp}: must be HOST:PORT")
    return Listener(address, "--nvme-tcp")


class MemoryServer(Protocols):
    """Server of a drive without a flash model (MemoryDrive), used as a baseline for measurements.
    The server runs until :meth:`close`. ``cfg``: configuration that determines the capacity.
    ``ready``: see Server.

    Raises InputError if an address cannot be used, if an option requires flash, or if the memory
    cannot be mapped.
    """

    def __init__(
        self, cfg: Config, options: ServeOptions, ready: Callable[[], None] = nothing
    ) -> None:
        for each in fields(ServeOptions):
            if each.name not in OF_MEMORY and getattr(options, each.name) != each.default:
                name = each.name.replace("_", "-")
                raise InputError(f"--{name} cannot be combined with --null, which has no flash")
        with contextlib.ExitStack() as undo:
            super().__init__(options, undo)
            self.served = MemoryDrive(cfg, options.block_bytes)
            self.prepare(self.served)
            ready()
            undo.pop_all()
        self.start(self.served)
