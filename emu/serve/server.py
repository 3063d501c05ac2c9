"""A served drive: opens the drive, its service and the addresses, and closes them in order.

Owns the order of start and stop. Does not own protocols or the drive. Source: none.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from ondie.emu.config.config import Config
from ondie.emu.drive import Drive
from ondie.emu.nvme.tables import PAIR_RING
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.nbd import NbdServer
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.served import Served
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
    store: str | None = None
    durability: str | None = None
    block_bytes: int | None = None
    seed: int = 0
    clock: str = "virtual"
    scale: float = 1.0


class Server:
    """A drive with configuration ``cfg`` that is served until :meth:`close`.

    Addresses are bound before the drive is opened, and clients are accepted when it is ready.
    Raises InputError if an address, the configuration or the store cannot be used.
    """

    def __init__(self, cfg: Config, options: ServeOptions) -> None:
        if options.nbd is None and options.vfio_user is None:
            raise InputError("serve: give at least one of --nbd and --vfio-user")
        with contextlib.ExitStack() as undo:
            nbd = vfio_user = None
            if options.nbd is not None:
                nbd = Listener(Address.parse(options.nbd, "--nbd"), "--nbd")
                undo.callback(nbd.close)
            if options.vfio_user is not None:
                vfio_user = Listener(Address(path=options.vfio_user), "--vfio-user")
                undo.callback(vfio_user.close)
            self.drive = Drive(
                cfg,
                payload=True,
                queue_depth=min(cfg.frontend.queue_depth, PAIR_RING),
                block_bytes=options.block_bytes,
                seed=options.seed,
                store=options.store,
                durability=options.durability,
            )
            undo.callback(self.drive.close)
            self.service = Service(self.drive, options.clock, options.scale)
            undo.callback(self.service.close)
            self.served = Served(self.drive, self.service)
            self.nvme = None if vfio_user is None else NvmeDrive(self.served)
            undo.pop_all()
        self.nbd = None if nbd is None else NbdServer(self.served, nbd)
        self.vfio_user = None
        if vfio_user is not None and self.nvme is not None:
            self.vfio_user = VfioUserServer(self.nvme, vfio_user)

    @property
    def addresses(self) -> dict[str, Address]:
        """The addresses at which the drive is served, by protocol."""
        servers = {"nbd": self.nbd, "vfio-user": self.vfio_user}
        return {name: each.listener.address for name, each in servers.items() if each is not None}

    def close(self) -> None:
        """Disconnect all clients, flush the drive and close its store. Raises CommandError if data
        are lost."""
        for each in (self.nbd, self.vfio_user, self.nvme):
            if each is not None:
                each.close()
        self.service.close()
        self.drive.close()
