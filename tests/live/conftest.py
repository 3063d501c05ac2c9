"""Owns: the folder and processes of a live test, and the virtual machine that several files use in
turn. Does not own: what they are (processes.py, guest.py). Source: own.
"""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.live import guest_packages
from tests.live.guest import Guest
from tests.live.processes import Live

Borrow = Callable[[], contextlib.AbstractContextManager[Guest]]
CLEAN = ("if grep -q ' /mnt ' /proc/mounts; then umount /mnt; fi; nvme disconnect-all; "
         "until ! ls /dev/nvme*n* > /dev/null 2>&1; do sleep 0.1; done; "
         "dmesg -c > /dev/null; rm -rf /tmp/*")  # fmt: skip
"""Makes a guest like one that has just booted."""


@pytest.fixture
def live() -> Iterator[Live]:
    with Live() as found:
        yield found


@pytest.fixture(scope="session")
def borrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Borrow]:
    """Gives a machine that reaches servers on this computer: one boot serves several files. A
    machine that cannot be cleaned is ended, and the next file boots another one."""
    held: list[Guest] = []

    @contextlib.contextmanager
    def lend() -> Iterator[Guest]:
        if why := guest_packages.why_not():
            pytest.skip(why)
        if not held:
            held.append(Guest(tmp_path_factory.mktemp("guest")))
        try:
            yield held[0]
        finally:
            try:
                clean = held[0].run(CLEAN)[0] == 0
            except (TimeoutError, OSError, EOFError):
                clean = False
            if not clean:
                held.pop().close()

    yield lend
    for each in held:
        each.close()
