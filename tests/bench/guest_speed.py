"""Speed of `ondie serve --vfio-user` under an unmodified Linux: python -m tests.bench.guest_speed

One boot has the served drive, with and without doorbell buffers, and QEMU's own NVMe device over a
file in memory. fio reads 4 KiB at random places at depth 16 from the three in turns, on one
processor of the guest; the other one leaves time to the server. The guest may have set the drive's
feature Interrupt Coalescing. Its clock is the TSC: every look at another one leaves the emulated
processor. The drive is memory (`--null`), or with --flash a model of flash with the clock
`virtual`. Prints rates, ratios, the processor time of a read (machine and server), and the guest's
scheduler; asserts only that nothing fails. tests/live/test_guest_speed.py runs it for a moment.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from tests.live.guest import processor_s
from tests.live.pcie_guest import OURS, QEMUS, Machine, machine

BYTES = 64 << 20
"""Range of the reads, which was written before."""
MEMORY = Path("/dev/shm")
"""A folder of tmpfs."""
SECOND = "nvme2"
COALESCED = "nvme0, coalesced"
AGGREGATE = 0x010F
"""Interrupt Coalescing: after 16 completions or 100 us."""
CLOCK = "tsc=reliable clocksource=tsc"
"""Words for the guest's kernel, which else takes the HPET."""
CORES = 2
"""Processors of the guest. With one there is one queue, for which Linux takes mq-deadline."""
NAMES = {OURS: "served drive, doorbell buffers", COALESCED: "the same, interrupts coalesced",
         SECOND: "served drive, registers", QEMUS: "QEMU's own device"}  # fmt: skip
DEVICES = {name: OURS if name == COALESCED else name for name in NAMES}


class Rates(NamedTuple):
    """What was measured."""

    scheduler: str
    """The guest's I/O scheduler of all three."""
    rates: dict[str, list[float]]
    """Reads per second by controller, in the order of the rounds."""
    processor: dict[str, list[float]]
    """Processor time of the machine and the controller's server for a read, us."""

    def ratios(self, name: str) -> list[float]:
        """Rates of a controller over those of QEMU's own device in the same round."""
        return [ours / own for ours, own in zip(self.rates[name], self.rates[QEMUS], strict=True)]


def measure(rounds: int, seconds: float, flash: bool = False) -> Rates:
    kind = [] if flash else ["--null"]
    with machine(MEMORY, *kind, second=[*kind, "--no-doorbell-buffers"], cores=CORES,
                 boot=CLOCK) as pc:  # fmt: skip
        schedulers = set()
        for name in dict.fromkeys(DEVICES.values()):
            pc.ok(f"dd if=/dev/zero of=/dev/{name}n1 bs=1M count={BYTES >> 20} oflag=direct")
            schedulers.add(pc.ok(f"cat /sys/block/{name}n1/queue/scheduler").strip())
        (scheduler,) = schedulers
        rates: dict[str, list[float]] = {name: [] for name in NAMES}
        processor: dict[str, list[float]] = {name: [] for name in NAMES}
        server = {OURS: pc.server, COALESCED: pc.server, SECOND: pc.second}
        for _ in range(rounds):
            for name in NAMES:
                used = [pc.guest.process.pid]
                if (own := server.get(name)) is not None:
                    used.append(own.pid)
                setting = AGGREGATE if name == COALESCED else 0
                pc.ok(f"nvme set-feature /dev/{OURS} -f 8 -v {setting}")
                rate, time_us = window(pc, DEVICES[name], used, seconds)
                rates[name].append(rate)
                processor[name].append(time_us)
        return Rates(scheduler, rates, processor)


def window(pc: Machine, name: str, used: list[int], seconds: float) -> tuple[float, float]:
    """(reads per second, processor time of a read in us) of a controller for ``seconds``, in the
    middle of a run of fio, whose start takes long in an emulated machine. ``used``: processes."""
    words = (f"--rw=randread --iodepth=16 --norandommap --size={BYTES} --time_based --runtime=600 "
             "--cpus_allowed=0")  # fmt: skip
    with pc.load(f"{name}n1", words):
        begin, time_s, reads = time.monotonic(), sum(map(processor_s, used)), pc.reads(f"{name}n1")
        time.sleep(seconds)
        done = pc.reads(f"{name}n1") - reads
        time_s = sum(map(processor_s, used)) - time_s
        rate = done / (time.monotonic() - begin)
        pc.ok("killall -INT fio")
    pc.load_ended()
    return rate, 1e6 * time_s / max(done, 1)


def show(found: Rates) -> None:
    print(f"guest's scheduler: {found.scheduler}")
    print(
        "device                            k IOPS  ratio to QEMU's: median  least  most   us/read"
    )
    for name, title in NAMES.items():
        ratios = found.ratios(name)
        rate, ratio = statistics.median(found.rates[name]), statistics.median(ratios)
        print(f"{title:32} {rate / 1e3:7.1f}  {ratio:23.2f} {min(ratios):6.2f} {max(ratios):5.2f} "
              f"{statistics.median(found.processor[name]):9.0f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--flash", action="store_true", help="serve a model of flash, not memory")
    asked = parser.parse_args()
    show(measure(asked.rounds, asked.seconds, asked.flash))


if __name__ == "__main__":
    main()
