"""The TCP-over-NVMe tunnel: format, commands, relays.

Owns the leaves of the section. Does not own its cost (nvme/tunnel/cost.py).
Source: Stannis (HeydariGorji et al., DAC 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec


@dataclass(frozen=True, slots=True)
class Tunnel:
    payload_bytes: Annotated[
        int, Spec("buffer of one of its NVMe commands, upward with 4 B of length; 0: no tunnel")
    ]
    outstanding: Annotated[int, Spec("commands in flight each way")]
    command_ps: Annotated[
        int, Spec("a command from submission to completion, the host's CPU apart")
    ]
    notify_ps: Annotated[int, Spec("until the host's relay knows that a drive has data")]
    notification: Annotated[
        str,
        Spec(
            "a drive signals when it has data after it had none, or for every command to come",
            choices=("burst", "command"),
        ),
    ]
    mtu_bytes: Annotated[int, Spec("largest IP packet of the pseudo network devices")]
    concatenate: Annotated[bool, Spec("a command may carry several packets")]
    relay_command_ps: Annotated[
        int, Spec("host CPU of the relay per command, and per notification")
    ]
    relay_bytes_per_s: Annotated[
        int, Spec("rate at which a thread of the relay copies; 0: no time", key="relay_copy")
    ]
    relay_threads: Annotated[int, Spec("threads of the relay at work at once, for all drives")]
    relay_core_mw: Annotated[
        int, Spec("a core that relays; inside the host's power, never added to it")
    ]
