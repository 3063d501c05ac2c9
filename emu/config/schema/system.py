"""The system: its name, drives and nominal capacity.

Owns the leaves of section `system`. Does not own the rules between values (config/rules/).
Source: the presets give a source for each value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec


@dataclass(frozen=True, slots=True)
class System:
    name: Annotated[str, Spec("name of the configuration, printed with the results")]
    devices: Annotated[int, Spec("number of drives in the system", least=1)]
    capacity_bytes: Annotated[int, Spec("nominal capacity of one drive", least=1)]
