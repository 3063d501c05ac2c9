"""Features of a controller: the table of features, and their current, default and saved values.

Owns the checks of Set Features, the field Select of Get Features, and the values. Does not own the
effects of a value on the write cache (io_commands.py), events (events.py), queues (queues.py) or
interrupts (the transport).
Source: NVM Express Base Specification 2.0, sections 5.15 (Get Features) and 5.27 (Set Features);
NVM Command Set Specification 1.0, section 4.1.3 (Error Recovery, Write Atomicity Normal).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from ondie.emu.controller.actions import Action, Do
from ondie.emu.controller.capabilities import Capabilities
from ondie.emu.controller.health import WARNING_KELVIN
from ondie.emu.controller.namespaces import BROADCAST, Namespaces
from ondie.emu.controller.status_code import Code, Refused
from ondie.emu.nvme.wire import Sqe

(
    ARBITRATION, POWER_MANAGEMENT, TEMPERATURE_THRESHOLD, ERROR_RECOVERY, WRITE_CACHE, QUEUE_COUNT,
    INTERRUPT_COALESCING, INTERRUPT_VECTOR, WRITE_ATOMICITY, EVENT_CONFIGURATION, KEEP_ALIVE,
    COMMAND_SET_PROFILE, HOST_IDENTIFIER,
) = 0x01, 0x02, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0F, 0x19, 0x81  # fmt: skip
FID_BYTE, CDW11_BYTE = 40, 44
SAVE = 1 << 31
CURRENT, DEFAULT, SAVED, SUPPORTED = range(4)
"""Values of the field Select of Get Features."""
OVER, UNDER = 0, 1
"""Types of a temperature threshold (field THSEL)."""
NAMESPACE_NOTICES = 1 << 8
SMART_WARNINGS = 0xFF
NEVER_UNDER = 0
KEEP_ALIVE_UNIT_MS = 100
"""Granularity of Keep Alive timeouts, ms: Keep Alive Support (KAS = 1) times 100 ms. A timeout is
rounded up to a multiple of this value."""

Setting = tuple[int, int]
"""Key of a feature value: (feature identifier, scope). The scope is a namespace identifier, an
interrupt vector, or the type of a temperature threshold (OVER or UNDER). It is 0 if the feature has
only one value."""


class Feature(NamedTuple):
    """Row of the table of features: title, default value and properties of a feature."""

    title: str
    default: Callable[[Capabilities, int], int]
    """Function that returns the default value. Its arguments are the capabilities and the scope of
    the value (see Setting)."""
    mask: int
    """Mask of the bits of the feature value (command dword 11) that are not reserved."""
    saveable: bool = False
    of_namespace: bool = False
    changeable: bool = True


def _zero(capabilities: Capabilities, part: int) -> int:
    return 0


FEATURES = {
    ARBITRATION: Feature("Arbitration", lambda capabilities, part: 0b111, 0xFFFF_FF07, True),
    POWER_MANAGEMENT: Feature("Power Management", _zero, 0xFF),
    TEMPERATURE_THRESHOLD: Feature(
        "Temperature Threshold",
        lambda capabilities, part: WARNING_KELVIN if part == OVER else NEVER_UNDER,
        0x003F_FFFF,
        True,
    ),
    ERROR_RECOVERY: Feature("Error Recovery", _zero, 0x0001_FFFF, True, of_namespace=True),
    WRITE_CACHE: Feature("Volatile Write Cache", lambda capabilities, part: 1, 1, True),
    QUEUE_COUNT: Feature(
        "Number of Queues",
        lambda capabilities, part: (capabilities.io_queues - 1) * 0x0001_0001,
        0xFFFF_FFFF,
    ),
    INTERRUPT_COALESCING: Feature("Interrupt Coalescing", _zero, 0xFFFF, True),
    INTERRUPT_VECTOR: Feature("Interrupt Vector Configuration", lambda capabilities, part: part,
                              0x0001_FFFF),
    WRITE_ATOMICITY: Feature("Write Atomicity Normal", _zero, 1, True),
    EVENT_CONFIGURATION: Feature("Asynchronous Event Configuration", _zero, 0xFFFF_FFFF),
    KEEP_ALIVE: Feature("Keep Alive Timer", _zero, 0xFFFF_FFFF),
    COMMAND_SET_PROFILE: Feature("I/O Command Set Profile", _zero, 0x1FF),
    HOST_IDENTIFIER: Feature("Host Identifier", _zero, 1),
}  # fmt: skip


class Features:
    """Values of the features of one controller.

    ``saved``: values that survive a controller reset and, if the transport preserves them, a power
    cycle. Set Features with the bit Save, and :meth:`forget`, change this dictionary in place.
    """

    def __init__(
        self,
        capabilities: Capabilities,
        namespaces: Namespaces,
        saved: dict[Setting, int] | None = None,
    ) -> None:
        self.capabilities = capabilities
        self.namespaces = namespaces
        self.saved: dict[Setting, int] = {} if saved is None else saved
        self.current: dict[Setting, int] = {}
        self.host_identifier = bytes(16)
        self.reset()

    def reset(self) -> None:
        """Set every feature to its saved value, or to its default if no value is saved."""
        self.current = dict(self.saved)
        self.host_identifier = bytes(16)

    def forget(self, nsid: int) -> None:
        """Drop the current and saved values of the deleted namespace ``nsid``."""
        for values in (self.current, self.saved):
            values.pop((ERROR_RECOVERY, nsid), None)

    def value(self, feature: int, part: int = 0) -> int:
        """Return the current value of a feature. ``part``: scope of the value (see Setting)."""
        default = FEATURES[feature].default(self.capabilities, part)
        return self.current.get((feature, part), default)

    @property
    def cache_enabled(self) -> bool:
        """True if the volatile write cache exists and is enabled. The data of a completed write may
        then be only in the cache."""
        return self.capabilities.volatile_cache and bool(self.value(WRITE_CACHE))

    def temperature_warning(self, kelvin: int) -> bool:
        """Return True if the temperature ``kelvin`` is at or above the over-temperature threshold,
        or at or below the under-temperature threshold."""
        over = self.value(TEMPERATURE_THRESHOLD, OVER)
        under = self.value(TEMPERATURE_THRESHOLD, UNDER)
        return kelvin >= over or kelvin <= under

    # --- commands

    def _row(self, sqe: Sqe) -> tuple[int, Feature]:
        """Return (identifier, row of the table) of the feature that a command selects. Raises
        Refused if the feature is not supported."""
        feature = sqe.cdw10 & 0xFF
        row = FEATURES.get(feature)
        if row is None or (feature == WRITE_CACHE and not self.capabilities.volatile_cache):
            raise Refused(Code.INVALID_FIELD, FID_BYTE)
        return feature, row

    def _part(self, sqe: Sqe, feature: int) -> int:
        """Return the scope of the value that a command gets or sets (see Setting). Raises Refused
        if the sensor, the threshold type or the interrupt vector is invalid."""
        if feature == TEMPERATURE_THRESHOLD:
            sensor, part = sqe.cdw11 >> 16 & 0xF, sqe.cdw11 >> 20 & 0b11
            if sensor != 0 or part > UNDER:  # the composite temperature alone
                raise Refused(Code.INVALID_FIELD, CDW11_BYTE + 2)
            return part
        if feature == INTERRUPT_VECTOR:
            if sqe.cdw11 & 0xFFFF >= self.capabilities.vectors:
                raise Refused(Code.INVALID_FIELD, CDW11_BYTE)
            return sqe.cdw11 & 0xFFFF
        return 0

    def get(self, sqe: Sqe) -> tuple[int, bytes]:
        """Execute Get Features; return (dword 0 of the completion, data). Raises Refused if a field
        of the command is invalid."""
        feature, row = self._row(sqe)
        select = sqe.cdw10 >> 8 & 0b111
        if select == SUPPORTED:
            return row.saveable | row.of_namespace << 1 | row.changeable << 2, b""
        if select > SUPPORTED:
            raise Refused(Code.INVALID_FIELD, FID_BYTE + 1)
        if row.of_namespace:
            self.namespaces.active(sqe.nsid)
            part = sqe.nsid
        else:
            part = self._part(sqe, feature)
        if feature == HOST_IDENTIFIER:
            held = self.host_identifier if select == CURRENT else bytes(16)
            return 0, held[: identifier_bytes(sqe)]
        default = row.default(self.capabilities, part)
        values = {CURRENT: self.current, DEFAULT: {}, SAVED: self.saved}[select]
        return values.get((feature, part), default), b""

    def set(
        self, sqe: Sqe, data: bytes, queues_exist: bool, vectors: Collection[int] = ()
    ) -> tuple[int, list[Action]]:
        """Execute Set Features; return (dword 0 of the completion, actions).

        ``data``: data that the host sends, of the size given by :func:`data_bytes`.
        ``queues_exist``: True if there are I/O queues. ``vectors``: interrupt vectors of the I/O
        completion queues. Raises Refused if a field of the command is invalid.
        """
        feature, row = self._row(sqe)
        if sqe.cdw10 & SAVE and not row.saveable:
            raise Refused(Code.FEATURE_NOT_SAVEABLE, FID_BYTE + 3)
        if not row.of_namespace and sqe.nsid not in (0, BROADCAST):
            self.namespaces.check_identifier(sqe.nsid)
            raise Refused(Code.FEATURE_NOT_NAMESPACE, 4)
        if row.of_namespace and sqe.nsid == BROADCAST:
            parts = self.namespaces.identifiers(attached=True)
        elif row.of_namespace:
            parts = [self.namespaces.active(sqe.nsid).nsid]
        else:
            parts = [self._part(sqe, feature)]
        if feature == INTERRUPT_VECTOR and parts[0] not in vectors:
            raise Refused(Code.INVALID_FIELD, CDW11_BYTE)
        value = self._checked(feature, sqe.cdw11 & row.mask, queues_exist)
        actions = []
        if feature == HOST_IDENTIFIER:
            self.host_identifier = data[: identifier_bytes(sqe)].ljust(16, b"\0")
            return 0, [Action(Do.REGISTER_HOST, host=self.host_identifier)]
        if feature == WRITE_CACHE and self.value(WRITE_CACHE) and not value:
            actions.append(Action(Do.FLUSH))
        for part in parts:
            self.current[feature, part] = value
            if sqe.cdw10 & SAVE:
                self.saved[feature, part] = value
        return value if feature == QUEUE_COUNT else 0, actions

    def _checked(self, feature: int, value: int, queues_exist: bool) -> int:
        """Return the feature value to store if the host sets ``value`` (command dword 11 without
        reserved bits). Raises Refused if the value is not supported, or if I/O queues exist when
        the host sets Number of Queues."""
        if feature == POWER_MANAGEMENT and value & 0x1F:  # there is one power state
            raise Refused(Code.INVALID_FIELD, CDW11_BYTE)
        if feature == TEMPERATURE_THRESHOLD:
            return value & 0xFFFF
        if feature == ERROR_RECOVERY and value >> 16:  # DULBE is not supported
            raise Refused(Code.INVALID_FIELD, CDW11_BYTE + 2)
        if feature == QUEUE_COUNT:
            if queues_exist:
                raise Refused(Code.SEQUENCE_ERROR)
            if 0xFFFF in (value & 0xFFFF, value >> 16):
                raise Refused(Code.INVALID_FIELD, CDW11_BYTE)
            most = self.capabilities.io_queues - 1
            return min(value & 0xFFFF, most) | min(value >> 16, most) << 16
        if feature == EVENT_CONFIGURATION and value & ~(SMART_WARNINGS | NAMESPACE_NOTICES):
            raise Refused(Code.INVALID_FIELD, CDW11_BYTE + 1)
        if feature == KEEP_ALIVE:
            rounded = -(-value // KEEP_ALIVE_UNIT_MS) * KEEP_ALIVE_UNIT_MS
            return rounded if rounded < 1 << 32 else value
        if feature == COMMAND_SET_PROFILE and value:
            raise Refused(Code.COMMAND_SET_REJECTED, CDW11_BYTE)
        return value


def identifier_bytes(sqe: Sqe) -> int:
    """Return the size of a Host Identifier, bytes: 16 if the bit EXHID is set, otherwise 8."""
    return 16 if sqe.cdw11 & 1 else 8


def data_bytes(sqe: Sqe) -> int:
    """Return the number of data bytes that Get or Set Features transfers."""
    return identifier_bytes(sqe) if sqe.cdw10 & 0xFF == HOST_IDENTIFIER else 0
