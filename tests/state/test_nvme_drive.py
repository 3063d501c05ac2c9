"""A served drive behind the NVMe controller's tables: do commands do to the bytes what they say, in
batches, from several controllers; do the logs count what the drive has done; does an erase leave no
old byte? The transport is this file: entries and data in memory."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ondie.emu.controller.health_logs import DONE as SANITIZE_DONE
from ondie.emu.controller.health_logs import FAILED as SANITIZE_FAILED
from ondie.emu.controller.log_pages import OCP_HEALTH
from ondie.emu.controller.namespace_commands import HOST_SOFTWARE_FIELDS
from ondie.emu.controller.namespaces import Namespaces
from ondie.emu.drive import Drive
from ondie.emu.engine.core.counters import HOST_WRITE_BYTES
from ondie.emu.nvme.wire import Cqe, Sqe
from ondie.emu.serve import controller_state
from ondie.emu.serve.gate import Gate
from ondie.emu.serve.io_request import IoRequest, IoResult
from ondie.emu.serve.memory_drive import MemoryDrive
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.nvme_io import IoRunner
from ondie.emu.serve.served import ServedDrive
from ondie.emu.service import Service
from ondie.emu.units import InputError
from tests.state.test_service import MODES, SMALL
from tests.state.written import config

BLOCK = 512
FLUSH, WRITE, READ, UNCORRECTABLE, COMPARE, ZEROES, DEALLOCATE, VERIFY = (
    0, 1, 2, 4, 5, 8, 9, 12,
)  # fmt: skip
IDENTIFY, KEEP_ALIVE, IN_SANITIZE = 6, 0x18, 0x01D
FORMAT, SANITIZE, GET_LOG_PAGE, SET_FEATURES, GET_FEATURES, EVENT, ATTACH, MANAGE = (
    0x80, 0x84, 2, 9, 10, 12, 0x15, 0x0D,
)  # fmt: skip
CONFLICT, INTERNAL, RANGE, UNRECOVERED, MISCOMPARE = 0x003, 0x006, 0x080, 0x281, 0x285


class Side:
    """A controller of a drive, its events, and one runner."""

    def __init__(self, drive: NvmeDrive) -> None:
        self.drive = drive
        self.events: list[Cqe] = []
        self.happened = threading.Event()
        self.controller = drive.controller(self._post)
        self.runner = IoRunner(drive, self.controller)

    def _post(self, entries: tuple[Cqe, ...]) -> None:
        self.events += entries
        self.happened.set()

    def run(self, *commands: tuple[int, int, int] | IoRequest) -> list[IoResult]:
        """Run commands (opcode, first block, blocks) or requests."""
        return self.runner.run(
            [each if isinstance(each, IoRequest) else io(*each, cid=at)
             for at, each in enumerate(commands)]
        )  # fmt: skip

    def admin(self, opcode: int, data: bytes = b"", **fields: int) -> tuple[int, bytes]:
        """Status without Do Not Retry, and data, of an admin command."""
        reply = self.drive.execute(self.controller, Sqe(opcode, cid=9, **fields).pack(), data)
        assert not reply.actions
        return reply.entries[0].status & 0x7FF, reply.data

    def log(self, page: int, size: int = 512) -> bytes:
        status, data = self.admin(GET_LOG_PAGE, cdw10=page | (size // 4 - 1) << 16)
        assert status == 0
        return data


def io(opcode: int, first: int = 0, blocks: int = 1, data: bytes = b"", cid: int = 0,
       nsid: int = 1, flags: int = 0, cdw11: int = 0) -> IoRequest:  # fmt: skip
    word = blocks if opcode == DEALLOCATE else blocks - 1
    if opcode == DEALLOCATE:
        data = bytes(4) + blocks.to_bytes(4, "little") + first.to_bytes(8, "little")
        return IoRequest(1, Sqe(opcode, cid=cid, nsid=nsid, cdw11=4), data)
    sqe = Sqe(opcode, cid=cid, nsid=nsid, cdw10=first, cdw11=cdw11, cdw12=word | flags)
    return IoRequest(1, sqe, data)


def statuses(results: list[IoResult]) -> list[int]:
    return [each.cqe.status & 0x7FF for each in results]


@pytest.fixture
def served(request, tmp_path):
    """The small drive behind a service, with changes as parameters."""
    changes: dict[str, Any] = getattr(request, "param", {})
    drive = Drive(config(**(SMALL | MODES["write back"] | changes)), payload=True,
                  block_bytes=BLOCK, store=tmp_path / "store")  # fmt: skip
    service = Service(drive)
    yield NvmeDrive(ServedDrive(drive, service))
    service.close()
    drive.check()
    drive.close()


@pytest.fixture(params=["flash", "memory"])
def either(request):
    """The small drive, or memory of its size."""
    if request.param == "flash":
        return request.getfixturevalue("served")
    return NvmeDrive(MemoryDrive(config(**SMALL), BLOCK))


def test_commands_do_what_they_say(either):
    side, block = Side(either), bytes(range(256)) * 2
    done = side.run(io(WRITE, 3, 2, block * 2), io(WRITE, 40, data=block[::-1], cid=1))
    assert statuses(done) == [0, 0] and [each.cqe.cid for each in done] == [0, 1]
    first, second, hole = side.run((READ, 3, 2), (READ, 40, 1), (READ, 5, 1))
    assert first.data.tobytes() == block * 2 and second.data.tobytes() == block[::-1]
    assert not hole.data.any()
    assert statuses(side.run(io(COMPARE, 4, 1, block), io(COMPARE, 40, 1, block, 1))) == [
        0, MISCOMPARE,
    ]  # fmt: skip
    assert statuses(side.run((FLUSH, 0, 1), (VERIFY, 3, 2))) == [0, 0]
    assert statuses(side.run((ZEROES, 3, 1), (DEALLOCATE, 40, 1))) == [0, 0]
    zeroed, kept = side.run((READ, 3, 1), (READ, 4, 1))
    assert not zeroed.data.any() and kept.data.tobytes() == block
    assert statuses(side.run((UNCORRECTABLE, 4, 1))) == [0]
    assert statuses(side.run((READ, 4, 1), (READ, 3, 2), (READ, 3, 1))) == [
        UNRECOVERED, UNRECOVERED, 0,
    ]  # fmt: skip
    assert statuses(side.run(io(WRITE, 4, data=block, flags=1 << 30))) == [0]  # FUA
    assert statuses(side.run((READ, 4, 1))) == [0]


def test_what_is_wrong_ends_with_a_status_and_others_of_the_batch_run(either):
    side, last = Side(either), either.capabilities.capacity_bytes // BLOCK - 1
    done = side.run(
        io(WRITE, last, 1, bytes([7]) * BLOCK, cid=0),
        io(WRITE, last, 2, bytes(2 * BLOCK), cid=1),
        io(READ, 0, cid=2, nsid=2),
        io(READ, 0, cid=0),
        io(0x7F, cid=4),
        io(WRITE, 0, 1, bytes(BLOCK - 1), cid=5),
        io(WRITE, 0, 1 << 16, cid=6),
    )
    assert statuses(done) == [0, RANGE, 0x002, CONFLICT, 0x001, 0x004, 0x002]
    assert side.run((READ, last, 1))[0].data.tobytes() == bytes([7]) * BLOCK
    log = side.log(1, 64 * 8)
    assert int.from_bytes(log[:8], "little") == 6 and log[8:10] == b"\1\0"  # the newest first


def test_random_batches_are_a_dictionary_of_blocks(either, counts):
    """Commands of a batch touch different blocks; each batch sees the one before."""
    rng, side = np.random.default_rng(18), Side(either)
    blocks = either.capabilities.capacity_bytes // BLOCK
    memory = isinstance(either.served, MemoryDrive)
    unit = 1 if memory else either.capabilities.mapping_unit_bytes // BLOCK
    model = np.zeros((blocks, BLOCK), np.uint8)
    for _ in range(counts(60, 600)):
        starts = np.sort(rng.choice(blocks // 8, rng.integers(1, 17), replace=False)) * 8
        given, wanted = [], []
        for cid, start in enumerate(starts.tolist()):
            first = start + int(rng.integers(8))
            count = int(rng.integers(1, start + 9 - first))
            opcode = int(rng.choice([WRITE, WRITE, READ, READ, ZEROES, DEALLOCATE, COMPARE, FLUSH]))
            data, part = b"", model[first : first + count]
            if opcode == WRITE:
                part[:] = rng.integers(256, size=part.shape)
                data = part.tobytes()
            elif opcode == COMPARE:
                data = part.tobytes()
            given.append(io(opcode, first, count, data, cid))
            wanted.append(part.tobytes() if opcode == READ else b"")
            if opcode in (ZEROES, DEALLOCATE):
                if opcode == ZEROES:
                    part[:] = 0
                else:  # whole mapping units at most
                    low, high = -(-first // unit) * unit, (first + count) // unit * unit
                    model[low : max(low, high)] = 0
        done = side.run(*given)
        assert not any(statuses(done))
        assert [each.data.tobytes() for each in done] == wanted
    assert np.array_equal(
        np.concatenate([side.run((READ, at, 8))[0].data.copy() for at in range(0, blocks, 8)]),
        model.reshape(-1),
    )


def test_logs_count_what_the_drive_has_done(served):
    side, block = Side(served), bytes(BLOCK)
    for at in range(40):
        side.run(io(WRITE, 16 * at, 16, block * 16), (READ, 16 * at, 8))
    side.run((FLUSH, 0, 1))
    smart, ocp, drive = side.log(2), side.log(OCP_HEALTH), served.served.drive
    written = int(drive.arrays.count[0, HOST_WRITE_BYTES])
    assert written == 40 * 16 * BLOCK and number(smart, 48, 16) == 1
    assert number(smart, 64, 16) == number(smart, 80, 16) == 40
    assert number(ocp, 0, 16) >= 40 * 16 * BLOCK
    assert served.health().busy_ps > 0 and served.health().busy_ps <= drive.now
    assert served.health().used_bytes == 40 * 16 * BLOCK


def number(data: bytes, first: int, size: int) -> int:
    return int.from_bytes(data[first : first + size], "little")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("served", [{}, {"ftl__mapping_unit": "1 KiB"}], indirect=True)
@pytest.mark.parametrize("how", ["format", "format of one of two", "sanitize"])
def test_an_erase_leaves_no_old_byte_in_the_store(served, how):
    side, rng = Side(served), np.random.default_rng(5)
    old, new = b"OLD-DATA" * (BLOCK // 8), b"new-data" * (BLOCK // 8)
    unit = served.capabilities.mapping_unit_bytes // BLOCK
    blocks = served.capabilities.capacity_bytes // BLOCK
    if how == "format of one of two":
        blocks = halve(side)
    for at in rng.integers(blocks // unit, size=300).tolist():
        side.run(io(WRITE, at * unit, unit, old * unit))
    if how == "format of one of two":
        side.run(*[io(WRITE, at * unit, unit, new * unit, at, 2) for at in range(8)])
    side.run((FLUSH, 0, 1))
    folder = served.served.drive.store.files.folder.path
    assert occurrences(folder, old[:64]) > 0
    if how == "sanitize":
        assert side.admin(SANITIZE, cdw10=2)[0] == 0
        served.close()
        assert number(side.log(0x81), 2, 2) == 0x101  # done, and nothing was written since
    else:
        assert side.admin(FORMAT, cdw10=1 << 9, nsid=1)[0] == 0
    assert occurrences(folder, old[:64]) == 0
    assert not side.run((READ, 0, unit))[0].data.any()
    if how == "format of one of two":
        found = side.runner.run([io(READ, at * unit, unit, b"", at, 2) for at in range(8)])
        assert all(each.data.tobytes() == new * unit for each in found)


def halve(side: Side) -> int:
    """Replace the namespace by two that are attached; return the blocks of each."""
    assert side.admin(MANAGE, cdw10=1, nsid=1)[0] == 0
    unit = side.drive.capabilities.mapping_unit_bytes
    blocks = side.drive.capabilities.capacity_bytes // unit // 2 * unit // BLOCK
    listed = (1).to_bytes(2, "little") + (1).to_bytes(2, "little") + bytes(4092)
    for nsid in (1, 2):
        asked = bytearray(HOST_SOFTWARE_FIELDS.size)
        asked[0:8] = asked[8:16] = blocks.to_bytes(8, "little")
        assert side.admin(MANAGE, bytes(asked))[0] == 0
        assert side.admin(ATTACH, listed, nsid=nsid)[0] == 0
    return blocks


def occurrences(folder: Path, text: bytes) -> int:
    return sum(each.read_bytes().count(text) for each in folder.rglob("*") if each.is_file())


def test_memory_is_erased_and_reports_what_it_holds(either):
    """Format and Sanitize leave zeros; SMART is that of a new drive with memory."""
    side = Side(either)
    for erase in ((FORMAT, {"nsid": 1}), (SANITIZE, {"cdw10": 2})):
        assert statuses(side.run(io(WRITE, 8, 8, bytes([7]) * 8 * BLOCK))) == [0]
        used = int.from_bytes(side.admin(IDENTIFY, nsid=1)[1][16:24], "little")
        assert used == 8
        assert side.admin(erase[0], **erase[1])[0] == 0
        either.close()  # the end of the sanitize operation
        (read,) = side.run((READ, 8, 8))
        assert statuses([read]) == [0] and not read.data.any()
    smart = side.log(2)
    assert smart[0] == 0 and smart[3] == 100  # no warning, all spare


def test_events_reach_all_controllers(served):
    one, two = Side(served), Side(served)
    for side in (one, two):
        assert side.admin(SET_FEATURES, cdw10=0x0B, cdw11=1 << 8)[0] == 0
        entry = Sqe(EVENT, cid=5).pack()
        assert served.execute(side.controller, entry).entries == ()
    reply = served.execute(one.controller, Sqe(FORMAT, cid=1, nsid=1).pack())
    assert [each.cid for each in reply.entries] == [1, 5]
    assert not one.events and [each.cid for each in two.events] == [5]
    assert two.events[0].dw0 == 2 | 4 << 16
    assert two.log(4, 4096)[:8] == (1).to_bytes(8, "little")
    for _ in range(3):  # nobody has read the list of the first
        served.execute(one.controller, Sqe(FORMAT, cid=1, nsid=1).pack())
    assert one.controller.events.changed == two.controller.events.changed == [1]
    served.remove(two.controller)
    served.execute(one.controller, Sqe(FORMAT, cid=1, nsid=1).pack())
    assert len(two.events) == 1


def test_without_power_commands_end_with_an_error(served):
    side, drive = Side(served), served.served.drive
    side.run(io(WRITE, 0, data=bytes(BLOCK)), (FLUSH, 0, 1))
    served.served.service.call(lambda: drive.power_cut(0)).result()
    assert statuses(side.run((READ, 0, 1), (FLUSH, 0, 1))) == [INTERNAL, INTERNAL]
    assert side.admin(FORMAT, cdw10=1 << 9, nsid=1)[0] == INTERNAL
    assert side.log(2)[0] & 8 == 0  # counters are there without power
    served.served.service.call(drive.power_on).result()
    assert statuses(side.run((READ, 0, 1))) == [0]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("how", ["closed", "shut down", "cut"])
def test_what_outlives_a_loss_of_power(tmp_path, how):
    """Namespaces, marks, saved features and counts; only a cut is an unsafe shutdown."""
    cfg = config(**(SMALL | MODES["write back"]))

    def start() -> tuple[NvmeDrive, Side]:
        drive = Drive(cfg, payload=True, block_bytes=BLOCK, store=tmp_path / "store")
        found = NvmeDrive(ServedDrive(drive, Service(drive)))
        return found, Side(found)

    served, side = start()
    halve(side)
    side.run(io(WRITE, 3, data=b"2" * BLOCK, nsid=2), io(WRITE, 4, data=b"1" * BLOCK, cid=1))
    side.run(io(UNCORRECTABLE, 5, nsid=2), (READ, 4, 1))
    assert side.admin(SET_FEATURES, cdw10=4 | 1 << 31, cdw11=300)[0] == 0
    uuids = [each.uuid for each in served.shared.namespaces.by_nsid.values()]
    side.run((FLUSH, 0, 1))
    if how == "shut down":
        served.shut_down(side.controller, abrupt=False)
    if how == "closed":
        served.close()
    else:
        drive = served.served.drive
        served.served.service.call(lambda: drive.power_cut(0)).result()
    stop(served)
    served, side = start()
    assert [each.uuid for each in served.shared.namespaces.by_nsid.values()] == uuids
    read = [io(READ, at, nsid=nsid, cid=at) for at, nsid in ((3, 2), (4, 1), (5, 2))]
    done = side.run(*read)
    assert statuses(done) == [0, 0, UNRECOVERED]
    assert done[0].data.tobytes() == b"2" * BLOCK and done[1].data.tobytes() == b"1" * BLOCK
    assert side.admin(GET_FEATURES, cdw10=4)[0] == 0
    assert side.controller.features.value(4) == 300
    health = served.health()
    assert (health.power_cycles, health.unsafe_shutdowns) == (2, int(how == "cut"))
    assert served.shared.write_commands == 2 and health.power_on_ps > 0
    served.close()
    stop(served)
    state = tmp_path / "store" / "nvme.json"
    for text in (b"{", b"[]", state.read_bytes().replace(b'"blocks": ', b'"blocks": 9')):
        state.write_bytes(text)
        drive = Drive(cfg, payload=True, block_bytes=BLOCK, store=tmp_path / "store")
        service = Service(drive)
        with pytest.raises(InputError, match="nvme.json: (is damaged|cannot be read)"):
            NvmeDrive(ServedDrive(drive, service))
        service.close()
        drive.close()


def test_what_cannot_be_kept_ends_with_an_error(served, monkeypatch):
    side = Side(served)

    def refuse(files: object, durable: bool) -> None:
        raise InputError("no room")

    monkeypatch.setattr(controller_state, "write_atomically", refuse)
    assert statuses(side.run((UNCORRECTABLE, 4, 1), (READ, 9, 1))) == [INTERNAL, 0]
    assert side.admin(SET_FEATURES, cdw10=4 | 1 << 31, cdw11=300)[0] == INTERNAL
    assert side.admin(FORMAT, nsid=1)[0] == INTERNAL
    served.shut_down(side.controller, abrupt=True)
    monkeypatch.undo()
    assert side.admin(FORMAT, nsid=1)[0] == 0


@pytest.mark.parametrize("clears", ["write", "zeroes", "deallocate"])
def test_a_mark_whose_end_cannot_be_kept(served, monkeypatch, clears):
    """The blocks would be marked again after a restart, so the command has failed; later it has
    not."""
    side, block = Side(served), bytes(BLOCK)
    assert statuses(side.run((UNCORRECTABLE, 4, 1))) == [0]

    def refuse(files: object, durable: bool) -> None:
        raise InputError("no room")

    request = {"write": io(WRITE, 4, 1, block), "zeroes": (ZEROES, 4, 1),
               "deallocate": (DEALLOCATE, 4, 1)}[clears]  # fmt: skip
    monkeypatch.setattr(controller_state, "write_atomically", refuse)
    assert statuses(side.run(request, (READ, 9, 1))) == [INTERNAL, 0]
    monkeypatch.undo()
    assert statuses(side.run(request, (READ, 4, 1))) == [0, 0]


def test_a_sanitize_operation_whose_end_cannot_be_kept(served, monkeypatch):
    """It has failed, and runs again at the next start."""
    side, save = Side(served), controller_state.save
    calls = []

    def once(*given: Any) -> None:
        calls.append(given)
        if len(calls) > 1:
            raise InputError("no room")
        save(*given)

    monkeypatch.setattr(controller_state, "save", once)
    assert side.admin(SANITIZE, cdw10=2)[0] == 0
    served._sanitizing.join(20)
    assert len(calls) == 2 and served.shared.sanitize.status == SANITIZE_FAILED
    monkeypatch.undo()
    assert side.admin(SANITIZE, cdw10=2)[0] == 0
    served._sanitizing.join(20)
    assert served.shared.sanitize.status == SANITIZE_DONE


def test_a_drive_that_is_only_read_has_its_namespaces_and_marks(tmp_path):
    def start(read_only: bool) -> NvmeDrive:
        drive = Drive(config(**(SMALL | MODES["write back"])), payload=True, block_bytes=BLOCK,
                      store=tmp_path / "store", read_only=read_only)  # fmt: skip
        return NvmeDrive(ServedDrive(drive, Service(drive)))

    served = start(False)
    halve(Side(served))
    assert statuses(Side(served).run((UNCORRECTABLE, 5, 1))) == [0]
    found = {nsid: each.blocks for nsid, each in served.shared.namespaces.by_nsid.items()}
    served.close()
    stop(served)
    before = (tmp_path / "store" / "nvme.json").read_bytes()
    served = start(True)
    assert {nsid: each.blocks for nsid, each in served.shared.namespaces.by_nsid.items()} == found
    assert statuses(Side(served).run((READ, 5, 1), (READ, 6, 1))) == [UNRECOVERED, 0]
    served.close()
    stop(served)
    assert (tmp_path / "store" / "nvme.json").read_bytes() == before


@pytest.mark.parametrize("durability", ["process", "host"])
def test_the_state_of_a_durable_store_is_synced(tmp_path, monkeypatch, durability):
    drive = Drive(config(**(SMALL | MODES["write back"])), payload=True, block_bytes=BLOCK,
                  store=tmp_path / "store", durability=durability)  # fmt: skip
    served = NvmeDrive(ServedDrive(drive, Service(drive)))
    synced: list[bool] = []
    state, fsync = tmp_path / "store" / "nvme.json", os.fsync

    def sync(fd: int) -> None:
        synced.append(os.path.sameopenfile(fd, folder))
        fsync(fd)

    before = state.stat().st_ino
    folder = os.open(state.parent, os.O_RDONLY)
    monkeypatch.setattr(os, "fsync", sync)
    served.save()
    monkeypatch.undo()
    os.close(folder)
    assert synced == ([False, True] if durability == "host" else [])  # the file, then its name
    assert state.stat().st_ino != before
    served.close()
    stop(served)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("change, said", [
    ({"first": 0}, "overlaps namespace 1"),
    ({"first": -4096}, "first = -4096"),
    ({"nsid": 99}, "nsid = 99"),
    ({"nsid": 1}, "namespace 1 is listed twice"),
    ({"blocks": 0}, "blocks = 0"),
    ({"blocks": 8.0}, "blocks = 8.0"),
    ({"block_format": -1}, "block_format = -1"),
    ({"size": 100}, "size = 100: must be a multiple|blocks = "),
    ([[4096, 8192], [0, 512]], "uncorrectable bytes 0 to 512: .* must begin at or after byte 8192"),
    ([[512, 512]], "from 0 to 511"),
    ([[0, 1 << 60]], "end of the uncorrectable bytes"),
])  # fmt: skip
def test_what_a_damaged_state_says(served, tmp_path, change, said):
    halve(Side(served))
    path = tmp_path / "store" / "nvme.json"
    document = json.loads(path.read_bytes())
    if isinstance(change, dict):
        document["namespaces"][1].update(change)
    else:
        document["uncorrectable"] = change
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=rf"nvme.json: is damaged \(.*({said})"):
        controller_state.load(path.parent, Namespaces(served.capabilities))


def stop(served: NvmeDrive) -> None:
    served.served.service.close()
    served.served.drive.close()


def test_a_gate_lets_one_through_alone():
    """Threads count up and down; whoever is alone sees nobody."""
    gate, inside, seen = Gate(), [0], []
    lock = threading.Lock()

    def together() -> None:
        for _ in range(200):
            with gate.together():
                with lock:
                    inside[0] += 1
                with lock:
                    inside[0] -= 1

    def alone() -> None:
        for _ in range(50):
            with gate.alone():
                inside[0] += 100
                seen.append(inside[0])
                inside[0] -= 100

    threads = [threading.Thread(target=each) for each in (together, together, alone, alone)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    assert not any(each.is_alive() for each in threads) and seen == [100] * 100


def test_each_store_has_its_own_names(tmp_path):
    """They stay over a restart; drives without a store have new ones."""
    found = []
    for folder in (tmp_path / "one", tmp_path / "two", tmp_path / "one", None, None):
        drive = Drive(config(**SMALL), True, store=folder)
        with Service(drive) as service:
            nvme = NvmeDrive(ServedDrive(drive, service))
            named = nvme.capabilities
            first = nvme.shared.namespaces.by_nsid[1].uuid
            found.append((named.serial, named.subsystem_name, first))
            nvme.close()
        drive.close()
    assert found[0] == found[2] and len(set(found)) == 4
    assert all(len({each[at] for each in found}) == 4 for at in range(3))


def test_a_sanitize_operation_blocks_nobody(served, monkeypatch):
    """Meanwhile log pages without counters and Keep Alive answer, and other commands end at once,
    also those that have waited at the gate."""
    side, other = Side(served), Side(served)
    begun, end = threading.Event(), threading.Event()
    erase = served.served.drive.erase_stale

    def slowly() -> None:
        begun.set()
        assert end.wait(60)
        erase()

    monkeypatch.setattr(served.served.drive, "erase_stale", slowly)
    assert side.admin(SANITIZE, cdw10=2)[0] == 0 and begun.wait(20)
    smart = threading.Thread(target=lambda: other.log(2))  # waits for the drive, without the lock
    smart.start()
    found: list[object] = []

    def ask() -> None:
        found.append(number(side.log(0x81), 2, 2))
        found.append([side.admin(opcode, nsid=1)[0] for opcode in (KEEP_ALIVE, FORMAT, SANITIZE)])
        found.append(statuses(side.run((READ, 0, 1), (FLUSH, 0, 1))))

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join(20)
    stuck = asking.is_alive()
    end.set()
    asking.join(20)
    smart.join(20)
    served.close()
    assert not stuck and not smart.is_alive()
    assert found == [2, [0, IN_SANITIZE, IN_SANITIZE], [IN_SANITIZE, IN_SANITIZE]]
    assert statuses(side.run((READ, 0, 1))) == [0]


def test_a_gate_turns_away_those_who_wait_while_it_is_refused():
    gate, refused, found = Gate(), [False], []

    def wait() -> None:
        with gate.together(lambda: refused[0]) as passed:
            found.append(passed)

    waiting = threading.Thread(target=wait)
    with gate.alone():
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive() and not found
        refused[0] = True
    with gate.alone():
        waiting.join(20)
        assert len(found) == 1
        wait()
    assert found[1:] == [False] and not waiting.is_alive()
    wait()
    assert found[2:] == [True]  # nobody is alone
