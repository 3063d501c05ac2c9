"""Configuration of the TCP-over-NVMe tunnel: data format, commands and relays.

Owns the leaves of section `tunnel`. Does not own the cost of the tunnel (nvme/tunnel/cost.py).
Source: Stannis (HeydariGorji et al., DAC 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec


@dataclass(frozen=True, slots=True)
class Tunnel:
    payload_bytes: Annotated[
        int,
        Spec(
            "data buffer of one NVMe command of the tunnel (from drive to host, 4 B of it hold the "
            "length); 0: no tunnel"
        ),
    ]
    outstanding: Annotated[int, Spec("commands in flight in each direction")]
    command_ps: Annotated[
        int, Spec("time from submission to completion of one command, excluding host CPU time")
    ]
    notify_ps: Annotated[
        int, Spec("delay until the host's relay is notified that a drive has data")
    ]
    notification: Annotated[
        str,
        Spec(
            "notifications of a drive; burst: one when data arrives and no data was left, "
            "command: one for each command needed",
            choices=("burst", "command"),
        ),
    ]
    mtu_bytes: Annotated[int, Spec("largest IP packet of the virtual network devices")]
    concatenate: Annotated[bool, Spec("one command may carry several packets")]
    relay_command_ps: Annotated[
        int, Spec("host CPU time of the relay per command and per notification")
    ]
    relay_bytes_per_s: Annotated[
        int, Spec("copy rate of one relay thread; 0: copies take no time", key="relay_copy")
    ]
    relay_threads: Annotated[int, Spec("relay threads that run concurrently, for all drives")]
    relay_core_mw: Annotated[
        int, Spec("power of one relay core; contained in the host's power and never added to it")
    ]
