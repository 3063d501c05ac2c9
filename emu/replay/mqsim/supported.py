"""What MQSim can and this project's drive cannot yet: refused by name, never passed over.

Owns the list. Does not own what makes no sense in MQSim either (drive.py, workload.py).
Source: what simulate.py makes of each parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ondie.emu.replay.mqsim import sata
from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.mqsim.workload_xml import Scenario


@dataclass(frozen=True)
class Refusal:
    """A parameter of the drive, when it is refused, and what is supported."""

    attribute: str
    refused: Callable[[Drive, Scenario], bool]
    words: str


REFUSALS: list[Refusal] = [
    Refusal(
        "enabled_preconditioning",
        lambda d, s: sata.used(d) and d.enabled_preconditioning and len(s.flows) > 1,
        "false is supported with SATA, or one flow",
    ),
    Refusal(
        "ideal_mapping_table",
        lambda d, s: not d.ideal_mapping_table and len(s.flows) > 1 and not sata.used(d),
        "true is supported, or one flow",
    ),
    Refusal("use_copyback_for_gc", lambda d, s: d.use_copyback_for_gc, "false is supported"),
]
"""A row goes when the drive has learnt it."""


def check(drive: Drive, scenario: Scenario) -> None:
    """InputError, naming file, parameter, value and what is supported, for the first refusal."""
    for row in REFUSALS:
        if row.refused(drive, scenario):
            raise drive.bad(row.attribute, row.words)
