"""Owns: coverage-guided fuzzing of the protocols with atheris, in a process of its own:
`python -m tests.serve.fuzz TARGET [libFuzzer's arguments]`, with a target of TARGETS.
Does not own: what must hold (fuzz_nbd.py, fuzz_nvme_tcp.py, fuzz_vfio_user.py). Source: atheris's
documentation.
"""

import importlib
import itertools
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

RESIDENT = 2**30
"""Bytes that the process may hold."""


class Protocol(NamedTuple):
    """How the targets of a protocol are run."""

    module: str
    """Has a table TARGETS of functions of bytes."""
    compiled: bool
    """Numba compiles. Compiled code is not guided by coverage; a drive is too slow without it."""
    instrumented: tuple[str, ...]
    """Modules whose coverage guides."""


SERVE = "ondie.emu.serve."
PROTOCOLS = {
    "nbd": Protocol("tests.serve.fuzz_nbd", False, ("ondie.emu.serve",)),
    "nvme_tcp": Protocol(
        "tests.serve.fuzz_nvme_tcp",
        True,
        ("ondie.emu.controller", *(SERVE + name for name in (
            "nvme_tcp_wire", "nvme_tcp_handshake", "nvme_tcp_session", "nvme_io", "nvme_drive",
            "computation"))),
    ),
    "vfio_user": Protocol(
        "tests.serve.fuzz_vfio_user",
        True,
        ("ondie.emu.controller", *(SERVE + name for name in (
            "vfio_wire", "vfio_user", "guest_memory", "host_data", "nvme_io", "nvme_drive",
            "pci_space", "pcie_function", "pcie_io", "pcie_queues",
            "computation"))),
    ),
}  # fmt: skip
TARGETS = (
    "nbd_handshake", "nbd_requests", "nvme_tcp_handshake", "nvme_tcp_queue",
    "vfio_user_messages", "vfio_user_function",
)  # fmt: skip


def protocol_of(target: str) -> str:
    """Return the protocol of a target."""
    return next(name for name in PROTOCOLS if target.startswith(f"{name}_"))


def function_of(target: str) -> Callable[[bytes], None]:
    """Return the function of a target: it raises if something does not hold for its bytes."""
    name = protocol_of(target)
    table = importlib.import_module(PROTOCOLS[name].module).TARGETS
    found: Callable[[bytes], None] = table[target.removeprefix(f"{name}_")]
    return found


def bounded(function: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """The function, with a look at the process's memory every 256 inputs.

    libFuzzer's own limit takes the peak of getrusage(2), which Linux hands down from the process
    that started this one: a large pytest would fail the first input.
    """
    inputs = itertools.count()
    page = resource.getpagesize()

    def run(data: bytes) -> None:
        function(data)
        if next(inputs) % 256 == 0:
            held = int(Path("/proc/self/statm").read_text().split()[1]) * page
            if held > RESIDENT:
                raise MemoryError(f"{held} bytes are resident, limit {RESIDENT}")

    return run


def others(instrumented: tuple[str, ...]) -> list[str]:
    """Return the modules of the package that are none of these, nor in one of them: atheris takes
    whole packages, and code that Numba compiles must not be instrumented."""
    root = Path(__file__).parents[2]
    found = ["ondie"]
    for room in ("emu", "kernels", "traces"):
        for file in (root / room).rglob("*.py"):
            parts = file.relative_to(root).with_suffix("").parts
            found.append(".".join(["ondie", *parts]).removesuffix(".__init__"))
    return [
        name
        for name in found
        if not any(f"{name}.".startswith(f"{each}.") for each in instrumented)
    ]


def main() -> None:
    target = sys.argv.pop(1)
    protocol = PROTOCOLS[protocol_of(target)]
    if not protocol.compiled:
        os.environ["NUMBA_DISABLE_JIT"] = "1"
    import atheris  # after the environment: it imports no numba, but what follows does

    with atheris.instrument_imports(["ondie"], others(protocol.instrumented)):
        function = function_of(target)
    # SIGBUS is the server's: guest memory may vanish under an access
    atheris.Setup([*sys.argv, "-rss_limit_mb=0", "-handle_bus=0"], bounded(function))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
