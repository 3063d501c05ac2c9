"""Debian's Python without packages, iperf3, and the host's end of the tunnel, for a guest.

Owns which files these are. Does not own the download (guest_packages.py) or the initrd (guest.py).
Modules of ondie are those that the host's end loads; NumPy, Numba and click are not among them.
"""

import functools
import re
import stat
import subprocess
import sys
from pathlib import Path

from tests.live import guest_packages as packages
from tests.live.guest import Archive

PLACE = "opt/ondie"
MODULE = "ondie.emu.live.host_program"
ABSENT = ("numpy", "numba", "click", "rich")
"""Packages that the host's end does without."""
WITH_LIBRARIES = ("_ctypes", "_decimal")
"""Modules in C with libraries that others do not need."""
LEFT_OUT = {"test", "idlelib", "lib2to3", "pydoc_data", "distutils", "tkinter"}
LOADED = f"""
import sys
for name in {ABSENT}:
    sys.modules[name] = None
import {MODULE}
for name, module in sorted(sys.modules.items()):
    if name.startswith("ondie.") and module.__file__:
        print(name, module.__file__)
"""


def loaded() -> dict[str, Path]:
    """Files of the modules of ondie that the host's end loads, by name; no other Python packages
    are there."""
    words = [sys.executable, "-c", LOADED]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {name: Path(file) for name, file in (line.split() for line in done.stdout.splitlines())}


@functools.cache
def name_of_python() -> str:
    """Name of Python's program in this distribution, such as python3.11."""
    found = re.search(
        r"Depends: (python3\.\d+)-minimal", packages.run("apt-cache", "depends", "python3-minimal")
    )
    assert found
    return found[1]


@functools.cache
def unpacked() -> tuple[Path, ...]:
    """Folders of the packages of Python and iperf3, and of what they need that is not here."""
    python = name_of_python()
    names = (f"{python}-minimal", f"lib{python}-minimal", f"lib{python}-stdlib", "iperf3")
    return packages.closure(*names)


def file_of(name: str) -> Path:
    """A program of these packages."""
    (found,) = (each for folder in unpacked() for each in folder.glob(f"usr/bin/{name}"))
    return found


def iperf3() -> tuple[Path, str]:
    """Path of iperf3, and the LD_LIBRARY_PATH that it needs."""
    return file_of("iperf3"), packages.libraries(unpacked())


def add_python(out: Archive) -> None:
    """Add Python, iperf3 and the host's end to an initrd."""
    python, paths = name_of_python(), packages.libraries(unpacked())
    out.program(f"usr/bin/{python}", file_of(python))
    out.link("bin/python3", f"/usr/bin/{python}")
    out.program("sbin/iperf3", file_of("iperf3"))
    needed = packages.needed(file_of(python), paths) | packages.needed(file_of("iperf3"), paths)
    library = tuple(f"lib{python}-{part}_" for part in ("minimal", "stdlib"))
    for folder in unpacked():
        if not folder.name.startswith(library):
            continue
        above = folder / "usr/lib" / python
        for file in sorted(above.rglob("*")):
            if not file.is_file() or LEFT_OUT & set(file.relative_to(above).parts):
                continue
            out.add(str(file.relative_to(folder)), stat.S_IFREG | 0o644, file.read_bytes())
            if file.name.partition(".")[0] in WITH_LIBRARIES and file.suffix == ".so":
                needed |= packages.needed(file, paths)
    for name, file in needed.items():
        out.program(name, file)
    for name, file in loaded().items():
        place = name.replace(".", "/") + ("/__init__.py" if file.stem == "__init__" else ".py")
        out.add(f"{PLACE}/{place}", stat.S_IFREG | 0o644, file.read_bytes())
