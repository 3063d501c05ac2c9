"""Virtual machine with an unmodified Linux, for tests of a served drive.

Owns the initrd, the boot under QEMU without hardware help (TCG), and commands over the serial
console. Does not own where the programs come from (guest_packages.py) or what is tested. The guest
has Debian's cloud kernel, busybox and the given programs, and reaches servers on this machine's
loopback at 10.0.2.2. Everything has a timeout, and the machine ends with its test.
"""

import os
import re
import selectors
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.live import guest_packages as packages
from tests.live.guest_qemu import Qemu

HOST = "10.0.2.2"
BOOT_S, COMMAND_S = 60.0, 60.0
"""Bounds in processor time of the machine: a busy computer gives it as little as it likes. A guest
that waits uses none, so IDLE times as much wall time is a bound, too."""
IDLE = 5
LOOK_S = 1.0
"""Time between two looks at the processor time."""
MODULES = ["virtio_pci", "virtio_net", "nvme_tcp", "crc32c_intel", "tun"]
PROGRAMS = {"nvme": "nvme-cli", "mkfs.ext4": "e2fsprogs", "e2fsck": "e2fsprogs", "fio": "fio"}
INIT = """#!/bin/sh
export PATH=/bin:/sbin HOME=/ TERM=dumb
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /tmp /run /mnt /etc/nvme
for each in /modules/*; do insmod "$each" || echo "insmod $each"; done
ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
stty -echo
echo "READY-$(uname -r) "
while read -r line; do sh -c "$line"; done
"""


class Archive:
    """An initrd: a cpio archive in the format newc. Source: Linux, initramfs buffer format."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._inode = 0
        self._folders: set[str] = set()

    def add(self, name: str, mode: int, data: bytes = b"") -> None:
        """Add a file, and the folders above it."""
        name = name.strip("/")
        above = name.rpartition("/")[0]
        if above and above not in self._folders:
            self.folder(above)
        self._inode += 1
        words = [self._inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08X" % word for word in words) + name.encode() + b"\0"
        self._parts += [head, bytes(-len(head) % 4), data, bytes(-len(data) % 4)]

    def folder(self, name: str) -> None:
        self._folders.add(name.strip("/"))
        self.add(name, stat.S_IFDIR | 0o755)

    def program(self, name: str, file: Path | bytes) -> None:
        data = file if isinstance(file, bytes) else file.read_bytes()
        self.add(name, stat.S_IFREG | 0o755, data)

    def link(self, name: str, to: str) -> None:
        self.add(name, stat.S_IFLNK | 0o777, to.encode())

    def pack(self) -> bytes:
        self.add("TRAILER!!!", 0)
        return b"".join(self._parts)


def initrd(modules: Path, more: Callable[[Archive], None] | None = None) -> bytes:
    """The initrd of the guest. ``more``: adds further files."""
    out = Archive()
    for folder in ("proc", "sys", "dev", "bin", "sbin", "lib/x86_64-linux-gnu", "lib64", "modules"):
        out.folder(folder)
    busybox = packages.unpack("busybox-static")[0] / "bin/busybox"
    out.program("bin/busybox", busybox)
    for name in packages.run(str(busybox), "--list").split():
        if name != "busybox":
            out.link(f"bin/{name}", "busybox")
    libraries: dict[str, Path] = {}
    for name, package in PROGRAMS.items():
        file, paths = packages.program(name, package)
        out.program(f"sbin/{name}", file)
        libraries |= packages.needed(file, paths)
    for name, file in libraries.items():
        out.program(name, file)
    for at, file in enumerate(packages.with_dependencies(modules, MODULES)):
        out.add(f"modules/{at:02}-{file.name}", stat.S_IFREG | 0o644, file.read_bytes())
    if more is not None:
        more(out)
    out.program("init", INIT.encode())
    return out.pack()


def distributed() -> Qemu:
    """The QEMU of this machine, or of its distribution's packages."""
    found, paths = packages.program("qemu-system-x86_64", "qemu-system-x86")
    if not paths:
        return Qemu((str(found),), {})
    words, environment = [str(found)], {"LD_LIBRARY_PATH": paths}
    for each in packages.closure("qemu-system-x86"):
        for place in ("usr/share/qemu", "usr/share/seabios"):
            if (each / place).is_dir():
                words += ["-L", str(each / place)]
        if (each / "usr/lib/x86_64-linux-gnu/qemu").is_dir():  # the accelerator is there
            environment["QEMU_MODULE_DIR"] = str(each / "usr/lib/x86_64-linux-gnu/qemu")
    return Qemu(tuple(words), environment)


def shared_memory(size: str) -> list[str]:
    """Options of QEMU for a PCIe machine whose memory a server of vfio-user may map."""
    memory = f"memory-backend-memfd,id=memory,size={size},share=on"
    return ["-machine", "q35,memory-backend=memory", "-object", memory]


def processor_s(pid: int) -> float:
    """Processor time that a process has used, s; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Guest:
    """A machine that has booted; :meth:`run` runs commands in it, and leaving the context ends it.

    ``qemu``: the program; None: this machine's or that of its distribution. ``network``: it reaches
    servers on this machine. Without, its memory is a file that a server of vfio-user may map.
    ``log`` gets all that the console has said. ``more``: adds files to the initrd.
    """

    def __init__(
        self, folder: Path, *options: str, memory: str = "512M", cores: int = 2,
        qemu: Qemu | None = None, network: bool = True, boot: str = "",
        more: Callable[[Archive], None] | None = None,
    ) -> None:  # fmt: skip
        image, modules = packages.kernel()
        packed = folder / "initrd"
        packed.write_bytes(initrd(modules, more))
        program = distributed() if qemu is None else qemu
        machine = ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]
        if not network:
            machine = shared_memory(memory)
        command = [
            *program.words, "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio",
            "-accel", "tcg,thread=multi", "-cpu", "max", "-m", memory, "-smp", str(cores),
            "-kernel", str(image), "-initrd", str(packed),
            "-append",
            f"console=ttyS0 quiet panic=-1 no_timer_check random.trust_cpu=on nokaslr {boot}",
            *machine, *options,
        ]  # fmt: skip
        environment = os.environ | program.environment
        self.log = ""
        self._errors = (folder / "qemu.err").open("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self._errors, env=environment,
                                        start_new_session=True)  # fmt: skip
        self._selector = selectors.DefaultSelector()
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        self._count = 0
        try:
            self.kernel = self._wait(r"READY-(\S+) ", BOOT_S, "boot")[1]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the machine, whatever it does."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self._errors.close()
        self._selector.close()

    def _wait(self, pattern: str, limit: float, what: str) -> re.Match[str]:
        """Wait until the console has said ``pattern``; return the match. ``limit``: processor time
        of the machine, s."""
        deadline, begin = time.monotonic() + IDLE * limit, len(self.log)
        used_s = processor_s(self.process.pid)
        assert self.process.stdout is not None
        while True:
            found = re.search(pattern, self.log[begin:])
            if found:
                return found
            left = deadline - time.monotonic()
            taken_s = processor_s(self.process.pid) - used_s
            if left <= 0 or taken_s > limit:
                raise TimeoutError(f"guest: {what}: not within {limit} s of its processor time "
                                   f"({taken_s:.1f} s) or {IDLE} times as much\n"
                                   f"{self.log[-4000:]}")  # fmt: skip
            if self._selector.select(min(left, LOOK_S)):
                data = self.process.stdout.read()
                if data == b"":
                    self._errors.seek(0)
                    raise EOFError(f"guest: {what}: the machine has ended\n{self.log[-4000:]}\n"
                                   f"{self._errors.read()}")  # fmt: skip
                self.log += (data or b"").decode(errors="replace").replace("\r", "")

    def run(self, command: str, limit: float = COMMAND_S) -> tuple[int, str]:
        """Exit status and output of a command of the shell, one line."""
        assert "\n" not in command
        self._count += 1
        mark = f"DONE-{self._count}-"
        assert self.process.stdin is not None
        begin = len(self.log)
        self.process.stdin.write(f"( {command} ) 2>&1; echo {mark}$?-\n".encode())
        self.process.stdin.flush()
        found = self._wait(rf"{mark}(\d+)-\n", limit, command)
        return int(found[1]), self.log[begin:].partition(mark)[0]

    def ok(self, command: str, limit: float = COMMAND_S) -> str:
        """Output of a command that must succeed."""
        status, output = self.run(command, limit)
        assert status == 0, f"{command}: {status}\n{output}"
        return output
