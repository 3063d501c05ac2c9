"""HostInterface_Type SATA: one queue for all flows, and a drive that does not distinguish between
flows.

Owns the changes that this interface makes to the flows. Does not own the queue (nvme/sata_hba.py).
Source: MQSim's source. Its SATA interface has one stream over all planes and addresses, of priority
class HIGH, with the caching mode of the first flow. The host's adapter takes SATA_Processing_Delay
for each request and each completion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from ondie.emu.replay.mqsim.address_partition import Range
from ondie.emu.replay.mqsim.flow import Flow
from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.mqsim.workload_xml import FlowParameters

F = TypeVar("F", bound=FlowParameters)


def used(drive: Drive) -> bool:
    """Return True if the drive has a SATA interface instead of an NVMe interface."""
    return drive.host_interface_type == "SATA"


def seen(drive: Drive, flows: Sequence[F]) -> list[F]:
    """Return the parameters of the flows as the drive's host interface applies them.

    With SATA, all flows use all planes, priority class HIGH and the first flow's caching mode.
    """
    if not used(drive):
        return list(flows)
    return [
        dataclasses.replace(
            flow,
            channel_ids=tuple(range(drive.flash_channel_count)),
            chip_ids=tuple(range(drive.chip_no_per_channel)),
            die_ids=tuple(range(drive.die_no_per_chip)),
            plane_ids=tuple(range(drive.plane_no_per_die)),
            priority_class="HIGH",
            device_level_data_caching_mode=flows[0].device_level_data_caching_mode,
        )
        for flow in flows
    ]


def streams(drive: Drive, flows: Sequence[Flow]) -> list[Flow]:
    """Return the streams that the drive distinguishes.

    These are the flows, or, with SATA, a single stream over the addresses of all flows.
    """
    if not used(drive):
        return list(flows)
    whole = Range(flows[0].range.first, flows[-1].range.last)
    return [dataclasses.replace(flows[0], range=whole)]
