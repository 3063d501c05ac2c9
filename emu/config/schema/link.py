"""The host interface: PCIe link, NVMe messages and queue limits, front end.

Owns the leaves of the sections. Does not own the cost of a command (nvme/).
Source: NVMe and PCIe specifications.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec


@dataclass(frozen=True, slots=True)
class Link:
    down_bytes_per_s: Annotated[int, Spec("payload rate host to drive", least=1)]
    up_bytes_per_s: Annotated[int, Spec("payload rate drive to host", least=1)]
    latency_ps: Annotated[int, Spec("one-way latency of a transfer")]
    lanes: Annotated[
        int, Spec("bytes that cross side by side: messages are padded to them", least=1)
    ]
    packet_bytes: Annotated[int, Spec("largest payload of a packet; 0: rates are of payload")]
    packet_overhead_bytes: Annotated[int, Spec("header and framing of a packet")]
    tick_ps: Annotated[
        int, Spec("a message takes a whole number of these, rounded down; 0: any time")
    ]
    uplink_bytes_per_s: Annotated[int, Spec("link shared by all drives; 0: not shared")]
    fj_per_bit: Annotated[int, Spec("energy of the link, per port", key="energy")]


@dataclass(frozen=True, slots=True)
class Frontend:
    command_ps: Annotated[int, Spec("firmware time per NVMe command, one core, serial")]
    queue_depth: Annotated[int, Spec("commands the drive holds", least=1)]
    max_transfer_bytes: Annotated[int, Spec("largest command (MDTS)", least=512)]
    fetch_limit: Annotated[
        int, Spec("commands of a queue pair that the drive works on at most; 0: any number")
    ]
    doorbell_bytes: Annotated[int, Spec("write that announces or acknowledges an entry; 0: none")]
    request_bytes: Annotated[int, Spec("read request by which the drive fetches; 0: none")]
    entry_bytes: Annotated[int, Spec("submission queue entry on the link; 0: none")]
    completion_bytes: Annotated[int, Spec("completion queue entry on the link; 0: none")]
    transfer: Annotated[
        str,
        Spec(
            "data cross the link as pages are ready, or a whole command at once",
            choices=("page", "command"),
        ),
    ]
