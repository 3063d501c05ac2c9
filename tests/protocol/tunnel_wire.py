"""What lies between the two ends of a tunnel: commands and completions on their way, in any order.

Owns the harness of test_tunnel.py. The order is the caller's: a stream of numbers picks what goes
on next; without numbers, the oldest does.
"""

from collections.abc import Callable, Iterable, Iterator

from ondie.emu.nvme.tunnel.device import DeviceRelay
from ondie.emu.nvme.tunnel.framing import Format
from ondie.emu.nvme.tunnel.host import HostRelay
from ondie.emu.nvme.tunnel.protocol import Closed, Event, Failed, Packet
from ondie.emu.nvme.wire import Command, Completion


class Wire:
    """A host's relay, a drive's, and what is under way between them."""

    def __init__(self, form: Format, limits: Format | None = None, opening: int = 1) -> None:
        self.host = HostRelay(form, opening=opening)
        self.device = DeviceRelay(limits or form)
        self.down: list[Command] = []
        self.up: list[Completion] = []
        self.at_host: list[Event] = []
        self.at_device: list[Event] = []
        self.commands: list[Command] = []
        """All that were submitted."""

    def gather(self) -> None:
        """Everything that either end may send is on its way."""
        for _ in range(2):  # what one says may let the other go on
            new = self.host.commands()
            self.down += new
            self.commands += new
            self.up += self.device.completions()
        self.at_host += self.host.events()
        self.at_device += self.device.events()

    def step(self, choice: int) -> bool:
        """One command or completion arrives; False when none is on its way."""
        self.gather()
        n = len(self.down) + len(self.up)
        if not n:
            return False
        which = choice % n
        if which < len(self.down):
            self.device.command(self.down.pop(which))
        else:
            self.host.completed(self.up.pop(which - len(self.down)))
        self.gather()
        return True

    def run(self, choices: Iterable[int] = (), quiet: Callable[[], bool] = lambda: False) -> None:
        """Until nothing is on its way but event requests that the drive keeps, or ``quiet``."""
        numbers: Iterator[int] = iter(choices)
        for _ in range(200_000):
            if quiet() or not self.step(next(numbers, 0)):
                return
        raise AssertionError("the tunnel never comes to rest")

    def open(self) -> None:
        """Open, and wait for it."""
        self.host.open()
        self.run()

    @property
    def received(self) -> tuple[list[bytes], list[bytes]]:
        """Packets that have come out (at the drive, at the host)."""
        down, up = (
            [event.data for event in end if isinstance(event, Packet)]
            for end in (self.at_device, self.at_host)
        )
        return down, up

    @property
    def failures(self) -> list[Failed]:
        return [e for e in self.at_host if isinstance(e, Failed)]

    @property
    def closed(self) -> bool:
        """Do both ends know that it is closed?"""
        return all(Closed() in events for events in (self.at_host, self.at_device))
