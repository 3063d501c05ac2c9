"""A served drive: opens the addresses, the drive and its service, and closes them in order.

Owns the order of start and stop. Does not own protocols or the drive. Source: none.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ondie.emu.config.config import Config
from ondie.emu.drive import Drive
from ondie.emu.nvme.tables import PAIR_RING
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.control import ControlServer, socket_address
from ondie.emu.serve.memory_drive import MemoryDrive
from ondie.emu.serve.nbd import NbdServer
from ondie.emu.serve.served import ServedDrive
from ondie.emu.service import Service
from ondie.emu.units import InputError


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What is served, and where. The fields of the drive are those of drive.Drive."""

    nbd: str
    ctl: str | None = None
    store: str | None = None
    durability: str | None = None
    block_bytes: int | None = None
    seed: int = 0
    clock: str = "virtual"
    scale: float = 1.0
    read_only: bool = False


class Server:
    """A drive with configuration ``cfg`` that is served until :meth:`close`.

    Addresses are bound before the drive is opened, and clients are accepted when it is ready.
    Raises InputError if an address, the configuration or the store cannot be used.
    """

    def __init__(self, cfg: Config, options: ServeOptions) -> None:
        nbd = Address.parse(options.nbd, "--nbd")
        ctl = None if options.ctl is None else socket_address(options.ctl, "--ctl")
        listeners = [Listener(nbd, "--nbd")]
        try:
            if ctl is not None:
                listeners.append(Listener(ctl, "--ctl", private=True))
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
            try:
                self.service = Service(self.drive, options.clock, options.scale)
            except BaseException:
                self.drive.close()
                raise
        except BaseException:
            for each in listeners:
                each.close()
            raise
        self.served = ServedDrive(self.drive, self.service)
        self.nbd = NbdServer(self.served, listeners[0])
        self.control = None if ctl is None else ControlServer(self.served, listeners[1])

    def close(self) -> None:
        """Disconnect all clients, flush the drive and close its store. Raises CommandError if data
        are lost."""
        if self.control is not None:
            self.control.close()
        self.nbd.close()
        self.service.close()
        self.drive.close()


class MemoryServer:
    """Memory with the sizes of configuration ``cfg``, which is served until :meth:`close`: the
    server without a model of flash, for comparison.

    Raises InputError if the address cannot be used, or for options that only a drive has.
    """

    def __init__(self, cfg: Config, options: ServeOptions) -> None:
        plain = ServeOptions(nbd=options.nbd, block_bytes=options.block_bytes, seed=options.seed)
        for each in fields(ServeOptions):
            if getattr(options, each.name) != getattr(plain, each.name):
                name = each.name.replace("_", "-")
                raise InputError(f"--{name} cannot be combined with --null, which has no flash")
        listener = Listener(Address.parse(options.nbd, "--nbd"), "--nbd")
        try:
            self.served = MemoryDrive(cfg, options.block_bytes)
        except BaseException:
            listener.close()
            raise
        self.nbd = NbdServer(self.served, listener)

    def close(self) -> None:
        """Disconnect all clients."""
        self.nbd.close()
