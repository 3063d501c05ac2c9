"""Speed of `ondie serve --vfio-user` under an unmodified Linux: python -m tests.bench.guest_speed

One boot has the served drive, with and without doorbell buffers, and QEMU's own NVMe device over a
file in memory. fio reads 4 KiB at random places at depth 16 from the three in turns. The drive has
its model of flash and the clock `virtual`. Prints rates, ratios and the guest's scheduler; asserts
only that nothing fails. tests/live/test_guest_speed.py runs it for a moment.
"""

import argparse
import statistics
from pathlib import Path
from typing import NamedTuple

from tests.live.pcie_guest import OURS, QEMUS, machine

BYTES = 64 << 20
"""Range of the reads, which was written before."""
MEMORY = Path("/dev/shm")
"""A folder of tmpfs."""
SECOND = "nvme2"
CORES = 2
"""Processors of the guest. With one there is one queue, for which Linux takes mq-deadline."""
NAMES = {OURS: "served drive, doorbell buffers", SECOND: "served drive, registers",
         QEMUS: "QEMU's own device"}  # fmt: skip


class Rates(NamedTuple):
    """What was measured."""

    scheduler: str
    """The guest's I/O scheduler of all three."""
    rates: dict[str, list[float]]
    """Reads per second by controller, in the order of the rounds."""

    def ratios(self, name: str) -> list[float]:
        """Rates of a controller over those of QEMU's own device in the same round."""
        return [ours / own for ours, own in zip(self.rates[name], self.rates[QEMUS], strict=True)]


def measure(rounds: int, seconds: float) -> Rates:
    with machine(MEMORY, second=("--no-doorbell-buffers",), cores=CORES) as pc:
        schedulers = set()
        for name in NAMES:
            pc.ok(f"dd if=/dev/zero of=/dev/{name}n1 bs=1M count={BYTES >> 20} oflag=direct")
            schedulers.add(pc.ok(f"cat /sys/block/{name}n1/queue/scheduler").strip())
        (scheduler,) = schedulers
        rates: dict[str, list[float]] = {name: [] for name in NAMES}
        words = f"--rw=randread --iodepth=16 --norandommap --size={BYTES} --time_based"
        for _ in range(rounds):
            for name in NAMES:
                found = pc.fio(f"{name}n1", f"{words} --runtime={seconds:g} --ramp_time=0.5")
                rates[name].append(found["read"]["iops"])
        return Rates(scheduler, rates)


def show(found: Rates) -> None:
    print(f"guest's scheduler: {found.scheduler}")
    print("device                            k IOPS  ratio to QEMU's: median  least  most")
    for name, title in NAMES.items():
        ratios = found.ratios(name)
        rate, ratio = statistics.median(found.rates[name]), statistics.median(ratios)
        print(f"{title:32} {rate / 1e3:7.1f}  {ratio:23.2f} {min(ratios):6.2f} {max(ratios):5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    show(measure(asked.rounds, asked.seconds))


if __name__ == "__main__":
    main()
