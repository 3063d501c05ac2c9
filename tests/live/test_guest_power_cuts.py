"""Does ext4 in a virtual machine survive power cuts of the drive under it, with every file that was
synced? The unmodified Linux driver reaches the drive over NVMe/TCP; all cuts are in one boot, which
other files have used before.

The drive has a volatile cache. Its power is cut while the guest writes, at a random event of the
engine; the guest gets I/O errors, unmounts and disconnects, as after a crash.
"""

import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ondie.emu.serve.control_words import send
from tests.live.guest import Guest
from tests.live.test_guest_nvme_tcp import Served, connect, disconnect, smart

pytestmark = pytest.mark.soak
VOLATILE = ("flash.channels=2", "flash.dies_per_channel=2", "flash.blocks_per_plane=32",
            "flash.pages_per_block=48", "ftl.gc_low_blocks=2", "cache.mode=write_back",
            "cache.capacity=4 MiB")  # fmt: skip
FILES = 12
"""Files that are synced before each cut, at least."""
MOST_EVENTS = 400
"""Events of the engine before a cut, fewer than this."""
SYNCED_S = 120.0
WORK = (
    "i=0; while :; do i=$((i+1)); head -c $((4096*(1+i%9))) /dev/urandom >/tmp/d; "
    "s=$(sha256sum </tmp/d); dd if=/tmp/d of=/mnt/CUT-$i bs=4k conv=fsync 2>/dev/null || break; "
    'echo "${s%%-*}/mnt/CUT-$i" >>/tmp/sums; done; touch /tmp/ended'
)
"""Writes files, syncs each, and then notes its sum in memory, until one fails."""


@pytest.fixture
def served(tmp_path) -> Iterator[Served]:
    found = Served(tmp_path, VOLATILE, "--ctl", str(tmp_path / "ctl"))
    yield found
    if found.process.poll() is None:
        found.stop(signal.SIGKILL)


@pytest.fixture
def guest(served, borrow) -> Iterator[Guest]:
    with borrow() as found:
        yield found


def noted(guest: Guest) -> int:
    """Number of files that were synced so far."""
    return int(guest.ok("cat /tmp/sums | wc -l"))


def wait_until(what, limit: float = SYNCED_S) -> None:
    deadline = time.monotonic() + limit
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_five_power_cuts_with_a_live_mount(served, guest, tmp_path):
    ctl, rng = str(tmp_path / "ctl"), np.random.default_rng(11)
    assert connect(guest, served)[0] == 0
    guest.ok("mkfs.ext4 -F -q /dev/nvme0n1 && touch /tmp/sums")
    for cut in range(5):
        guest.ok("mount -o errors=remount-ro /dev/nvme0n1 /mnt && rm -f /tmp/ended")
        before = noted(guest)
        guest.ok(f"( {WORK.replace('CUT', f'c{cut}')} ) >/dev/null 2>&1 &")
        wait_until(lambda before=before: noted(guest) >= before + FILES)
        send(ctl, "power-cut", {"after": int(rng.integers(0, MOST_EVENTS))})
        wait_until(lambda: guest.run("[ -e /tmp/ended ]")[0] == 0)
        guest.ok("umount /mnt")
        disconnect(guest, served)
        assert send(ctl, "power-on", {})["condition"] == "online"
        assert connect(guest, served)[0] == 0
        guest.ok("mount /dev/nvme0n1 /mnt")  # replays the journal
        guest.ok("sha256sum -c -s /tmp/sums")
        guest.ok("umount /mnt && e2fsck -fn /dev/nvme0n1")
    assert noted(guest) >= 5 * FILES
    counted = smart(guest)
    assert [int(counted[name]) for name in ("unsafe_shutdowns", "power_cycles")] == [5, 6]
    disconnect(guest, served)
    assert served.stop(signal.SIGTERM) == 0
