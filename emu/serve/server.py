"""A served drive: opens the drive, its service and the addresses, and closes them in order.

Owns the order of start and stop. Does not own protocols or the drive. Source: none.
"""

from __future__ import annotations

from dataclasses import dataclass

from ondie.emu.config.config import Config
from ondie.emu.controller.fabrics import MOST_NAME_BYTES, is_name
from ondie.emu.drive import Drive
from ondie.emu.nvme.tables import PAIR_RING
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.nbd import NbdServer
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.nvme_tcp import NvmeTcpServer
from ondie.emu.serve.served import Served
from ondie.emu.service import Service
from ondie.emu.units import InputError


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What is served, and where. The fields of the drive are those of drive.Drive."""

    nbd: str | None = None
    nvme_tcp: str | None = None
    nvme_hosts: tuple[str, ...] = ()
    """NQNs of the NVMe hosts that may connect; none: any."""
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
        listeners = bind(options)
        try:
            self.drive = Drive(
                cfg,
                payload=True,
                queue_depth=min(cfg.frontend.queue_depth, PAIR_RING),
                block_bytes=options.block_bytes,
                seed=options.seed,
                store=options.store,
                durability=options.durability,
            )
            try:
                self.service = Service(self.drive, options.clock, options.scale)
            except BaseException:
                self.drive.close()
                raise
        except BaseException:
            for listener in listeners.values():
                listener.close()
            raise
        self.served = Served(self.drive, self.service)
        self.nbd: NbdServer | None = None
        self.nvme: NvmeDrive | None = None
        self.nvme_tcp: NvmeTcpServer | None = None
        if "--nbd" in listeners:
            self.nbd = NbdServer(self.served, listeners["--nbd"])
        if "--nvme-tcp" in listeners:
            self.nvme = NvmeDrive(self.served)
            hosts = options.nvme_hosts or None
            self.nvme_tcp = NvmeTcpServer(self.nvme, listeners["--nvme-tcp"], hosts)

    def close(self) -> None:
        """Disconnect all clients, flush the drive and close its store. Raises CommandError if data
        are lost."""
        for server in (self.nbd, self.nvme_tcp, self.nvme):
            if server is not None:
                server.close()
        self.service.close()
        self.drive.close()


def bind(options: ServeOptions) -> dict[str, Listener]:
    """Return the sockets that listen, by option. Raises InputError if an address cannot be used, or
    if there is none."""
    asked = {"--nbd": options.nbd, "--nvme-tcp": options.nvme_tcp}
    addresses = {name: Address.parse(text, name) for name, text in asked.items() if text}
    if not addresses:
        raise InputError("serve: give an address, --nbd ADDR or --nvme-tcp ADDR")
    if options.nvme_hosts and not options.nvme_tcp:
        raise InputError("--nvme-host requires --nvme-tcp ADDR")
    for host in options.nvme_hosts:
        if not is_name(host):
            raise InputError(
                f"--nvme-host {host}: must be an NVMe Qualified Name: nqn., then at most "
                f"{MOST_NAME_BYTES - 4} bytes"
            )
    if options.nvme_tcp and addresses["--nvme-tcp"].path:
        raise InputError(f"--nvme-tcp {options.nvme_tcp}: must be HOST:PORT")
    found: dict[str, Listener] = {}
    try:
        for name, address in addresses.items():
            found[name] = Listener(address, name)
    except BaseException:
        for listener in found.values():
            listener.close()
        raise
    return found
