"""The element SSDDevice of MQSim's result file, and the file's layout.

Owns the names, the order and the number formats of the items. Does not own the values
(device_statistics.py, counters) or the element Host (result_xml.py).
Source: MQSim's result file. Means over zero transactions are written as MQSim writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ondie.emu.nand import scheduler_statistics as scheduler
from ondie.emu.replay.mqsim.device_statistics import DeviceStatistics, Queue
from ondie.emu.replay.statistics import PS_PER_US

CLASSES = ("URGENT", "HIGH", "MEDIUM", "LOW")
NO_MEAN = str(1 << 63)
"""Mean waiting time that MQSim writes for a queue without transactions: NaN cast to an integer."""
NOT_A_NUMBER = "-nan"
OTHER_QUEUES = {
    "Mapping_Read_TR_Queue": scheduler.MAP_READS,
    "Mapping_Write_TR_Queue": scheduler.MAP_WRITES,
    "GC_Read_TR_Queue": scheduler.GC_READS,
    "GC_Write_TR_Queue": scheduler.GC_WRITES,
    "GC_Erase_TR_Queue": scheduler.GC_ERASES,
}
OPERATIONS = ("Read", "Program", "Erase")
NEVER_ISSUED = (
    "Issued_Flash_Interleaved_Read_CMD",
    "Issued_Flash_Copyback_Read_CMD",
    "Issued_Flash_Multiplane_Copyback_Read_CMD",
    "Issued_Flash_Interleaved_Program_CMD",
    "Issued_Flash_Interleaved_Multiplane_Program_CMD",
    "Issued_Flash_Copyback_Program_CMD",
    "Issued_Flash_Multiplane_Copyback_Program_CMD",
    "Issued_Flash_Interleaved_Erase_CMD",
    "Issued_Flash_Interleaved_Multiplane_Erase_CMD",
)
"""Items of MQSim's result file that count commands which this emulator never issues: interleaved
commands, and copy-back commands, whose use is rejected."""
OF_STREAM = ("Turnaround", "Execution", "Transfer", "Waiting")


class Lines:
    """Lines of an XML file in MQSim's layout: indented by tabs, one value or element per line."""

    def __init__(self) -> None:
        self.lines = ['<?xml version="1.0" encoding="us-ascii"?>']
        self.open: list[str] = []

    def begin(self, tag: str) -> None:
        """Write the start tag of an element that contains other elements."""
        self.lines.append("\t" * len(self.open) + f"<{tag}>")
        self.open.append(tag)

    def end(self) -> None:
        """Write the end tag of the most recently begun element."""
        tag = self.open.pop()
        self.lines.append("\t" * len(self.open) + f"</{tag}>")

    def values(self, values: Mapping[str, str]) -> None:
        """Write an element for each item of ``values``, which maps element names to texts."""
        indent = "\t" * (len(self.open) + 1) + " "
        self.lines += [f"{indent}<{name}>{value}</{name}>" for name, value in values.items()]

    def element(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Write an element that has only attributes."""
        inner = "".join(f' {name}="{value}"' for name, value in attributes.items())
        self.lines.append("\t" * len(self.open) + f"<{tag}{inner}/>")

    def content(self) -> bytes:
        """Return the content of the XML file."""
        return ("\n".join(self.lines) + "\n").encode("us-ascii")


def host_interface(out: Lines, device: DeviceStatistics, one_stream: bool) -> None:
    """Write the mean times of the host's transactions (us) for each flow, or once for all flows
    together if ``one_stream`` is True (SATA)."""
    out.begin("SSDDevice.HostInterface")
    out.values({"Name": "SSDDevice.HostInterface"})
    for i, stream in enumerate(device.streams):
        if not one_stream:
            out.begin("SSDDevice.IO_Stream")
            out.values({"Stream_ID": str(i)})
        for kind, sums in zip(("Read", "Write"), stream, strict=True):
            count, execution, transfer, waiting = map(int, sums)
            times = (execution + transfer + waiting, execution, transfer, waiting)
            out.values(
                {
                    f"Average_{kind}_Transaction_{name}_Time": str(
                        time // count // PS_PER_US if count else 0
                    )
                    for name, time in zip(OF_STREAM, times, strict=True)
                }
            )
        if not one_stream:
            out.end()
    out.end()


def commands(device: DeviceStatistics) -> dict[str, str]:
    """Return, by MQSim's names, the number of issued flash commands of each kind, and the number of
    programs of translation pages that were queued."""
    counts = {}
    for name, (single, several) in zip(OPERATIONS, device.issued, strict=True):
        counts[f"Issued_Flash_{name}_CMD"] = str(int(single))
        counts[f"Issued_Flash_Multiplane_{name}_CMD"] = str(int(several))
    written = sum(queues[scheduler.MAP_WRITES].entered for queues in device.queues)
    return counts | {"Issued_Flash_Program_CMD_For_Mapping": str(written)}


def lookups(device: DeviceStatistics, counters: Mapping[str, int], ideal: bool) -> dict[str, str]:
    """Return the number of look-ups in the mapping table by MQSim's names.

    ``ideal``: True if the whole table is in DRAM, so that each page of the host and each moved page
    is a hit. As in MQSim, CMT_Misses excludes misses that read a translation page, and a moved page
    whose entry is not cached counts only in Total_CMT_Queries.
    """
    (read, read_miss, read_other), (write, write_miss, write_other), moves = (
        map(int, row) for row in device.lookup
    )
    moved, _, not_cached = moves
    if ideal:
        read, write = counters["host_read_pages"], counters["user_writes"]
        moved = counters["gc_writes"]
    write += moved
    reads, writes = read + read_miss + read_other, write + write_miss + write_other
    numbers = {
        "CMT_Hits": read + write,
        "CMT_Hits_For_Read": read,
        "CMT_Hits_For_Write": write,
        "CMT_Misses": read_other + write_other,
        "CMT_Misses_For_Read": read_miss + read_other,
        "CMT_Misses_For_Write": write_miss + write_other,
        "Total_CMT_Queries": reads + writes + not_cached,
        "Total_CMT_Queries_For_Reads": reads,
        "Total_CMT_Queries_For_Writes": writes,
    }
    return {name: str(number) for name, number in numbers.items()}


def scheduler_queues(out: Lines, device: DeviceStatistics) -> None:
    """Write the elements with the statistics of the transaction queues of all chips."""
    out.begin("SSDDevice.TSU")
    for name, first in (
        ("User_Read_TR_Queue", scheduler.READS),
        ("User_Write_TR_Queue", scheduler.WRITES),
    ):
        for at, queues in _chips(device):
            if not device.ranked:
                out.element(f"SSDDevice.TSU.{name}", _queue(f"{name}@{at}", queues[first]))
                continue
            for rank, of_class in enumerate(CLASSES):
                out.element(
                    f"SSDDevice.TSU.{name}.Priority.{of_class}",
                    _queue(f"{name}@{at}@{of_class}", queues[first + rank]),
                )
    for name, slot in OTHER_QUEUES.items():
        for at, queues in _chips(device):
            out.element(f"SSDDevice.TSU.{name}", _queue(f"{name}@{at}", queues[slot]))
    out.end()


def _chips(device: DeviceStatistics) -> Iterator[tuple[str, tuple[Queue, ...]]]:
    """Yield (name "channel@chip" as in MQSim, queues) for each chip."""
    for i, queues in enumerate(device.queues):
        yield f"{i // device.chips}@{i % device.chips}", queues


def _queue(name: str, queue: Queue) -> dict[str, str]:
    """Return the attributes of a queue's element; waiting times are in us."""
    mean = NO_MEAN if queue.mean_wait is None else str(int(queue.mean_wait) // PS_PER_US)
    return {
        "Name": name,
        "No_Of_Transactions_Enqueued": str(queue.entered),
        "No_Of_Transactions_Dequeued": str(queue.left),
        "Avg_Queue_Length": f"{queue.mean_length:.6f}",
        "Max_Queue_Length": str(queue.longest),
        "STDev_Queue_Length": NOT_A_NUMBER if queue.deviation is None else f"{queue.deviation:.6f}",
        "Avg_Transaction_Waiting_Time": mean,
        "Max_Transaction_Waiting_Time": str(queue.longest_wait // PS_PER_US),
    }


def flash_chips(out: Lines, device: DeviceStatistics) -> None:
    """Write the fractions of time in which each chip executes, transfers and is idle. As in MQSim,
    a chip that executes without a transfer counts as idle."""
    for i, chip in enumerate(device.of_chips):
        idle = 1 - chip.overlap - chip.transfer
        out.element(
            "SSDDevice.FlashChips",
            {
                "ID": f"@{i // device.chips}@{i % device.chips}",
                "Fraction_of_Time_in_Execution": f"{chip.execution:.6f}",
                "Fraction_of_Time_in_DataXfer": f"{chip.transfer:.6f}",
                "Fraction_of_Time_in_DataXfer_and_Execution": f"{chip.overlap:.6f}",
                "Fraction_of_Time_Idle": f"{idle:.6f}",
            },
        )
