"""Does the benchmark of vfio-user run what it says, with both kinds of doorbells?"""

import pytest

from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.served import ServedDrive
from ondie.emu.serve.vfio_user import VfioUserServer
from ondie.emu.service import Service
from tests.bench import vfio_user
from tests.state.test_service import Drive
from tests.state.written import config


@pytest.mark.parametrize("shadow", [False, True])
def test_a_short_run(tmp_path, monkeypatch, shadow):
    monkeypatch.setattr(vfio_user, "SPAN_BYTES", 1 << 20)
    drive = Drive(config(flash__blocks_per_plane=64, frontend__max_transfer="128 KiB"),
                  payload=True, block_bytes=4096)  # fmt: skip
    service = Service(drive)
    path = str(tmp_path / "sock")
    server = VfioUserServer(NvmeDrive(ServedDrive(drive, service)), Listener(Address(path), "--x"))
    for op, size, depth in (("read", 4096, 16), ("write", 16384, 4)):
        rate, messages = vfio_user.measure(path, op, size, depth, shadow, 0.1)
        assert rate > 0
        assert messages < 2 if shadow else messages > 0
    server.close()
    service.close()
    drive.check()
    drive.close()
