"""Does a file system survive power cuts of the served drive, with everything that it has flushed?

Needs libnbd-bin, fio, e2fsprogs, root, FUSE and loop devices.
"""

import time
from pathlib import Path

import numpy as np
import pytest

from ondie.emu.config.config import configuration
from ondie.emu.drive import Drive
from ondie.emu.serve.control_words import send
from tests.live.processes import Live, needs, needs_mounts, wait_for
from tests.live.recorded_log import Contents, Log, play, record, submit
from tests.live.test_nbd_clients import SMALL
from tests.state.versions import contents

WRITES = """\
fio --name=fill --directory=mnt --rw=randwrite --bs=4k --size=3m --io_size=6m --fsync=6 \
    --nrfiles=3 --ioengine=psync --randseed=11 --verify=crc32c --do_verify=0 --minimal
for i in $(seq 40); do
    mkdir -p mnt/d$((i % 7)) && head -c $((i * 997)) /dev/urandom > mnt/d$((i % 7))/f$i
    [ $((i % 5)) = 0 ] && rm -r mnt/d$((i % 3 + 1)) && sync -f mnt
    true
done
fstrim mnt && sync -f mnt
"""


def tools() -> None:
    needs("nbdfuse", "fio", "mkfs.ext4", "e2fsck", "losetup", "fstrim")
    needs_mounts()


def check_image(live: Live, image: Path, found: np.ndarray) -> None:
    """The journal is replayed, and the file system is then free of errors. ``image``: the file
    that e2fsck is given."""
    with image.open("wb") as file:
        for unit in np.flatnonzero(found.view(np.int64).any(axis=1)).tolist():
            file.seek(unit * found.shape[1])
            file.write(found[unit].tobytes())
        file.truncate(found.size)
    live.run(f"e2fsck -y -E journal_only {image}", seconds=30)
    live.run(f"e2fsck -fn {image}", seconds=30)


def run_with_cuts(
    live: Live, image: Path, log: Log, drive: Drive, cuts: list[int], rng
) -> dict[str, int]:
    """Play ``log`` once; cut the power in the batches ``cuts`` at a random event, recover, check,
    and go on behind the last flush. Return how often commands were lost, and flushes too."""
    held, behind, seen = Contents(drive), 0, {"cuts": 0, "lost": 0, "open": 0}
    pending, at = sorted(cuts, reverse=True), 0
    while at < len(log.batches):
        batch = log.batches[at]
        held.apply(batch)
        if not pending or at < pending[-1]:
            play(drive, batch)
            if alone(batch):
                held.promise()
                behind = at + 1
            at += 1
            continue
        pending.pop()
        submit(drive, batch)
        drive.power_cut(int(rng.integers(0, 40 + 12 * len(batch.commands))))
        done = drive.completions()
        seen["cuts"] += 1
        seen["lost"] += len(done) < len(batch.commands)
        seen["open"] += len(held.later) > 0
        if alone(batch) and len(done) == 1:
            held.promise()
            behind = at + 1
        drive.power_on()
        drive.check()
        found = contents(drive)
        assert held.wrong(found) == [], f"batch {at}"
        check_image(live, image, found)
        at = behind
    return seen


def alone(batch) -> bool:
    """Whether a batch is a single flush, which covers all before it."""
    return len(batch.commands) == 1 and int(batch.commands["size"][0]) == 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_hundred_cuts(live, in_memory, monkeypatch, counts):
    tools()
    (live.folder / "small.toml").write_text(SMALL)
    cfg = configuration(str(live.folder / "small.toml"), ("ftl.trim_maps=true",))
    log = record(live, cfg, monkeypatch, WRITES)
    flushes = sum(alone(batch) for batch in log.batches[log.begun :])
    assert flushes > 100 and len(log.batches) - log.begun > 3 * flushes / 2
    total = {"cuts": 0, "lost": 0, "open": 0}
    rounds, each = counts((1, 4), (8, 25))
    for number in range(rounds):
        rng = np.random.default_rng((18, number))
        begun = time.monotonic()
        with Drive(cfg, True, seed=number, block_bytes=512) as drive:
            places = rng.integers(log.begun, len(log.batches), each).tolist()
            for name, count in run_with_cuts(
                live, in_memory / "image", log, drive, places, rng
            ).items():
                total[name] += count
        print(f"round {number}: {time.monotonic() - begun:.1f} s, {total}")
    assert total["cuts"] == rounds * each
    assert total["lost"] > total["cuts"] // 8 and total["open"] > total["cuts"] // 8


WRITER = """\
i=$(cat sums | wc -l)
while head -c $((i * 7919 % 60000 + 1)) /dev/urandom > mnt/f$i && sync mnt/f$i; do
    sha256sum mnt/f$i >> sums && i=$((i + 1))
done
"""
"""Writes files; the sum of each is noted, outside the drive, when the file was synced."""


def cut_while_it_writes(live: Live, ctl: str, after: int) -> int:
    """Cut the power when the writer has synced 12 more files; unmount what is left. Return the
    number of synced files."""
    sums = live.folder / "sums"

    def synced() -> int:
        return len(sums.read_bytes().splitlines())

    wanted = synced() + 12
    writer = live.start(["bash", "-c", WRITER], lambda log: synced() >= wanted)
    send(ctl, "power-cut", {"after": after})
    wait_for("the writer's error", lambda: writer.poll() is not None)
    live.detach()
    return synced()


def test_cuts_under_a_mount(live, counts):
    """Every file that was synced is there after the cut, whole, and the file system is clean."""
    tools()
    (live.folder / "small.toml").write_text(SMALL)
    live.serve("--device", "small.toml", "--block", "512", "--store", "store")
    live.attach()
    live.run("mkfs.ext4 -q -F fuse/disk && touch sums")
    ctl, rng = str(live.folder / "ctl"), np.random.default_rng(5)
    cuts = counts(1, 5)
    for number in range(cuts):
        live.mount_disk("errors=remount-ro")
        assert cut_while_it_writes(live, ctl, int(rng.integers(0, 400))) >= 12 * (number + 1)
        assert send(ctl, "power-on", {})["condition"] == "online"
        live.attach()
        live.mount_disk("errors=remount-ro")  # replays the journal
        live.run("sha256sum --quiet -c sums && umount mnt && e2fsck -fn fuse/disk")
