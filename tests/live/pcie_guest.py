"""A virtual machine whose disks are a served drive, over vfio-user, and QEMU's own NVMe device.

Owns the server's process, the options of QEMU, its control socket (QMP), and what the tests of such
a machine ask it. Does not own the boot (guest.py) or where QEMU comes from (guest_qemu.py). Source:
QEMU, docs/system/devices/vfio-user.rst, nvme.rst and docs/interop/qmp-spec.rst.
"""

import base64
import contextlib
import json
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ondie.emu.serve.control_words import send
from tests.live import guest_qemu
from tests.live.guest import Archive, Guest
from tests.live.processes import PREFIX, Live, of_ended_runs

SMALL = ("flash.channels=2", "flash.dies_per_channel=2", "flash.blocks_per_plane=64",
         "flash.pages_per_block=48", "ftl.gc_low_blocks=2")  # fmt: skip
"""Settings of a drive of 703 MB."""
BLOCK = 4096
OURS, QEMUS = "nvme0", "nvme1"
"""The controllers as the guest names them; it probes them in the order of their ports."""
QUEUES = 4
"""Processors of the guest, and so I/O queues."""
REFERENCE_BYTES = 256 << 20
END_S, NAMING_S = 20.0, 20.0

FIO = ("fio --name=v --ioengine=libaio --direct=1 --thread --group_reporting --bs=4k "
       "--allow_file_create=0 --randrepeat=1")  # fmt: skip
UNDER_LOAD = "--rw=randrw --iodepth=16 --size=16M --time_based --runtime=4"
VERIFIED = "--rw=randrw --iodepth=16 --verify=crc32c --verify_fatal=1"


class Machine:
    """The served drive, the machine that has it, and QEMU's control socket."""

    def __init__(
        self, live: Live, server: "subprocess.Popen[bytes]",
        second: "subprocess.Popen[bytes] | None", guest: Guest,
    ) -> None:  # fmt: skip
        self.live, self.server, self.second, self.guest = live, server, second, guest

    def ok(self, command: str, limit: float = 60.0) -> str:
        return self.guest.ok(command, limit)

    def json(self, command: str) -> dict[str, Any]:
        """The object that a command of nvme-cli prints."""
        return dict(json.loads(self.ok(f"nvme {command} -o json")))

    def bytes(self, command: str) -> bytes:
        """The bytes that a command of nvme-cli prints."""
        return base64.b64decode(self.ok(f"nvme {command} -b | base64"))

    def counters(self) -> dict[str, Any]:
        """What `ondie ctl counters` prints."""
        return send(str(self.live.folder / "ctl-sock"), "counters", {})

    def fio(self, name: str, words: str) -> dict[str, Any]:
        """Run fio in the guest at a disk; return its result for the whole group of jobs."""
        text = self.ok(f"{FIO} --filename=/dev/{name} --output-format=json {words}")
        (job,) = json.loads(text[text.index("{") :])["jobs"]
        assert job["error"] == 0
        return dict(job)

    def reads(self, name: str) -> int:
        """Number of reads that a disk has completed."""
        return int(self.ok(f"read -r a rest < /sys/block/{name}/stat && echo $a"))

    @contextlib.contextmanager
    def load(self, name: str, words: str = UNDER_LOAD) -> Iterator[None]:
        """Let fio use a disk while something else is done."""
        before = self.reads(name)
        self.ok(f"({FIO} --filename=/dev/{name} {words} > /tmp/load 2>&1; "
                "echo ended-$? >> /tmp/load) < /dev/null > /dev/null 2>&1 &")  # fmt: skip
        self.ok(f"until read -r a rest < /sys/block/{name}/stat && [ $a -ge {before + 200} ]; do "
                "sleep 0.02; done")  # fmt: skip
        yield

    def load_ended(self) -> str:
        """Wait for the end of fio; return what it printed."""
        return self.ok("until grep ended- /tmp/load > /dev/null; do sleep 0.05; done; "
                       "cat /tmp/load", 240)  # fmt: skip

    def qmp(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command to QEMU; return the reply, or nothing if QEMU has ended."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(END_S)
            sock.connect(str(self.live.folder / "qmp"))
            lines = sock.makefile("rw")
            lines.readline()
            for each in ({"execute": "qmp_capabilities"},
                         {"execute": command, "arguments": arguments}):  # fmt: skip
                lines.write(json.dumps(each) + "\n")
                lines.flush()
                found = json.loads(lines.readline() or "{}")
            return dict(found)

    def qemu_ended(self) -> str:
        """Wait until QEMU has ended; return what it said last."""
        self.guest.process.wait(END_S)
        return (self.live.folder / "qemu.err").read_text().splitlines()[-1]


def serve(live: Live, at: str, *options: str) -> "subprocess.Popen[bytes]":
    """Start `ondie serve` at the sockets ``at`` and, unless it is memory, ctl-``at``."""
    words = ["ondie", "serve", "--vfio-user", at, "--block", str(BLOCK)]
    if "--null" not in options:
        words += ["--ctl", f"ctl-{at}"]
    settings = [word for each in SMALL for word in ("--set", each)]
    return live.start([*words, *options, *settings], is_served)


def is_served(log: Path) -> bool:
    return re.search(r"^vfio-user unix:", log.read_text(), re.MULTILINE) is not None


def device_words(socket_file: Path, name: str, port: int) -> list[str]:
    """Options of QEMU for a served drive; its port lets it be unplugged."""
    device = {"driver": "vfio-user-pci", "id": name, "bus": f"port{port}",
              "socket": {"type": "unix", "path": str(socket_file)}}  # fmt: skip
    return [*port_words(port), "-device", json.dumps(device)]


def port_words(port: int) -> list[str]:
    return ["-device", f"pcie-root-port,id=port{port},slot={port + 1},chassis={port + 1}"]


def reference_words(file: Path) -> list[str]:
    """Options of QEMU for its own NVMe device with the bytes of ``file``."""
    with file.open("wb") as out:
        out.truncate(REFERENCE_BYTES)
    own = ["nvme,bus=port1,drive=disk,serial=reference,max_ioqpairs=16,msix_qsize=17",
           f"logical_block_size={BLOCK},physical_block_size={BLOCK}"]  # fmt: skip
    return ["-blockdev", f"driver=file,node-name=disk,filename={file}",
            *port_words(1), "-device", ",".join(own)]  # fmt: skip


@contextlib.contextmanager
def machine(
    reference: Path,
    *options: str,
    second: Sequence[str] | None = None,
    cores: int = QUEUES,
    boot: str = "",
    more: Callable[[Archive], None] | None = None,
) -> Iterator[Machine]:
    """A booted machine with a served drive and QEMU's own device. ``reference``: folder of the file
    behind that one. ``options``: of the server; ``second``: those of a second one, if there is to
    be one. ``more``: adds files to the initrd."""
    with Live() as live:
        server = serve(live, "sock", *options)
        for left in reference.glob(f"{PREFIX}*.img"):
            if of_ended_runs(str(left)):
                left.unlink(missing_ok=True)
        file = reference / f"{live.folder.name}.img"
        control = ["-qmp", f"unix:{live.folder}/qmp,server=on,wait=off"]
        words = [*device_words(live.folder / "sock", "drive", 0), *reference_words(file), *control]
        other = None
        if second is not None:
            other = serve(live, "second", *second)
            words += device_words(live.folder / "second", "second", 2)
        try:
            with Guest(live.folder, *words, cores=cores, qemu=guest_qemu.find(),
                       network=False, boot=boot, more=more) as guest:  # fmt: skip
                name_in_order(guest, 2 if second is None else 3)
                yield Machine(live, server, other, guest)
        finally:
            file.unlink()


def name_in_order(guest: Guest, count: int) -> None:
    """Let the guest name the controllers in the order of their ports: its driver probes them in
    threads, which may finish in another order."""
    guest.ok(f"until [ $(ls -d /sys/class/nvme/nvme*/nvme*n1 | wc -l) = {count} ]; do "
             "sleep 0.05; done", NAMING_S)  # fmt: skip
    found = guest.ok("cat /sys/class/nvme/nvme*/address").split()
    if found == sorted(found):
        return
    guest.ok("for each in /sys/class/nvme/nvme*; do echo 1 > $(readlink -f $each/device)/remove; "
             "done")  # fmt: skip
    for at in range(count):
        guest.ok(f"ls -d /sys/bus/pci/devices/*/pci_bus/0000:0{at + 1} > /tmp/bus && "
                 f"echo 1 > $(cat /tmp/bus)/rescan; until [ -b /dev/nvme{at}n1 ]; do "
                 "sleep 0.05; done", NAMING_S)  # fmt: skip
    found = guest.ok("cat /sys/class/nvme/nvme*/address").split()
    assert found == sorted(found) and len(found) == count, found


def wait_until_gone(machine: Machine, seconds: float = END_S) -> None:
    """Wait until the machine's program has ended."""
    deadline = time.monotonic() + seconds
    while machine.guest.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
