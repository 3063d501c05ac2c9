"""Keys of the configuration tree: one record per leaf, with its type, unit and meaning.

Owns the sections in their order and the table KEYS derived from them (`flash.t_read` and its
attribute `t_read_ps`). Does not own the leaves (the other files of this folder) or numbers:
presets/*.toml state every leaf.
Source: this project.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from ondie.emu.config.schema.cache import Cache, Dram
from ondie.emu.config.schema.ecc import Ecc, Errors
from ondie.emu.config.schema.energy import Energy
from ondie.emu.config.schema.flash import Flash
from ondie.emu.config.schema.ftl import Ftl
from ondie.emu.config.schema.host import Host
from ondie.emu.config.schema.isp import Isp
from ondie.emu.config.schema.link import Frontend, Link
from ondie.emu.config.schema.pe import Pe
from ondie.emu.config.schema.spec import Spec
from ondie.emu.config.schema.system import System
from ondie.emu.config.schema.tunnel import Tunnel
from ondie.emu.units import Kind, kind_of

SECTIONS: dict[str, type[Any]] = {
    "system": System,
    "host": Host,
    "link": Link,
    "frontend": Frontend,
    "flash": Flash,
    "ecc": Ecc,
    "errors": Errors,
    "ftl": Ftl,
    "cache": Cache,
    "dram": Dram,
    "isp": Isp,
    "pe": Pe,
    "tunnel": Tunnel,
    "energy": Energy,
}


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the tree: its section, name, type and description.

    `type` is int, float, str or bool. If `table` is True, the key is a table of values of this
    type.
    """

    name: str
    section: str
    attribute: str
    type: type
    kind: Kind | None
    spec: Spec
    table: bool = False

    @property
    def unit(self) -> str | None:
        """Base unit of the value, such as "ps" or "bytes"; None if the value has no unit."""
        return self.kind.suffix if self.kind else None


def _keys() -> dict[str, Key]:
    keys: dict[str, Key] = {}
    for section, cls in SECTIONS.items():
        hints = get_type_hints(cls, include_extras=True)
        for field in dataclasses.fields(cls):
            annotated, spec = get_args(hints[field.name])
            table = annotated not in (int, float, str, bool)
            kind = kind_of(field.name) if annotated is int else None
            short = field.name.removesuffix("_" + kind.suffix) if kind else field.name
            name = f"{section}.{spec.key or short}"
            if name in keys:
                raise TypeError(f"two leaves are called {name}: set key in the Spec of one leaf")
            keys[name] = Key(
                name, section, field.name, float if table else annotated, kind, spec, table
            )
    return keys


KEYS: dict[str, Key] = _keys()
ALIASES: dict[str, str] = {f"{key.section}.{key.attribute}": name for name, key in KEYS.items()}
