"""Computation commands over NVMe/TCP and PCIe, byte for byte: gradient in, update, weights out are
the kernel's, also after a power cut; and what is wrong ends with the status that the page names.
Source: docs/computation.md; ondie.kernels.
"""

import pytest

from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.nvme_tcp import NvmeTcpServer
from tests.protocol.compute_host import (
    NSID,
    ComputeHost,
    StatesDrive,
)
from tests.protocol.nvme_tcp_client import Queue


class TcpTarget(StatesDrive):
    """The drive over NVMe/TCP, and hosts."""

    def __init__(self, **options):
        super().__init__(**options)
        listener = Listener(Address.parse(":0", "--nvme-tcp"), "--nvme-tcp")
        self.server = NvmeTcpServer(self.nvme, listener, None)
        self.address = ("127.0.0.1", listener.address.port)
        self.queues = []

    def close(self):
        for each in self.queues:
            each.close()
        self.server.close()
        super().close()

    def connect(self):
        """Admin queue and I/O queue of a new host."""
        name = self.nvme.capabilities.subsystem_name
        admin, io = Queue(self.address), Queue(self.address)
        self.queues += [admin, io]
        status, cntlid = admin.connect(name)
        assert status == 0
        admin.enable()
        assert io.connect(name, 1, cntlid) == (0, cntlid)
        return admin, io

    def host(self):
        _, io = self.connect()
        return ComputeHost(
            lambda opcode, data, **words: io.run(opcode, data, NSID, **words),
            lambda opcode, size, **words: io.get(opcode, size, NSID, **words),
        )


@pytest.fixture
def target():
    found = TcpTarget()
    yield found
    found.close()


def test_update_over_tcp(target):
    """Gradient in, update, weights out: bit for bit the kernel's."""
    host = target.host()
    size = target.states.bytes_of_all
    target.same(host.states(size))
    for number in (1, 2):
        gradient = target.gradient()
        rsid = host.give(gradient)
        assert host.execute(0, rsid, number) == (0, number)
        target.by_kernel(gradient)
        target.same(host.states(size))
    found = host.report()
    assert (found["step"], found["complete"], found["updates"]) == (2, 1, 2)
