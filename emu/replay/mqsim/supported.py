"""Features of MQSim that this project's drive does not support; their use is rejected.

Owns the list of these features. Does not own the checks of values that MQSim also rejects
(ssdconfig.py, workload_xml.py). Source: the use of each parameter in to_engine.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ondie.emu.replay.mqsim import sata
from ondie.emu.replay.mqsim.ssdconfig import Drive
from ondie.emu.replay.mqsim.workload_xml import Scenario


@dataclass(frozen=True)
class Refusal:
    """A feature of MQSim whose use is rejected.

    ``attribute``: field of Drive. ``refused``: function that returns True if a run uses the
    feature. ``words``: a phrase that states the supported values.
    """

    attribute: str
    refused: Callable[[Drive, Scenario], bool]
    words: str


REFUSALS: list[Refusal] = [
    Refusal(
        "enabled_preconditioning",
        lambda d, s: sata.used(d) and d.enabled_preconditioning and len(s.flows) > 1,
        "with SATA, only false is supported if there are several flows",
    ),
    Refusal("use_copyback_for_gc", lambda d, s: d.use_copyback_for_gc, "only false is supported"),
]
"""Features of MQSim that are rejected. Remove an entry when the drive supports its feature."""


def check_supported(drive: Drive, scenario: Scenario) -> None:
    """Raise InputError if a run uses a rejected feature; the message states the file, the parameter
    and the supported values of the first such feature."""
    for row in REFUSALS:
        if row.refused(drive, scenario):
            raise drive.bad(row.attribute, row.words)
