"""The unmodified Linux NVMe driver at a drive that is served over NVMe/TCP, in one virtual machine.

One boot serves all checks, in their order, and those of other files. The guest reaches the server
through QEMU's user networking.
"""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.guest import HOST, Guest

pytestmark = pytest.mark.soak
ALLOWED, OTHER = (f"nqn.2014-08.org.nvmexpress:uuid:{each * 8}-0000-4000-8000-000000000000"
                  for each in "12")  # fmt: skip
SMALL = ("flash.channels=2", "flash.dies_per_channel=2", "flash.blocks_per_plane=32",
         "flash.pages_per_block=48", "ftl.gc_low_blocks=2", "cache.mode=write_through")  # fmt: skip
"""A small drive. It has no volatile cache: a file system whose host lives on does not repeat what a
drive has completed and then lost, its bitmaps for example, so a kill would damage it."""
END_S = 60


class Served:
    """`ondie serve` in a process of its own, with a store, at the same port after each start."""

    def __init__(self, folder: Path, settings: tuple[str, ...] = SMALL, *options: str) -> None:
        self.folder, self.options = folder, options
        self.settings = [word for each in settings for word in ("--set", each)]
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "ondie.emu.cli", "serve", "--nvme-tcp",
                   f"127.0.0.1:{self.port}", "--nvme-host", ALLOWED, "--store",
                   str(self.folder / "store"), *self.settings, *self.options]  # fmt: skip
        self.log = (self.folder / "serve.err").open("a+")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert self.process.stdout is not None
        words = [self.process.stdout.readline().split() for _ in range(2)]
        assert all(words), (self.folder / "serve.err").read_text()
        self.name = words[1][1]

    def stop(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(END_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()
        return code


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("served"))
    yield found
    if found.process.poll() is None:
        found.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def guest(served, borrow) -> Iterator[Guest]:
    with borrow() as found:
        yield found


def connect(guest: Guest, served: Served, *options: str, host: str = ALLOWED) -> tuple[int, str]:
    where = f"-t tcp -a {HOST} -s {served.port} -n {served.name} -q {host}"
    return guest.run(f"nvme connect {where} {' '.join(options)} || exit 1; for each in $(seq 50); "
                     "do [ -b /dev/nvme0n1 ] && exit 0; sleep 0.1; done; exit 2")  # fmt: skip


def disconnect(guest: Guest, served: Served) -> None:
    assert "disconnected 1 controller" in guest.ok(f"nvme disconnect -n {served.name}")


FIO = ("fio --name=v --filename=/dev/nvme0n1 --rw=randrw --bs=4k --iodepth=32 --ioengine=libaio "
       "--direct=1 --verify=crc32c --verify_fatal=1 --size=4M --thread --output-format=json "
       "--norandommap=0 --randrepeat=1")  # fmt: skip


def fio(guest: Guest) -> int:
    """Run random reads and writes at depth 32, all verified; return the number of writes."""
    text = guest.ok(FIO)
    (job,) = json.loads(text[text.index("{") :])["jobs"]
    assert job["error"] == 0 and job["write"]["io_bytes"] > 0
    assert job["read"]["io_bytes"] >= job["write"]["io_bytes"]
    return job["write"]["total_ios"]


def smart(guest: Guest) -> dict[str, Any]:
    return json.loads(guest.ok("nvme smart-log -o json /dev/nvme0"))


def test_discovery(guest, served):
    text = guest.ok(f"nvme discover -t tcp -a {HOST} -s {served.port} -q {OTHER}")
    assert "Number of Records 2" in text
    assert re.findall(r"subnqn: *(\S+)", text)[1] == served.name
    assert re.findall(r"trsvcid: *(\S+)", text) == [str(served.port)] * 2


def test_only_the_allowed_host_connects(guest, served):
    assert connect(guest, served, host=OTHER)[0] == 1
    assert f"is not allowed, hostnqn: {OTHER}" in guest.ok("dmesg | tail -5")


@pytest.mark.parametrize("digests", [(), ("-g",), ("-G",), ("-g", "-G")])
def test_the_driver_reads_what_it_has_written(guest, served, digests):
    assert connect(guest, served, *digests)[0] == 0
    assert "mapped 2/0/0" in guest.ok("dmesg | tail -5")
    listed = json.loads(guest.ok("nvme list -o json"))
    assert "ondie" in str(listed) and "/dev/nvme0n1" in str(listed)
    found = json.loads(guest.ok("nvme id-ctrl -o json /dev/nvme0"))
    assert found["subnqn"] == served.name and found["ioccsz"] == 516 and found["cntrltype"] == 1
    before = int(smart(guest)["host_write_commands"])
    writes = fio(guest)
    assert int(smart(guest)["host_write_commands"]) == before + writes
    assert smart(guest)["critical_warning"] == 0
    disconnect(guest, served)


def test_a_file_system_survives_a_killed_server(guest, served):
    assert connect(guest, served, "--reconnect-delay=1", "--keep-alive-tmo=5")[0] == 0
    guest.ok("mkfs.ext4 -F -q /dev/nvme0n1 && mount /dev/nvme0n1 /mnt")
    guest.ok("dd if=/dev/urandom of=/tmp/x bs=64k count=64 2>/dev/null && cp /tmp/x /mnt/x && sync")
    guest.ok("echo 3 > /proc/sys/vm/drop_caches")
    assert served.stop(signal.SIGKILL) < 0
    served.start()
    guest.ok("cmp /tmp/x /mnt/x")  # waits until the driver has reconnected
    assert "Successfully reconnected" in guest.ok("dmesg")
    guest.ok("cp /tmp/x /mnt/y && sync && umount /mnt")
    guest.ok("e2fsck -fn /dev/nvme0n1")
    disconnect(guest, served)


def test_a_clean_end(guest, served):
    assert connect(guest, served)[0] == 0
    assert served.stop(signal.SIGTERM) == 0
