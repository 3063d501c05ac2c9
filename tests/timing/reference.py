"""Owns: a flash scheduler as plain as it gets: one channel, a list of dies, and time that goes from
one event to the next. Does not: share code with the engine, or care for speed.
Source: own; the rules are those of the docstrings.
"""

from collections import deque
from dataclasses import dataclass, field

READ, PROGRAM, ERASE = range(3)


@dataclass
class Op:
    """One operation on one plane. ``at``: when it arrives; ``end``: when it was done."""

    kind: int
    die: int
    at: int = 0
    command: int = 0
    """Command and address cycles on the channel."""
    data: int = 0
    """Time of its data on the channel: behind the array for a read, before it for a program."""
    array: int = 0
    end: int = -1


@dataclass
class Die:
    """Takes one operation at a time, reads before programs before erases, each in order of arrival.
    A read keeps its die until its data have left."""

    queues: tuple[deque[Op], ...] = field(default_factory=lambda: (deque(), deque(), deque()))
    busy: Op | None = None
    free_at: int = 0
    """End of a program's or an erase's array time."""
    ready_at: int = -1
    """When the data of a read are ready; -1: none wait."""

    def next(self) -> Op | None:
        """What it would take now."""
        if self.busy is not None:
            return None
        return next((queue[0] for queue in self.queues if queue), None)


def channel(ops: list[Op], dies: int, commands_first: bool, window: int = 0) -> None:
    """Run the operations of one channel; sets their ends.

    The idle channel goes to, in this order: with ``commands_first``, dies in turn that want to send
    a read or an erase; the data that have been ready longest; dies in turn that want to send
    anything. At one instant what ends comes first, then the channel is given away, then what
    arrives joins, and the channel is given away again if it is still idle. With a ``window``,
    operations do not arrive by the clock: each die has that many of its own in its queues, and the
    next one joins when one is done.
    """
    state = [Die() for _ in range(dies)]
    coming = sorted(ops, key=lambda op: op.at)
    if window:
        lists = [deque(op for op in ops if op.die == d) for d in range(dies)]
        coming = []
        for die, mine in zip(state, lists, strict=True):
            for _ in range(min(window, len(mine))):
                join(die, mine.popleft())
    waiting = deque(coming)
    ready: list[Die] = []  # reads in the array or done with it, in order of their ends
    bus_until, bus_die, bus_out = 0, None, False
    turn = 0
    now = 0

    def done(die: Die, end: int) -> None:
        die.busy.end = end
        mine = lists[die.busy.die] if window else None
        die.busy = None
        if mine:
            join(die, mine.popleft())

    def give_away() -> None:
        nonlocal bus_until, bus_die, bus_out, turn
        if bus_die is not None:
            return
        order = [(turn + i) % dies for i in range(dies)]
        asking = [d for d in order if state[d].next() is not None]
        commands = [d for d in asking if state[d].next().kind != PROGRAM]
        out = next((die for die in ready if die.ready_at <= now), None)
        if commands_first and commands:
            chosen = commands[0]
        elif out is not None:
            ready.remove(out)
            bus_until, bus_die, bus_out = now + out.busy.data, out, True
            return
        elif asking:
            chosen = asking[0]
        else:
            return
        die = state[chosen]
        op = die.next()
        die.queues[op.kind].popleft()
        die.busy = op
        turn = (chosen + 1) % dies
        on_bus = op.command + (op.data if op.kind == PROGRAM else 0)
        bus_until, bus_die, bus_out = now + on_bus, die, False
        if op.kind == READ:
            die.ready_at = bus_until + op.array
            place = sum(other.ready_at <= die.ready_at for other in ready)
            ready.insert(place, die)
        else:
            die.free_at = bus_until + op.array

    give_away()
    while True:
        times = [bus_until] if bus_die is not None else []
        times += [waiting[0].at] if waiting else []
        times += [d.free_at for d in state if d.busy is not None and d.busy.kind != READ]
        times += [d.ready_at for d in ready if d.ready_at > now]
        if not times:
            return
        now = min(times)
        if bus_die is not None and bus_until == now:
            die, bus_die = bus_die, None
            if bus_out:
                done(die, now)
        for die in state:
            if die.busy is not None and die.busy.kind != READ and die.free_at == now:
                done(die, now)
        give_away()
        while waiting and waiting[0].at == now:
            op = waiting.popleft()
            join(state[op.die], op)
        give_away()


def join(die: Die, op: Op) -> None:
    """An operation joins the queue of its kind."""
    die.queues[op.kind].append(op)
