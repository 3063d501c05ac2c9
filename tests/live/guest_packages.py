"""Programs of a guest: found on this machine, otherwise unpacked from Debian's packages.

Owns the download of packages into the user's cache folder, and the libraries that a program needs.
Does not own the initrd and the guest (guest.py). Packages are unpacked, never installed. Their
versions move on with the distribution, which checks their signatures; each one is unpacked into a
folder of its own name and version.
"""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

APT_S = 300
"""Time for a command of apt, s."""


def cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "ondie-guest"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(*command: str, cwd: Path | None = None, paths: str = "") -> str:
    """Output of a command. Raises subprocess.CalledProcessError."""
    environment = dict(os.environ, LC_ALL="C")
    if paths:
        environment["LD_LIBRARY_PATH"] = paths
    return subprocess.run(command, cwd=cwd, env=environment, check=True, timeout=APT_S, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout  # fmt: skip


def why_not() -> str:
    """Why no packages can be had here, or ""."""
    for tool in ("apt-get", "apt-cache", "dpkg-deb", "ldd"):
        if shutil.which(tool) is None:
            return f"no {tool}"
    if os.uname().machine != "x86_64":
        return f"the guest is for x86_64, not {os.uname().machine}"
    if "Candidate: (none)" in (text := run("apt-cache", "policy", "busybox-static")) or not text:
        return "no lists of packages; run apt-get update"
    return ""


def unpack(*names: str) -> tuple[Path, ...]:
    """Folders with the files of packages, one each."""
    listed = run("apt-get", "download", "--print-uris", *names).splitlines()
    return tuple(_unpack(line.split()[1].removesuffix(".deb")) for line in listed)


def _unpack(archive: str) -> Path:
    """Folder with the files of the package NAME_VERSION_ARCHITECTURE."""
    folder = cache() / archive
    if not folder.exists():
        name, version, _ = archive.split("_")
        part = cache() / f".{archive}.{os.getpid()}"
        part.mkdir()
        try:
            run("apt-get", "download", f"{name}={version.replace('%3a', ':')}", cwd=part)
            run("dpkg-deb", "-x", str(part / f"{archive}.deb"), str(part / "files"))
            try:
                (part / "files").rename(folder)
            except OSError:  # another process was first
                if not folder.exists():
                    raise
        finally:
            shutil.rmtree(part)
    return folder


@functools.cache
def closure(*names: str) -> tuple[Path, ...]:
    """Folders of packages and of all that they need and that are not installed here."""
    text = run("apt-get", "install", "-s", "--no-install-recommends", *names)
    missing = re.findall(r"^Inst (\S+)", text, re.MULTILINE)
    return unpack(*dict.fromkeys((*missing, *names)))


def libraries(folders: tuple[Path, ...]) -> str:
    """LD_LIBRARY_PATH of unpacked folders."""
    found = [folder / place for folder in folders for place in ("usr/lib/x86_64-linux-gnu",
             "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio")]  # fmt: skip
    return ":".join(str(each) for each in found if each.is_dir())


def program(name: str, package: str) -> tuple[Path, str]:
    """Path of a program, and the LD_LIBRARY_PATH that it needs."""
    place = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if place is not None:
        return Path(place), ""
    folders = closure(package)
    for folder in folders:
        for place in ("usr/bin", "usr/sbin", "bin", "sbin"):
            if (folder / place / name).is_file():
                return folder / place / name, libraries(folders)
    raise FileNotFoundError(f"{name}: not in the package {package}")


def needed(binary: Path, paths: str) -> dict[str, Path]:
    """Libraries of a program by their place in the guest."""
    out = {}
    for line in run("ldd", str(binary), paths=paths).splitlines():
        found = re.search(r"(\S+) => (/\S+)|^\s*(/\S+) ", line)
        if found is None:
            if "not found" in line:
                raise FileNotFoundError(f"{binary}: {line.strip()}")
            continue
        if found[3]:
            out[found[3]] = Path(found[3])
        else:
            out[f"/lib/x86_64-linux-gnu/{found[1]}"] = Path(found[2])
    return out


def kernel() -> tuple[Path, Path]:
    """Image and folder of modules of Debian's cloud kernel."""
    text = run("apt-cache", "depends", "linux-image-cloud-amd64")
    found = re.search(r"Depends: (linux-image-\S+-cloud-amd64)", text)
    assert found, text
    (folder,) = unpack(found[1])
    (image,) = (folder / "boot").glob("vmlinuz-*")
    (modules,) = (folder / "lib/modules").iterdir()
    return image, modules


def with_dependencies(modules: Path, names: list[str]) -> list[Path]:
    """Files of modules in the order in which they are to be loaded."""
    files = {each.stem.replace("-", "_"): each for each in modules.rglob("*.ko")}
    out: list[Path] = []

    def add(name: str) -> None:
        file = files.get(name.replace("-", "_"))
        if file is None or file in out:  # None: it is built in
            return
        found = re.search(rb"\0depends=([^\0]*)\0", file.read_bytes())
        for each in found[1].decode().split(",") if found else []:
            if each:
                add(each)
        out.append(file)

    for name in names:
        add(name)
    return out
