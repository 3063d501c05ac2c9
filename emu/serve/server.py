"""A served drive: opens the addresses, the drive and its service, and closes them in order.

Owns the order of start and stop. Does not own protocols or the drive. Source: none.
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
    """Drive to serve, its addresses and its clock. The fields of the drive are those of
    drive.Drive."""

    nbd: str | None = None
    """Address of NBD."""
    vfio_user: str | None = None
    """Path of the socket of vfio-user."""
    doorbell_buffers: bool = True
    """True if a virtual machine may keep its doorbells in its memory."""
    nvme_tcp: str | None = None
    """Address of NVMe/TCP."""
    nvme_hosts: tuple[str, ...] = ()
    """NQNs of the hosts that may connect to it; none: any."""
    ctl: str | None = None
    """Path of the control socket."""
    store: str | None = None
    durability: str | None = None
    block_bytes: int | None = None
    seed: int = 0
    clock: str = "virtual"
    scale: float = 1.0
    read_only: bool = False
    states: StatesOptions | None = None
    """States that the drive holds; None: none."""
    tunnel: DriveTunnel | None = None
    """The drive's end of a tunnel, which outlives the server; None if it has none."""


OF_MEMORY = frozenset(
    {"nbd", "vfio_user", "doorbell_buffers", "nvme_tcp", "nvme_hosts", "block_bytes", "tunnel"}
)
"""Options that a server without a drive accepts."""


def nothing() -> None:
    """Do nothing when a server is ready."""


class Protocols:
    """The protocols of ``options`` before one drive: their sockets first, then their servers.

    ``undo``: closes the sockets if the drive cannot be served. Raises InputError if an address
    cannot be used, or none is given.
    """

    def __init__(self, options: ServeOptions, undo: contextlib.ExitStack) -> None:
        if options.nbd is options.vfio_user is options.nvme_tcp is None:
            raise InputError("serve: give at least one of --nbd, --vfio-user and --nvme-tcp")
        if options.vfio_user is None and not options.doorbell_buffers:
            raise InputError("--no-doorbell-buffers requires --vfio-user SOCK")
        if options.vfio_user is options.nvme_tcp is None and options.tunnel is not None:
            raise InputError("--tunnel requires --vfio-user or --nvme-tcp, whose hosts use it")
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
        """Create the state that the servers need, which may fail. ``states``: optimizer states that
        the drive holds. Raises InputError for a drive that a protocol cannot serve."""
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
        """Start the servers of the drive for which ``prepare`` was called."""
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
        """The addresses at which the drive is served, by protocol."""
        order = ("nbd", "vfio-user", "nvme-tcp")
        return {name: self._listeners[name].address for name in order if name in self._listeners}

    def close(self) -> None:
        """Disconnect all clients. If a server fails, the others are closed nevertheless."""
        with contextlib.ExitStack() as parts:  # closes the last one first
            for each in (self.nvme, self.watch, self.nvme_tcp, self.vfio_user, self.nbd):
                if each is not None:
                    parts.callback(each.close)


class Server(Protocols):
    """A drive with configuration ``cfg`` that is served until :meth:`close`.

    ``ready`` is called just before that; an error of it, or an earlier one, closes everything
    again. Raises InputError if an address, the configuration or the store cannot be used.
    """

    def __init__(
        self, cfg: Config, options: ServeOptions, ready: Callable[[], None] = nothing
    ) -> None:
        weights = None
        if options.states is not None:
            weights = options.states.check()
            if options.vfio_user is options.nvme_tcp is None:
                raise InputError(
                    "--states requires --vfio-user or --nvme-tcp, whose hosts use them"
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
        """Disconnect all clients, flush the drive and close its store. If a part fails, the others
        are closed nevertheless. Raises CommandError if data are lost, InputError if a file cannot
        be written."""
        with contextlib.ExitStack() as parts:  # closes the last one first
            parts.callback(self.drive.close)
            parts.callback(self.service.close)
            parts.callback(super().close)
            if self.control is not None:
                parts.callback(self.control.close)


def listener_of_nvme_tcp(options: ServeOptions) -> Listener | None:
    """Return the socket of NVMe/TCP, or None if the options do not request it. Raises
    InputError."""
    if options.nvme_tcp is None:
        if options.nvme_hosts:
            raise InputError("--nvme-host requires --nvme-tcp ADDR")
        return None
    for host in options.nvme_hosts:
        if not is_name(host):
            raise InputError(
                f"--nvme-host {host}: must be an NVMe Qualified Name: nqn., then at most "
                f"{MOST_NAME_BYTES - 4} bytes"
            )
    address = Address.parse(options.nvme_tcp, "--nvme-tcp")
    if address.path:
        raise InputError(f"--nvme-tcp {options.nvme_tcp}: must be HOST:PORT")
    return Listener(address, "--nvme-tcp")


class MemoryServer(Protocols):
    """Memory with the sizes of configuration ``cfg``, which is served until :meth:`close`: the
    server without a model of flash, for comparison. ``ready``: see Server.

    Raises InputError if an address cannot be used, or for options that only a drive has.
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
