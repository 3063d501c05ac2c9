"""Faults that `ondie tunnel up --inject` injects between the host's relay and a drive's controller.

Owns the loss, duplication and delay of commands and completions, and the recovery: the timeout of
lost commands, and resets of the controller. Does not own the reissue of commands
(nvme/tunnel/flight.py) or the queue (admin_queue.py).
Source: this project. As with the NVMe driver of Linux, a command that has timed out may still be
executed later, so its identifier and its buffer stay in use until the controller is reset.

Faults affect whole commands submitted by the relay for the tunnel, and whole completions posted by
the controller for the tunnel. They do not affect the status command.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, fields
from typing import NamedTuple

from ondie.emu.live.admin_queue import CIDS, STATUS_CID, VfioAdminQueue
from ondie.emu.live.host_end import PS_PER_NS, Port
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.nvme.tunnel.framing import PS_PER_MS, Data, Format
from ondie.emu.nvme.wire import Command, Completion
from ondie.emu.units import InputError, digits, quoted

HOLD_MS = 20
"""Maximum time for which a drive holds a receive command while no packets are available, ms, if
faults are injected. It is short because the loss of a command is detected only after this time plus
LOST_MS."""
LOST_MS = 50
"""Time after which a command counts as lost, in addition to HOLD_MS, ms. :func:`lost_ps` adds the
time that commands take."""
MOST_DELAY_S = 0.005
TURN_MS = 2
"""Interval at which delayed and lost commands are checked, ms."""
COPIES = range(50, STATUS_CID)
"""Command identifiers of the copies of duplicated commands. The relay uses lower identifiers for
all other commands."""
MOST_LOST = 0.5
"""Maximum sum of the probabilities of loss, duplicate and reorder. The limit ensures that enough
commands arrive."""
EXAMPLE = "loss=0.01,duplicate=0.01,reorder=0.05,reset=0.0001,seed=1"
assert STATUS_CID < CIDS


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Probabilities of the faults that are injected into commands and completions of the tunnel.
    :meth:`of` creates an object from text."""

    loss: float = 0.0
    """Probability that a command or completion does not arrive."""
    duplicate: float = 0.0
    """Probability that a command or completion arrives twice; the copy of a command has another
    identifier."""
    reorder: float = 0.0
    """Probability that a command or completion arrives after a delay of up to MOST_DELAY_S, and
    thus possibly after later ones."""
    reset: float = 0.0
    """Probability that the controller is reset after a command."""
    seed: int = 1
    """Seed of the random number generator; each drive has a different sequence of random
    numbers."""

    @classmethod
    def of(cls, text: str, option: str = "--inject") -> Faults:
        """Return the faults that ``text`` specifies: items KEY=VALUE, separated by commas.
        ``option``: name of the option in error messages. Raises InputError if an item is not of
        this form, if a key is unknown or repeated, if a value is not a number or is out of range,
        or if the sum of the probabilities of loss, duplicate and reorder exceeds MOST_LOST."""
        keys = [each.name for each in fields(cls)]
        found: dict[str, float] = {}
        for each in text.split(","):
            key, equals, value = each.partition("=")
            if not equals or key not in keys:
                raise InputError(f"{option}: {quoted(each)} must be KEY=VALUE with one of the keys "
                                 f"{', '.join(keys)}; for example {EXAMPLE}")  # fmt: skip
            if key in found:
                raise InputError(f"{option}: {key} is given twice; give it once")
            found[key] = _number(key, value, option)
        seed = int(found.pop("seed", cls.seed))
        faults = cls(**found, seed=seed)
        if faults.loss + faults.duplicate + faults.reorder > MOST_LOST:
            raise InputError(f"{option} {text}: the sum of loss, duplicate and reorder must be at "
                             f"most {MOST_LOST}")  # fmt: skip
        return faults

    def __str__(self) -> str:
        shares = [f"{each.name}={getattr(self, each.name):g}" for each in fields(self)
                  if each.name != "seed"]  # fmt: skip
        return ",".join([*shares, f"seed={self.seed}"])


def _number(key: str, value: str, option: str) -> float:
    """Return the value of ``key`` as a number. Raises InputError if the value is not a number or is
    out of range."""
    if key == "seed":
        try:
            number = digits(value)
        except ValueError:
            number = -1
        if not 0 <= number < 1 << 32:
            raise InputError(f"{option}: seed = {quoted(value)}: must be a whole number from 0 to "
                             f"{(1 << 32) - 1}")  # fmt: skip
        return number
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 <= share <= MOST_LOST:
        raise InputError(f"{option}: {key} = {quoted(value)}: must be a probability from 0 to "
                         f"{MOST_LOST}")  # fmt: skip
    return share


class _Delayed(NamedTuple):
    """A delayed command or completion."""

    item: Command | Completion
    due: float
    """Time at which the delay ends, s of the monotonic clock."""
    passed: int
    """Number of items that had passed when the delay began."""


class _Way:
    """One direction of a queue. ``name``: "commands" or "completions". ``counts``: counters to
    which the object adds: NAME_lost, and NAME_reordered for delayed items that other items have
    overtaken, where NAME is ``name``."""

    def __init__(self, name: str, faults: Faults, rng: random.Random, counts: Counter[str]) -> None:
        self._name, self._faults, self._rng, self._counts = name, faults, rng, counts
        self._delayed: list[_Delayed] = []
        self._passed = 0

    def clear(self) -> None:
        """Drop all delayed items."""
        self._delayed.clear()

    def fate(self, item: Command | Completion) -> int:
        """Decide at random whether an item passes now. Return the number of times that it passes,
        0, 1 or 2. With 0, the item is lost or delayed."""
        faults, counts, name = self._faults, self._counts, self._name
        chance = self._rng.random()
        if chance < faults.loss:
            counts[f"{name}_lost"] += 1
            return 0
        chance -= faults.loss
        if chance < faults.reorder:
            due = time.monotonic() + self._rng.uniform(0, MOST_DELAY_S)
            self._delayed.append(_Delayed(item, due, self._passed))
            return 0
        self._passed += 1
        return 1 + (chance - faults.reorder < faults.duplicate)

    def due(self) -> list[Command | Completion]:
        """Return the delayed items whose delay has ended."""
        now = time.monotonic()
        found = [each for each in self._delayed if each.due <= now]
        if found:
            self._delayed = [each for each in self._delayed if each.due > now]
        for each in found:
            self._counts[f"{self._name}_reordered"] += self._passed > each.passed
        self._passed += len(found)
        return [each.item for each in found]


class FaultyQueue:
    """Admin queue (admin_queue.AdminQueue) that injects faults into commands and completions.
    ``number``: number of the drive."""

    def __init__(self, queue: VfioAdminQueue, faults: Faults, number: int) -> None:
        self._queue, self._faults = queue, faults
        self._rng = random.Random(f"{faults.seed} {number}")
        self.counts: Counter[str] = Counter()
        """Counters of the injected faults: NAME_lost, NAME_duplicated and NAME_reordered, where
        NAME is "commands" or "completions"."""
        self._down = _Way("commands", faults, self._rng, self.counts)
        self._up = _Way("completions", faults, self._rng, self.counts)
        self._copies: set[int] = set()
        """Identifiers in COPIES that are in use."""
        self.reset_due = False

    def fileno(self) -> int:
        """Return the event descriptor of the controller's interrupt."""
        return self._queue.fileno()

    def submit(self, commands: list[Command]) -> None:
        """Submit ``commands``, into which faults are injected, and earlier commands whose delay has
        ended (see admin_queue.AdminQueue)."""
        passing: list[Command] = []
        for each in commands:
            if _cid(each.sqe, 2) == STATUS_CID:
                passing.append(each)
                continue
            times = self._down.fate(each)
            passing += [each] * (times > 0)
            passing += self._copy(each) if times > 1 else []
            if self._rng.random() < self._faults.reset:
                self.reset_due = True
        passing += [each for each in self._down.due() if isinstance(each, Command)]
        self._queue.submit(passing)

    def _copy(self, command: Command) -> list[Command]:
        """Return a list with a copy of a command that has another identifier. The list is empty if
        all identifiers in COPIES are in use."""
        for cid in COPIES:
            if cid not in self._copies:
                self._copies.add(cid)
                self.counts["commands_duplicated"] += 1
                entry = command.sqe
                return [Command(entry[:2] + cid.to_bytes(2, "little") + entry[4:], command.data)]
        return []

    def completions(self) -> list[Completion]:
        """Return the completions that have arrived since the last call, after the injection of
        faults, and earlier completions whose delay has ended (see admin_queue.AdminQueue)."""
        found: list[Completion] = []
        for each in self._queue.completions():
            cid = _cid(each.cqe, 12)
            if cid in self._copies:
                self._copies.discard(cid)
            elif cid == STATUS_CID:
                found.append(each)
            else:
                times = self._up.fate(each)
                self.counts["completions_duplicated"] += times > 1
                found += [each] * times
        return found + [each for each in self._up.due() if isinstance(each, Completion)]

    def drain(self) -> None:
        """Clear the interrupt without reading completions."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fileno(), 8)

    def reset(self) -> None:
        """Reset the controller and discard all delayed commands and completions. Raises InputError
        as VfioAdminQueue.reset does."""
        self._queue.reset()
        self._down.clear()
        self._up.clear()
        self._copies.clear()
        self.reset_due = False


def _cid(entry: Data, at: int) -> int:
    """Return the command identifier at offset ``at`` of a queue entry."""
    return entry[at] | entry[at + 1] << 8


def lost_ps(form: Format, cost: TunnelCost | None) -> int:
    """Return the time after which a command counts as lost, in addition to the time for which a
    drive holds it, ps. It is LOST_MS plus, if ``cost`` is not None, twice the time that the data of
    a full queue takes at the lower of the two link rates in ``cost``."""
    queue_ps = 0.0
    if cost is not None:
        rate = min(cost.up.link, cost.down.link)
        queue_ps = 2 * form.outstanding * form.payload / rate * 1e12
    return LOST_MS * PS_PER_MS + int(queue_ps)


class FaultyPort(Port):
    """Host's end of the tunnel of one drive, with a queue that injects faults. ``timeout_ps``: time
    after which a command counts as lost, in addition to the hold time, ps (:func:`lost_ps`).
    ``take_over``: True to close a tunnel that another relay has left open. :meth:`tick` must be
    called every TURN_MS.

    A separate thread resets the controller, because a drive may not respond for a long time. No
    commands are submitted during the reset.
    """

    def __init__(
        self, queue: FaultyQueue, form: Format, address: bytes, timeout_ps: int,
        take_over: bool = False,
    ) -> None:  # fmt: skip
        self.faulty = queue
        self._resetting: threading.Thread | None = None
        self._failed = ""
        """Reason why the controller could not be reset, or ""."""
        super().__init__(queue, form, address, take_over, range(COPIES.start), timeout_ps)

    def pump(self) -> None:
        """Submit the commands that may be submitted now. Do nothing while a reset is in
        progress."""
        if not self.busy:
            super().pump()

    def work(self) -> list[Data]:
        """Process completions (see Port.work). While a reset is in progress, only clear the
        interrupt."""
        if self.busy:
            self.faulty.drain()
            return []
        return super().work()

    def tick(self) -> None:
        """Treat commands as lost after their timeout. Reset the controller if the fault injection
        has requested a reset, or if lost commands leave too few free identifiers. :meth:`work` must
        be called afterwards."""
        if self.gone:
            return
        if self._resetting is not None:
            self._end_reset(self._resetting)
            return
        self.relay.tick(time.monotonic_ns() * PS_PER_NS)
        needed = 2 * self.relay.form.outstanding + 1
        if self.faulty.reset_due or self.relay.lost + needed > COPIES.start:
            self.reset()

    def reset(self) -> None:
        """Start a reset of the controller. The tunnel continues when :meth:`tick` detects that the
        reset has ended."""
        self.busy = True
        self._resetting = threading.Thread(target=self._reset, daemon=True)
        self._resetting.start()

    def _reset(self) -> None:
        """Reset the controller; runs in a separate thread."""
        try:
            self.faulty.reset()
        except Exception as error:  # noqa: BLE001 - the drive is given up, whatever it is
            self._failed = str(error) if isinstance(error, InputError) else repr(error)

    def _end_reset(self, thread: threading.Thread) -> None:
        """Check whether the reset, which runs in ``thread``, has ended. After a successful reset,
        the tunnel continues; after a failed reset, the tunnel ends."""
        if thread.is_alive():
            return
        self.busy, self._resetting = False, None
        if self._failed:
            self._end(self._failed)
            return
        self.counts["resets"] += 1
        self.relay.reset()
        if self._asking:
            self._asked, self._asking = True, False

    def report(self) -> dict[str, int | str]:
        """Return the counters of both ends of the tunnel (see Port.report), of the injected faults
        and of the resets."""
        counts = self.faulty.counts
        found = super().report()
        for way in ("commands", "completions"):
            for what in ("lost", "duplicated", "reordered"):
                found[f"injected_{way}_{what}"] = counts[f"{way}_{what}"]
        return found | {"resets": self.counts["resets"]}
