"""A served drive against a dictionary of sectors: several clients, any requests, many in flight,
with every mode of the data cache, and in memory; stopped and started from its store."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.serve import nbd_client as nbd
from tests.serve import served
from tests.serve.nbd_client import Client
from tests.state.test_service import MODES

SECTORS, UNIT = 256, 8
"""Sectors of 512 bytes to which requests go, and those of a mapping unit of 4 KiB."""
CLIENTS = 3
SLOTS = st.integers(0, CLIENTS - 1)
PLACES = st.integers(0, SECTORS - 1)
COUNTS = st.one_of(st.integers(1, 24), st.just(100))


class Machine(RuleBasedStateMachine):
    """Requests in flight at the same time touch different sectors, so that their order does not
    matter. Sectors of a TRIM are unknown until they are written: None."""

    folder: Path
    make = staticmethod(served.memory)
    values: dict[str, str] = {}

    def __init__(self) -> None:
        super().__init__()
        self.context = self.make(self.folder, **self.values)
        self.server, self.path = self.context.__enter__()
        self.clients = [self.connect() for _ in range(CLIENTS)]
        self.model: list[bytes | None] = [bytes(512)] * SECTORS
        self.flying: list[dict[int, tuple[int, int, int, bytes]]] = [{} for _ in range(CLIENTS)]
        self.cookie = 0

    def connect(self) -> Client:
        return Client(self.path)

    def send(
        self, slot: int, kind: int, at: int, count: int, flags: int = 0, fill: int = 0
    ) -> None:
        """Send a request, after the replies to those in flight that touch its units."""
        count = min(count, SECTORS - at)
        first, last = at // UNIT, -(-(at + count) // UNIT)
        for other in range(CLIENTS):
            if any(
                begin // UNIT < last and first < -(-(begin + size) // UNIT)
                for _, begin, size, _ in self.flying[other].values()
            ):
                self.settle(other)
        self.cookie += 1
        data = b"".join(bytes([fill, at + n & 255]) * 256 for n in range(count))
        data = data if kind == nbd.WRITE else b""
        self.clients[slot].send(kind, at * 512, count * 512, flags, self.cookie, data)
        self.flying[slot][self.cookie] = kind, at, count, data

    def settle(self, slot: int) -> None:
        """Take all replies to a client."""
        while self.flying[slot]:
            found = self.clients[slot].answer()
            kind, at, count, data = self.flying[slot].pop(found.cookie)
            assert not found.error, (kind, at, count)
            if kind == nbd.READ:
                for n in range(count):
                    right = self.model[at + n]
                    assert right is None or found.data[n * 512 : n * 512 + 512] == right
            elif kind == nbd.BLOCK_STATUS:
                self.check_extents(at, count, found.extents)
            elif kind == nbd.WRITE:
                for n in range(count):
                    self.model[at + n] = data[n * 512 : n * 512 + 512]
            elif kind in (nbd.TRIM, nbd.WRITE_ZEROES):
                zero = bytes(512) if kind == nbd.WRITE_ZEROES else None
                self.model[at : at + count] = [zero] * count

    def check_extents(self, at: int, count: int, extents: tuple[tuple[int, int], ...]) -> None:
        """What is a hole reads as zeros."""
        sector = at
        for size, flags in extents:
            assert size and size % 512 == 0 and flags in (0, nbd.HOLE | nbd.ZERO)
            for n in range(size // 512):
                assert not flags or self.model[sector + n] in (None, bytes(512))
            sector += size // 512
        assert sector == at + count

    @rule(slot=SLOTS, at=PLACES, count=COUNTS)
    def read(self, slot: int, at: int, count: int) -> None:
        self.send(slot, nbd.READ, at, count)

    @rule(slot=SLOTS, at=PLACES, count=COUNTS, fua=st.booleans(), fill=st.integers(1, 255))
    def write(self, slot: int, at: int, count: int, fua: bool, fill: int) -> None:
        self.send(slot, nbd.WRITE, at, count, nbd.FUA if fua else 0, fill)

    @rule(slot=SLOTS, at=PLACES, count=COUNTS,
          flags=st.sampled_from([0, nbd.FUA, nbd.NO_HOLE, nbd.NO_HOLE | nbd.FUA]))  # fmt: skip
    def write_zeroes(self, slot: int, at: int, count: int, flags: int) -> None:
        self.send(slot, nbd.WRITE_ZEROES, at, count, flags)

    @rule(slot=SLOTS, at=PLACES, count=COUNTS, flags=st.sampled_from([0, nbd.FUA]))
    def trim(self, slot: int, at: int, count: int, flags: int) -> None:
        self.send(slot, nbd.TRIM, at, count, flags)

    @rule(slot=SLOTS, at=PLACES, count=COUNTS)
    def cache(self, slot: int, at: int, count: int) -> None:
        self.send(slot, nbd.CACHE, at, count)

    @rule(slot=SLOTS, at=PLACES, count=COUNTS)
    def block_status(self, slot: int, at: int, count: int) -> None:
        self.send(slot, nbd.BLOCK_STATUS, at, count)

    @rule(slot=SLOTS)
    def flush(self, slot: int) -> None:
        self.settle(slot)
        assert self.clients[slot].ask(nbd.FLUSH) == nbd.Answer(0)

    @rule(slot=SLOTS)
    def reconnect(self, slot: int) -> None:
        self.settle(slot)
        self.clients[slot].send(nbd.DISC)
        assert self.clients[slot].closed()
        self.clients[slot].close()
        self.clients[slot] = self.connect()

    @rule(slot=SLOTS)
    def settle_one(self, slot: int) -> None:
        self.settle(slot)

    @invariant()
    def few_in_flight(self) -> None:
        """No client waits for itself: what is in flight fits the buffers of its socket."""
        for slot in range(CLIENTS):
            if len(self.flying[slot]) > 6:
                self.settle(slot)

    def read_all(self) -> None:
        for slot in range(CLIENTS):
            self.settle(slot)
        self.send(0, nbd.READ, 0, SECTORS)
        self.settle(0)

    def teardown(self) -> None:
        try:
            self.read_all()
        finally:
            for each in self.clients:
                each.close()
            self.context.__exit__(None, None, None)


class InMemory(Machine):
    """A drive in memory."""


class OnFlash(Machine):
    """A drive with a model of flash, in one mode of the data cache, whose laws hold at the end."""

    make = staticmethod(served.drive)

    def teardown(self) -> None:
        drive = self.server.drive
        super().teardown()
        drive.check()


def run(kind: type[Machine], folder: Path, examples: int, **values: str) -> None:
    machine = type(kind.__name__, (kind,), {"folder": folder, "values": values})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=30, deadline=None,
                          derandomize=True, database=None),
    )  # fmt: skip


def test_in_memory(tmp_path, counts):
    run(InMemory, tmp_path, counts(15, 100))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", MODES)
def test_on_flash(tmp_path, mode, counts):
    run(OnFlash, tmp_path, counts(4, 20), mode=mode)


@given(st.lists(st.tuples(st.sampled_from(["write", "zero", "trim", "stop"]), PLACES,
                          st.integers(1, 16)), max_size=12))  # fmt: skip
@settings(max_examples=4)
def test_stopped_and_started_from_its_store(tmp_path_factory, steps):
    """Everything is there, unwritten sectors are zeros, and trimmed units too: the clean stop needs
    no flush by a client."""
    folder = tmp_path_factory.mktemp("store")
    model: dict[int, bytes] = {}
    pending = [*steps, ("stop", 0, 1)]
    while pending:
        with served.drive(folder, "write back", {"store": str(folder / "store")}) as (_, path):
            one = Client(path)
            while pending:
                kind, at, count = pending.pop(0)
                if kind == "stop":
                    break
                count = min(count, SECTORS - at)
                if kind == "write":
                    one.write(at * 512, bytes([at % 255 + 1]) * 512 * count)
                elif kind == "zero":
                    one.ask(nbd.WRITE_ZEROES, at * 512, count * 512)
                else:
                    one.ask(nbd.TRIM, at // 8 * 4096, 4096)
                    at, count = at // 8 * 8, 8
                for sector in range(at, at + count):
                    fill = bytes([at % 255 + 1]) if kind == "write" else b"\0"
                    model[sector] = fill * 512
            one.close()
        with served.drive(folder, "write back", {"store": str(folder / "store")}) as (_, path):
            one = Client(path)
            found = one.read(0, SECTORS * 512)
            for sector in range(SECTORS):
                assert found[sector * 512 : sector * 512 + 512] == model.get(sector, bytes(512))
            one.close()
