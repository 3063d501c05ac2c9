"""Check that a processor is enabled only if its constants are set.

Owns the keys required by each kind of processor, and the error that lists missing constants. Does
not own the limits of these constants (processors.py).
Source: this project.

If a drive has no processor of some kind, its preset states 0, "none" or a default for the constants
of this kind, with a reference that begins with NOT_APPLICABLE. A simulation with such values would
be wrong: for example, a processing element would consume no energy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ondie.emu.config.leaf import Leaf
from ondie.emu.config.rules.conditions import PE, Condition, equal, value_of
from ondie.emu.config.schema.keys import KEYS
from ondie.emu.config.schema.tree import Tree
from ondie.emu.units import InputError, quoted

NOT_APPLICABLE = "does not apply"

OPTIONS = {
    "pe.protection": "none", "pe.randomiser": "none", "pe.cipher": "none", "pe.integrity": "none",
    "pe.rain": 0, "pe.atomicity": "none", "pe.narrow_values": 0,
}  # fmt: skip
"""Options of processing elements, and the value that disables each option."""


def _with_option(config: Tree) -> bool:
    return any(value_of(config, name) != off for name, off in OPTIONS.items())


@dataclass(frozen=True, slots=True)
class Processor:
    """A kind of processor: the condition under which it is enabled, and the keys that it requires.

    `keys` has an example value for each key.
    """

    enabled: Condition
    keys: Mapping[str, str]


ISP_KEYS = {
    "isp.flash": '"3.2 GB/s"', "dram.isp": '"512 MiB"', "energy.isp_core": '"300 mW"',
    "energy.isp_idle": '"50 mW"',
}  # fmt: skip
PE_KEYS = {
    "pe.clock_divider": "4", "pe.bus_values": "2", "pe.dispatch": '"lockstep"',
    "pe.protection": '"nan_comparator"', "ftl.reservoir_fraction": "0.5",
    "energy.pe_add": '"0.9 pJ"', "energy.pe_multiply": '"3.7 pJ"',
    "energy.register": '"160 fJ/bit"', "energy.pe_bus": '"500 fJ/bit"',
}  # fmt: skip
PROCESSORS = (
    Processor(
        equal("isp.kind", "cores"),
        {"isp.cores": "4", "isp.frequency": '"1.0 GHz"', "isp.ipc": "0.8", **ISP_KEYS},
    ),
    Processor(equal("isp.kind", "fpga"), {"isp.engine": '"8.2 GB/s"', **ISP_KEYS}),
    Processor(PE, PE_KEYS),
    Processor(
        Condition(
            tuple(OPTIONS),
            lambda config: config.pe.kind == "none" and _with_option(config),
            "an option of processing elements",
        ),
        {"pe.kind": '"per_plane"', **PE_KEYS},
    ),
)


def check_absent(config: Tree, leaves: Mapping[str, Leaf], where: str) -> None:
    """Raise InputError if an enabled processor needs constants that the drive does not have.

    The message names all of these constants, with their meaning and an example.
    """
    for processor in PROCESSORS:
        if not processor.enabled.holds(config):
            continue
        absent = [key for key in processor.keys if leaves[key].ref.startswith(NOT_APPLICABLE)]
        if absent:
            on = next(
                key for key in processor.enabled.keys if value_of(config, key) != OPTIONS.get(key)
            )
            asked = ", ".join(
                f"{key} = {processor.keys[key]} ({KEYS[key].spec.doc.partition(';')[0]})"
                for key in absent
            )
            raise InputError(
                f"{where}: {on} = {quoted(leaves[on].text)} requires constants that this drive "
                f"does not have; set all of them, for example {asked}"
            )
