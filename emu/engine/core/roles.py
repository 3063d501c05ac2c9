"""Roles of a transaction: the purpose of a flash operation, in addition to its kind and owner.

Owns the enumeration only. Does not own the owners (events.OWN, ROW, REQUEST, CACHED) or the
handlers that distinguish roles. Source: MQSim, which has one class per source of transactions.
"""

from enum import IntEnum


class Role(IntEnum):
    """Purpose of a transaction. REGISTERS and all later roles are those of operations that the
    controller performs for on-die computation.
    """

    NONE = 0  # plain read, write or erase; a page that collection moves, if the owner is OWN
    RESERVOIR = 1  # data of the reservoir, without ECC in the controller
    MERGING = 2  # a write that reads, or has read, the rest of its page (read-modify-write)
    TRIMMING = 3  # a command that carries a TRIM
    MAP_FETCH = 4  # reads a translation page for the transactions that wait for it
    MAP_BACK = 5  # reads a translation page, merges the dirty entries and writes it back
    PADDING = 6  # a program without data that completes a word line
    TRIM_MAP = 7  # a trim map that is programmed (ftl/trim_maps.py)
    SCRUB = 8  # reads a page to look for bit errors (ftl/refresh.py)
    REGISTERS = 9  # register data sent to the controller
    GRADIENT = 10  # a gradient that is programmed
    MADE = 11  # data made by the controller that are programmed
    MOVED = 12  # a super-page that moves to another die
