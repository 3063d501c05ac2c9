"""The configuration of one system (host, link and drives) as a tree of plain values.

Owns the sections by name. Does not own the origin of the numbers (config/config.py).
Source: this project.
"""

from __future__ import annotations

from dataclasses import dataclass

from ondie.emu.config.schema.cache import Cache, Dram
from ondie.emu.config.schema.ecc import Ecc, Errors
from ondie.emu.config.schema.energy import Energy
from ondie.emu.config.schema.flash import Flash
from ondie.emu.config.schema.ftl import Ftl
from ondie.emu.config.schema.host import Host
from ondie.emu.config.schema.isp import Isp
from ondie.emu.config.schema.link import Frontend, Link
from ondie.emu.config.schema.pe import Pe
from ondie.emu.config.schema.system import System
from ondie.emu.config.schema.tunnel import Tunnel


@dataclass(frozen=True)
class Tree:
    """Values of a configuration, one attribute per section. In a section, the suffix of an
    attribute's name, such as _bytes, is the base unit of the attribute."""

    system: System
    host: Host
    link: Link
    frontend: Frontend
    flash: Flash
    ecc: Ecc
    errors: Errors
    ftl: Ftl
    cache: Cache
    dram: Dram
    isp: Isp
    pe: Pe
    tunnel: Tunnel
    energy: Energy
