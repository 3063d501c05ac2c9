"""Commands of the host's relay in flight: identifiers, lost commands, and their repetition.

Owns the matching of completions to commands. Does not own the meaning of commands (host.py).
Source: this project. Repeating a command of the tunnel has no further effect (protocol.py), so a
command succeeds if any of its attempts succeeds.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from ondie.emu.nvme import wire
from ondie.emu.nvme.tunnel.framing import Data
from ondie.emu.nvme.tunnel.protocol import TRANSIENT
from ondie.emu.nvme.wire import Command, Completion, Cqe, Sqe
from ondie.emu.units import InputError

OPCODES = {
    "open": wire.TUNNEL,
    "close": wire.TUNNEL,
    "write": wire.TUNNEL_SEND,
    "receive": wire.TUNNEL_RECEIVE,
    "event": wire.ASYNC_EVENT_REQUEST,
}
"""NVMe opcode of each kind of tunnel command."""
MOST_TRIES = 100
"""Number of attempts after which a tunnel command fails, if the drive has rejected each attempt
with a retryable status."""

Key = tuple[str, int]
"""Key of a command in flight: its kind (see OPCODES), and the number of its block."""


@dataclass(slots=True)
class _Active:
    """Command of the host's relay that is not completed yet, with its attempts."""

    entry: bytes
    """Submission queue entry of the command; its identifier is set at each attempt."""
    data: Data
    cid: int
    """Identifier of the last attempt of the command, or -1 if the command is to be issued again."""
    tries: int = 0
    """Number of attempts of the command that the drive rejected with a retryable status."""


class Flight:
    """Commands of the host's relay that are in flight.

    ``cids``: identifiers that may be used. ``need``: minimum number of identifiers. ``timeout_ps``:
    time after which :meth:`lose_old` treats a command as lost; 0 if commands cannot be lost. Raises
    InputError if there are fewer than ``need`` identifiers.
    """

    def __init__(self, cids: range, need: int, timeout_ps: int) -> None:
        if len(cids) < need:
            raise InputError(
                f"tunnel relay: has {len(cids)} command identifiers; must have at least {need}"
            )
        self.timeout_ps = timeout_ps
        self.issued: Counter[str] = Counter()
        self.strays = 0
        self.repeated = 0
        self._cids = cids
        self._next = 0
        self._active: dict[Key, _Active] = {}
        self._counts: Counter[str] = Counter()
        self._under_way: dict[int, tuple[Key, int]] = {}  # by identifier: key, time of the issue
        self._lost: dict[int, Key] = {}
        self._again: deque[Key] = deque()
        self._events = 0

    def count(self, kind: str) -> int:
        """Return the number of commands of kind ``kind`` (see OPCODES) that are not completed."""
        return self._counts[kind]

    def has(self, kind: str, number: int) -> bool:
        """Return True if the command of kind ``kind`` for block ``number`` is not completed."""
        return (kind, number) in self._active

    @property
    def lost(self) -> int:
        """Number of attempts that are treated as lost although the drive may still execute them. An
        attempt is one submission of a command."""
        return len(self._lost)

    @property
    def empty(self) -> bool:
        """True if no command is in flight, except commands that were given up as lost."""
        return not self._under_way and not self._active

    # --- issue

    def issue(self, kind: str, number: int, now: int, data: Data = b"", **fields: int) -> Command:
        """Create a tunnel command and return it. ``number``: number of its block; this method
        numbers event requests itself. ``now``: current time, ps. ``fields``: fields of the
        submission queue entry. At least one identifier must be free or held by a lost command."""
        if kind == "event":
            number = self._events = self._events + 1
        active = _Active(Sqe(OPCODES[kind], **fields).pack(), data, -1)
        self._active[kind, number] = active
        self._counts[kind] += 1
        return self._submit((kind, number), active, now)

    def _submit(self, key: Key, active: _Active, now: int) -> Command:
        cids, under_way, lost = self._cids, self._under_way, self._lost
        while True:
            cid = cids[self._next]
            self._next = (self._next + 1) % len(cids)
            if cid not in under_way and cid not in lost:
                break
            if len(under_way) + len(lost) >= len(cids):  # the oldest lost one
                cid = next(iter(lost))
                del lost[cid]
                break
        active.cid = cid
        under_way[cid] = key, now
        self.issued[key[0]] += 1
        entry = active.entry
        return Command(entry[:2] + cid.to_bytes(2, "little") + entry[4:], active.data)

    def again(self, now: int) -> list[Command]:
        """Return the commands that must be issued again at time ``now`` (ps), as new attempts."""
        found = []
        while self._again:
            key = self._again.popleft()
            active = self._active.get(key)
            if active is not None and active.cid < 0:
                self.repeated += 1
                found.append(self._submit(key, active, now))
        return found

    # --- loss

    def lose_old(self, now: int) -> None:
        """Mark commands issued more than the timeout before ``now`` (ps) as lost, so that
        :meth:`again` returns them. Event requests are never marked as lost."""
        first = now - self.timeout_ps
        for cid, (key, at) in list(self._under_way.items()):
            if at < first and key[0] != "event":
                del self._under_way[cid]
                self._lost[cid] = key
                self._repeat(key, cid)

    def lose_all(self) -> None:
        """Select all commands for a new attempt, because none of the issued attempts will be
        completed."""
        self._under_way.clear()
        self._lost.clear()
        for key, active in self._active.items():
            active.cid = -1
            self._again.append(key)

    def has_old(self, kind: str, now: int) -> bool:
        """Return True if a command of kind ``kind`` was issued more than the timeout before ``now``
        (ps)."""
        first = now - self.timeout_ps
        return any(key[0] == kind and at < first for key, at in self._under_way.values())

    def drop_old(self, kind: str, now: int) -> None:
        """Give up the commands of kind ``kind`` that were issued more than the timeout before
        ``now`` (ps)."""
        first = now - self.timeout_ps
        for cid, (key, at) in list(self._under_way.items()):
            if at < first and key[0] == kind:
                del self._under_way[cid]
                self._lost[cid] = key
                self._end(key)

    def forget(self, *kinds: str) -> None:
        """Give up the commands of the kinds ``kinds``: do not repeat them, and ignore their
        completions."""
        for key in [key for key in self._active if key[0] in kinds]:
            self._end(key)

    def _repeat(self, key: Key, cid: int) -> None:
        """Select a command for a new attempt if ``cid`` is the identifier of its last attempt."""
        active = self._active.get(key)
        if active is not None and active.cid == cid:
            active.cid = -1
            self._again.append(key)

    def _end(self, key: Key) -> None:
        if self._active.pop(key, None) is not None:
            self._counts[key[0]] -= 1

    # --- completions

    def completed(self, completion: Completion) -> tuple[str, int, Cqe] | None:
        """Return the kind and the number of the command that ``completion`` ends, and the
        completion queue entry. Return None if ``completion`` does not end a command."""
        if len(completion.cqe) != wire.CQE_BYTES:
            self.strays += 1
            return None
        cqe = Cqe.unpack(completion.cqe)
        key, _ = self._under_way.pop(cqe.cid, (None, 0))
        if key is None:
            key = self._lost.pop(cqe.cid, None)
        if key is None:
            self.strays += 1
            return None
        active = self._active.get(key)
        if active is None and key[0] == "event" and not cqe.status:
            return *key, cqe  # taken for lost, but what it says holds
        if active is None or (cqe.status and active.cid != cqe.cid):
            return None
        if cqe.status in TRANSIENT and key[0] != "event" and active.tries < MOST_TRIES:
            active.tries += 1
            self._repeat(key, cqe.cid)
            return None
        self._end(key)
        return *key, cqe
