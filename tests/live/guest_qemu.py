"""QEMU with the device `vfio-user-pci`: that of this machine, or unpacked from Debian's packages.

Owns which packages these are (qemu.packages: names, versions and SHA-256), their download and the
words that start the program. Does not own other programs of a guest (guest_packages.py). The
packages are of a newer Debian than this machine's may be, so they come with all their libraries and
their dynamic loader. apt gets lists and folders of its own: nothing is installed, and the system's
state is not touched. Source: Debian, trixie and trixie-backports; apt-get(8), ld.so(8).

`python -m tests.live.guest_qemu` writes qemu.packages anew, with what Debian has now.
"""

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.live import guest_packages

PINS = Path(__file__).with_name("qemu.packages")
OLDEST = (10, 1)
"""First version with the device."""
SUITES = ("trixie", "trixie-backports")
PACKAGE, BACKPORTS = "qemu-system-x86", "trixie-backports"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
DATA = ("qemu-system-common", "qemu-system-data", "seabios", PACKAGE)
"""Packages that are needed although the program is not linked with them."""
LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = f"{LIBRARIES}/ld-linux-x86-64.so.2"
PROGRAM = "usr/bin/qemu-system-x86_64"
APT_S = 120


class Qemu(NamedTuple):
    """A QEMU that can be started."""

    words: tuple[str, ...]
    """First words of the command line."""
    environment: dict[str, str]
    """Further variables."""


class Pin(NamedTuple):
    """A package as it was when the kit was tried."""

    name: str
    version: str
    sha256: str


class Changed(Exception):
    """Debian has other packages than qemu.packages says."""


def pins() -> list[Pin]:
    lines = PINS.read_text().splitlines()
    return [Pin(*line.split()) for line in lines if line and not line.startswith("#")]


@functools.cache
def installed() -> str | None:
    """Path of a QEMU on this machine that has the device, or None."""
    path = shutil.which("qemu-system-x86_64")
    if path is None:
        return None
    found = re.search(r"version (\d+)\.(\d+)", guest_packages.run(path, "--version"))
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        return None
    return path if "vfio-user-pci" in guest_packages.run(path, "-device", "help") else None


def why_not() -> str:
    """Why there can be no such QEMU here, or ""."""
    if installed() or unpacked().is_dir():
        return ""
    if not KEYS.is_file():
        return f"no QEMU {OLDEST[0]}.{OLDEST[1]} or newer, and no {KEYS} to get one from Debian"
    return guest_packages.why_not()


def unpacked() -> Path:
    """The folder with the files of the packages, which need not exist yet."""
    return guest_packages.cache() / f"qemu-{hashlib.sha256(PINS.read_bytes()).hexdigest()[:16]}"


def find() -> Qemu:
    """The QEMU to start. Raises Changed if Debian has other packages than those that were tried."""
    path = installed()
    if path is not None:
        return Qemu((path,), {})
    root = unpacked()
    if not root.is_dir():
        with tempfile.TemporaryDirectory(dir=guest_packages.cache(), prefix=".qemu-") as part:
            Apt(Path(part)).fetch(pins(), Path(part) / "root")
            try:
                (Path(part) / "root").rename(root)
            except OSError:  # another process was first
                if not root.is_dir():
                    raise
    return at(root)


def at(root: Path) -> Qemu:
    """The QEMU in the folder of unpacked packages."""
    words = [str(root / LOADER), "--library-path", str(root / LIBRARIES), str(root / PROGRAM)]
    for place in ("qemu", "seabios"):
        words += ["-L", str(root / "usr/share" / place)]
    return Qemu(tuple(words), {"QEMU_MODULE_DIR": str(root / LIBRARIES / "qemu")})


class Apt:
    """apt with lists, state and downloads in ``folder``, and the packages of SUITES."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for each in ("lists/partial", "archives/partial"):
            (folder / each).mkdir(parents=True)
        (folder / "status").touch()
        (folder / "sources").write_text(
            "".join(f"deb [signed-by={KEYS}] {mirror()} {suite} main\n" for suite in SUITES)
        )
        places = {
            "State": "", "State::lists": "lists", "State::status": "status", "Cache": "",
            "Cache::archives": "archives", "Etc::SourceList": "sources",
        }  # fmt: skip
        options = [f"Dir::{key}={folder / place}" for key, place in places.items()]
        for each in ("SourceParts", "Preferences", "PreferencesParts"):  # none
            options.append(f"Dir::Etc::{each}={folder / each}")
        options.append("APT::Architecture=amd64")
        if os.geteuid() == 0:  # the folder need not be open to the user of apt
            options.append("APT::Sandbox::User=root")
        self._options = [word for each in options for word in ("-o", each)]
        self._run("apt-get", "update", "-q")

    def _run(self, tool: str, *words: str) -> str:
        done = subprocess.run(
            [tool, *self._options, *words], cwd=self.folder, env=dict(os.environ, LC_ALL="C"),
            timeout=APT_S, text=True, capture_output=True,
        )  # fmt: skip
        if done.returncode:
            raise OSError(f"{tool} {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def versions(self, names: list[str]) -> dict[str, str]:
        """Versions that Debian has now; the newest in the backports."""
        text = self._run("apt-cache", "-t", BACKPORTS, "policy", *names)
        return dict(re.findall(r"^(\S+):\n.*\n  Candidate: (\S+)", text, re.MULTILINE))

    def closure(self) -> list[str]:
        """Names of the package and of all that it needs."""
        words = ("install", "-s", "--no-install-recommends", "-t", BACKPORTS, PACKAGE)
        return re.findall(r"^Inst (\S+)", self._run("apt-get", *words), re.MULTILINE)

    def download(self, names: list[str], versions: dict[str, str]) -> dict[str, Path]:
        """Files of packages."""
        words = [f"{name}={versions[name]}" for name in names]
        self._run("apt-get", "download", "-q", *words)
        return {file.name.partition("_")[0]: file for file in self.folder.glob("*.deb")}

    def fetch(self, wanted: list[Pin], root: Path) -> None:
        """Download and unpack packages. Raises Changed."""
        now = self.versions([pin.name for pin in wanted])
        changed = [f"{pin.name} {pin.version} is now {now.get(pin.name, 'gone')}"
                   for pin in wanted if now.get(pin.name) != pin.version]  # fmt: skip
        if changed:
            raise Changed(f"{PINS.name}: {'; '.join(changed)}. {AGAIN}")
        files = self.download([pin.name for pin in wanted], now)
        for pin in wanted:
            found = hashlib.sha256(files[pin.name].read_bytes()).hexdigest()
            if found != pin.sha256:
                raise Changed(f"{PINS.name}: {pin.name} {pin.version} has SHA-256 {found}, "
                              f"not {pin.sha256}. {AGAIN}")  # fmt: skip
        root.mkdir()
        for pin in wanted:
            guest_packages.run("dpkg-deb", "-x", str(files[pin.name]), str(root))


AGAIN = "Run python -m tests.live.guest_qemu and the tests of guests, and commit the file"


def mirror() -> str:
    """The address of Debian's packages that this machine uses."""
    words = ("--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian", "Label: Debian")
    found = guest_packages.run("apt-get", "indextargets", *words).split()
    return found[0] if found else "http://deb.debian.org/debian"


def loaded(root: Path) -> set[str]:
    """Names of the libraries that the program and its accelerator load, without folders."""
    binaries = [root / PROGRAM, *(root / LIBRARIES / "qemu").glob("accel-tcg-*.so")]
    found: set[str] = {Path(LOADER).name}
    for binary in binaries:
        words = (str(root / LOADER), "--library-path", str(root / LIBRARIES), "--list")
        found |= set(re.findall(r"^\s*(\S+) => ", guest_packages.run(*words, str(binary)),
                                re.MULTILINE))  # fmt: skip
    return found


def write_pins() -> None:
    """Write qemu.packages with what the program needs of today's packages."""
    with tempfile.TemporaryDirectory() as folder:
        apt, root = Apt(Path(folder)), Path(folder) / "root"
        names = apt.closure()
        versions = apt.versions(names)
        files = apt.download(names, versions)
        held: dict[str, set[str]] = {}
        for name in names:
            guest_packages.run("dpkg-deb", "-x", str(files[name]), str(root))
            listed = guest_packages.run("dpkg-deb", "-c", str(files[name])).splitlines()
            held[name] = {Path(line.partition(" -> ")[0].split()[-1]).name for line in listed}
        needed = loaded(root)
        lines = [f"# QEMU for tests/live: package, version, SHA-256; from {', '.join(SUITES)}"]
        for name in names:
            if name in DATA or held[name] & needed:
                sha256 = hashlib.sha256(files[name].read_bytes()).hexdigest()
                lines.append(f"{name} {versions[name]} {sha256}")
        PINS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_pins()
    sys.stdout.write(f"{PINS.name}: {len(pins())} packages\n")
