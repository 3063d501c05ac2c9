"""Configuration of the host interface: PCIe link, NVMe messages and queue limits, front end.

Owns the leaves of sections `link` and `frontend`. Does not own the cost of a command (nvme/).
Source: NVMe and PCIe specifications.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec


@dataclass(frozen=True, slots=True)
class Link:
    down_bytes_per_s: Annotated[int, Spec("payload rate from host to drive", least=1)]
    up_bytes_per_s: Annotated[int, Spec("payload rate from drive to host", least=1)]
    latency_ps: Annotated[int, Spec("one-way latency of a transfer")]
    lanes: Annotated[
        int, Spec("link width in bytes; a message is padded to a multiple of this", least=1)
    ]
    packet_bytes: Annotated[
        int, Spec("largest payload of one packet; 0: link.down and link.up are payload rates")
    ]
    packet_overhead_bytes: Annotated[int, Spec("header and framing bytes of one packet")]
    tick_ps: Annotated[
        int,
        Spec(
            "time unit of the link: the time of a message is rounded down to a multiple; 0: no "
            "rounding"
        ),
    ]
    uplink_bytes_per_s: Annotated[
        int, Spec("rate of the link that all drives share; 0: no shared link")
    ]
    fj_per_bit: Annotated[int, Spec("energy of the link, per port", key="energy")]


@dataclass(frozen=True, slots=True)
class Frontend:
    command_ps: Annotated[
        int, Spec("firmware time per NVMe command, on one core, one command at a time")
    ]
    read_delay_ps: Annotated[
        int,
        Spec("firmware latency of a read command, in which the drive starts further commands"),
    ]
    write_delay_ps: Annotated[
        int,
        Spec("firmware latency of any other command, in which the drive starts further commands"),
    ]
    queue_depth: Annotated[int, Spec("largest number of commands that the drive holds", least=1)]
    max_transfer_bytes: Annotated[int, Spec("largest transfer of one command (MDTS)", least=512)]
    fetch_limit: Annotated[
        int,
        Spec(
            "largest number of commands per queue pair that the drive processes at once; 0: no "
            "limit"
        ),
    ]
    doorbell_bytes: Annotated[
        int, Spec("bytes of the host write that rings a doorbell; 0: not modeled")
    ]
    request_bytes: Annotated[
        int,
        Spec(
            "bytes of the read request with which the drive fetches from host memory; 0: not "
            "modeled"
        ),
    ]
    entry_bytes: Annotated[
        int, Spec("bytes of a submission queue entry on the link; 0: not modeled")
    ]
    completion_bytes: Annotated[
        int, Spec("bytes of a completion queue entry on the link; 0: not modeled")
    ]
    transfer: Annotated[
        str,
        Spec(
            "unit of data transfer on the link; page: each page as soon as it is ready, "
            "command: all data of a command together",
            choices=("page", "command"),
        ),
    ]
