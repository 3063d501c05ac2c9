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
from ondie.emu.nvme.tables import PAIR_RING
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.control import ControlServer, socket_address
from ondie.emu.serve.memory_drive import MemoryDrive
from ondie.emu.serve.nbd import NbdServer
from ondie.emu.serve.nbd_session import warm_up
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.nvme_tcp import NvmeTcpServer
from ondie.emu.serve.served import ServedDrive
from ondie.emu.serve.vfio_user import VfioUserServer
from ondie.emu.service import Service
from ondie.emu.units import InputError


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What is served, and where. The fields of the drive are those of drive.Drive."""

    nbd: str | None = None
    """Address of NBD."""
    vfio_user: str | None = None
    """Path of the socket of vfio-user."""
    doorbell_buffers: bool = True
    """A virtual machine may keep its doorbells in its memory."""
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


def nothing() -> None:
    """Do nothing when a server is ready."""


class Server:
    """A drive with configuration ``cfg`` that is served until :meth:`close`.

    Addresses are bound before the drive is opened, and clients are accepted when it is ready.
    ``ready`` is called just before that; what it raises, or is raised before, closes all again.
    Raises InputError if an address, the configuration or the store cannot be used.
    """

    def __init__(
        self, cfg: Config, options: ServeOptions, ready: Callable[[], None] = nothing
    ) -> None:
        if options.nbd is options.vfio_user is options.nvme_tcp is None:
            raise InputError("serve: give at least one of --nbd, --vfio-user and --nvme-tcp")
        if options.vfio_user is None and not options.doorbell_buffers:
            raise InputError("--no-doorbell-buffers requires --vfio-user SOCK")
        with contextlib.ExitStack() as undo:
            nbd = vfio_user = control = None
            nvme_tcp = listener_of_nvme_tcp(options)
            if nvme_tcp is not None:
                undo.callback(nvme_tcp.close)
            if options.nbd is not None:
                nbd = Listener(Address.parse(options.nbd, "--nbd"), "--nbd")
                undo.callback(nbd.close)
            if options.vfio_user is not None:
                vfio_user = Listener(Address(path=options.vfio_user), "--vfio-user")
                undo.callback(vfio_user.close)
            if options.ctl is not None:
                control = Listener(socket_address(options.ctl, "--ctl"), "--ctl", private=True)
                undo.callback(control.close)
            self.drive = Drive(
                cfg,
                payload=True,
                queue_depth=min(cfg.frontend.queue_depth, PAIR_RING),
                block_bytes=options.block_bytes,
                seed=options.seed,
                store=options.store,
                durability=options.durability,
                read_only=options.read_only,
            )
            undo.callback(self.drive.abandon)
            self.service = Service(self.drive, options.clock, options.scale)
            undo.callback(self.service.close)
            self.served = ServedDrive(self.drive, self.service)
            self.nvme = None
            if vfio_user is not None or nvme_tcp is not None:
                self.nvme = NvmeDrive(
                    self.served,
                    several_controllers=nvme_tcp is not None,
                    shadow_doorbells=options.doorbell_buffers,
                )
            if nbd is not None:
                warm_up(self.served)
            ready()
            undo.pop_all()
        self.nbd = None if nbd is None else NbdServer(self.served, nbd)
        self.vfio_user = None
        if vfio_user is not None and self.nvme is not None:
            self.vfio_user = VfioUserServer(self.nvme, vfio_user)
        self.nvme_tcp = None
        if nvme_tcp is not None and self.nvme is not None:
            self.nvme_tcp = NvmeTcpServer(self.nvme, nvme_tcp, options.nvme_hosts or None)
        self.control = None if control is None else ControlServer(self.served, control)

    @property
    def addresses(self) -> dict[str, Address]:
        """The addresses at which the drive is served, by protocol."""
        servers = {"nbd": self.nbd, "vfio-user": self.vfio_user, "nvme-tcp": self.nvme_tcp}
        return {name: each.listener.address for name, each in servers.items() if each is not None}

    def close(self) -> None:
        """Disconnect all clients, flush the drive and close its store. If a part fails, the others
        are closed nevertheless. Raises CommandError if data are lost, InputError if a file cannot
        be written."""
        clients = (self.control, self.nbd, self.vfio_user, self.nvme_tcp, self.nvme)
        with contextlib.ExitStack() as parts:  # closes the last one first
            parts.callback(self.drive.close)
            parts.callback(self.service.close)
            for each in reversed(clients):
                if each is not None:
                    parts.callback(each.close)


def listener_of_nvme_tcp(options: ServeOptions) -> Listener | None:
    """Return the socket of NVMe/TCP, or None if it was not asked for. Raises InputError."""
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


class MemoryServer:
    """Memory with the sizes of configuration ``cfg``, which is served until :meth:`close`: the
    server without a model of flash, for comparison. ``ready``: see Server.

    Raises InputError if the address cannot be used, or for options that only a drive has.
    """

    def __init__(
        self, cfg: Config, options: ServeOptions, ready: Callable[[], None] = nothing
    ) -> None:
        if options.nbd is None:
            raise InputError("--null: give the address of --nbd")
        plain = ServeOptions(nbd=options.nbd, block_bytes=options.block_bytes, seed=options.seed)
        for each in fields(ServeOptions):
            if getattr(options, each.name) != getattr(plain, each.name):
                name = each.name.replace("_", "-")
                name = "no-doorbell-buffers" if name == "doorbell-buffers" else name
                raise InputError(f"--{name} cannot be combined with --null, which has no flash")
        listener = Listener(Address.parse(options.nbd, "--nbd"), "--nbd")
        try:
            self.served = MemoryDrive(cfg, options.block_bytes)
            warm_up(self.served)
            ready()
        except BaseException:
            listener.close()
            raise
        self.nbd = NbdServer(self.served, listener)

    @property
    def addresses(self) -> dict[str, Address]:
        """The address at which the memory is served, by protocol."""
        return {"nbd": self.nbd.listener.address}

    def close(self) -> None:
        """Disconnect all clients."""
        self.nbd.close()
