"""Order in which MQSim starts its flows: the order of a hash table of all components of its model.

Owns the names of these components, their hash values and the order of the table. Does not own the
first requests of a flow (flow.py). Source: MQSim's engine and the names of its components; the hash
table and the 64-bit hash function (MurmurHash2) of the GNU C++ library, with which MQSim is built
on Linux.

The flows of closed loops all issue their first requests at 1 ns, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence

from ondie.emu.replay.mqsim.flow import Flow
from ondie.emu.replay.mqsim.ssdconfig import Drive

SIZES = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753)
"""Numbers of buckets of the GNU C++ library's hash table, in the order in which the table grows. A
table with n buckets holds up to n entries."""
MULTIPLIER = 0xC6A4A7935BD1E995
SEED = 0xC70F6907
WORD = (1 << 64) - 1


def hash_of(name: str) -> int:
    """Return the 64-bit hash value (MurmurHash2) of ``name``, the name of a component."""
    data = name.encode()
    whole = len(data) & ~7
    value = SEED ^ (len(data) * MULTIPLIER & WORD)
    for at in range(0, whole, 8):
        part = int.from_bytes(data[at : at + 8], "little") * MULTIPLIER & WORD
        value = (value ^ ((part ^ part >> 47) * MULTIPLIER & WORD)) * MULTIPLIER & WORD
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & WORD
    value = (value ^ value >> 47) * MULTIPLIER & WORD
    return value ^ value >> 47


def insert(entries: list[int], buckets: int, value: int) -> None:
    """Insert a hash value into a table of ``buckets`` buckets, whose entries are in one list.

    A new entry becomes the first entry of its bucket, or the first of the list if its bucket is
    empty.
    """
    for at, entry in enumerate(entries):
        if entry % buckets == value % buckets:
            entries.insert(at, value)
            return
    entries.insert(0, value)


def table(names: Sequence[str], buckets: int = 1) -> tuple[list[int], int]:
    """Return the hash values of ``names`` in the iteration order of a hash table into which the
    names are inserted one after another, and the final number of buckets of the table. ``buckets``:
    initial number of buckets; 1 for a new table."""
    entries: list[int] = []
    for name in names:
        if len(entries) == buckets or buckets == 1:
            buckets = next((size for size in SIZES if size > buckets), SIZES[-1])
            before, entries = entries, []
            for value in before:
                insert(entries, buckets, value)
        insert(entries, buckets, hash_of(name))
    return entries, buckets


def names_of(drive: Drive, flows: Sequence[Flow]) -> list[str]:
    """Return the names of the components of MQSim's model, in the order in which it creates
    them."""
    ssd, host = "SSDDevice", "Host"
    chips = [
        f"{ssd}.Channel.{channel}.Chip.{chip}"
        for channel in range(drive.flash_channel_count)
        for chip in range(drive.chip_no_per_channel)
    ]
    parts = ("PHY", "FTL", "FTL.TSU", "FTL.AddressMappingUnit", "FTL.GCandWLUnit", "DataCache")
    names = [ssd, *chips, *(f"{ssd}.{part}" for part in parts), f"{ssd}.HostInterface", host]
    names += [f"{host}.PCIeLink", *(flow.name for flow in flows)]
    return names


def start_order(drive: Drive, flows: Sequence[Flow], scenario: int = 1) -> list[int]:
    """Return the indices of the flows in the order in which MQSim starts them.

    ``scenario``: number of the scenario, from 1. MQSim's hash table of components keeps its number
    of buckets from one scenario to the next. Earlier scenarios are assumed to have as many flows as
    this scenario.
    """
    names = names_of(drive, flows)
    entries, buckets = table(names)
    if scenario > 1:
        entries, _ = table(names, buckets)
    places = {value: at for at, value in enumerate(entries)}
    return sorted(range(len(flows)), key=lambda i: places[hash_of(names[i - len(flows)])])
