"""Health of a served NVMe drive: which counts outlive a power cut, a kill and a clean stop, and
which critical warnings are reported to a host, once for each cause."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ondie.emu.controller.health import Health
from ondie.emu.controller.health_logs import FAILED, SanitizeState
from ondie.emu.drive import Drive
from ondie.emu.nvme.wire import Sqe
from ondie.emu.serve import controller_state, health_watch
from ondie.emu.serve.health_watch import HealthWatch
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.served import ServedDrive
from ondie.emu.service import Service
from tests.state.test_nvme_drive import (
    BLOCK,
    EVENT,
    READ,
    SANITIZE,
    SET_FEATURES,
    UNRECOVERED,
    WRITE,
    Side,
    io,
    number,
    statuses,
    stop,
)
from tests.state.test_service import MODES, SMALL
from tests.state.written import config

SAFE = {"cache__power_loss_protection": "true", "cache__hold_up": "1 J"}
COUNTED = ("host_read_bytes", "host_write_bytes", "media_read_bytes", "media_write_bytes",
           "busy_ps", "media_errors", "power_on_ps")  # fmt: skip
SPARE_DW, TEMPERATURE_DW, RELIABILITY_DW = (1 | info << 8 | 2 << 16 for info in (2, 1, 0))


def start(folder: Path | None, **changes: Any) -> tuple[NvmeDrive, Side]:
    cfg = config(**(SMALL | MODES["write back"] | changes))
    drive = Drive(cfg, payload=True, block_bytes=BLOCK, store=folder)
    found = NvmeDrive(ServedDrive(drive, Service(drive)))
    side = Side(found)
    found.enabled(side.controller)
    return found, side


def work(served: NvmeDrive, side: Side) -> Health:
    """Write, read, and read a damaged unit; return the counters."""
    unit = served.served.unit
    data = np.arange(unit, dtype=np.uint8).tobytes()
    assert statuses(side.run(*(io(WRITE, at * unit // BLOCK, unit // BLOCK, data, at)
                               for at in range(8)))) == [0] * 8  # fmt: skip
    call(served, lambda: served.served.drive.inject_media_errors(0, unit))
    assert statuses(side.run((READ, unit // BLOCK, 2), (READ, 0, 1))) == [0, UNRECOVERED]
    return served.health()


def call(served: NvmeDrive, what: Callable[[], Any]) -> Any:
    return served.served.service.call(what).result()


def power_cycle(served: NvmeDrive) -> None:
    call(served, lambda: served.served.power_cut(0))
    call(served, served.served.drive.power_on)


def at_least(after: Health, before: Health) -> bool:
    return all(getattr(after, name) >= getattr(before, name) > 0 for name in COUNTED)


def test_counts_outlive_power_cuts(tmp_path):
    served, side = start(tmp_path / "s")
    before = work(served, side)
    assert before.media_errors == 1
    power_cycle(served)
    after = served.health()
    assert at_least(after, before) and after.host_write_bytes == before.host_write_bytes
    assert (after.power_cycles, after.unsafe_shutdowns, after.power_loss_saves) == (2, 1, 0)
    side.run(io(WRITE, 0, 1, bytes(BLOCK)))
    again = served.health()
    assert again.host_write_bytes == after.host_write_bytes + BLOCK
    assert again.busy_ps > after.busy_ps
    served.shut_down(side.controller, abrupt=False)  # the host announces the next one
    power_cycle(served)
    last = served.health()
    assert at_least(last, again) and (last.power_cycles, last.unsafe_shutdowns) == (3, 1)
    assert number(side.log(2), 48, 16) == -(-last.host_write_bytes // 512_000)
    served.close()
    stop(served)


@pytest.mark.parametrize("how", ["killed", "closed", "cut, then closed"])
def test_counts_outlive_the_process(tmp_path, how):
    """A kill takes what was counted since the last save, and nothing else."""
    served, side = start(tmp_path / "s")
    work(served, side)
    if how.startswith("cut"):
        power_cycle(served)
        work(served, side)
    served.save_counts()
    before = served.health()
    if how == "killed":
        assert statuses(side.run(io(WRITE, 80, 1, bytes(BLOCK)))) == [0]  # after the save: lost
        call(served, lambda: served.served.drive.power_cut(0))
    else:
        served.close()
    stop(served)
    served, side = start(tmp_path / "s")
    after = served.health()
    assert at_least(after, before) and after.host_write_bytes == before.host_write_bytes
    assert after.media_errors == before.media_errors == (2 if how.startswith("cut") else 1)
    assert after.power_cycles == before.power_cycles + 1
    assert after.unsafe_shutdowns == before.unsafe_shutdowns + (how == "killed")
    saved = controller_state.load(tmp_path / "s", type(served.shared.namespaces)(
        served.capabilities))  # fmt: skip
    assert saved is not None and saved.past.power_cycles == after.power_cycles
    served.close()
    stop(served)


def test_power_loss_protection_counts_its_starts(tmp_path):
    """Field PLP Start Count of the log page of OCP."""
    served, side = start(tmp_path / "s", **SAFE)
    side.run(io(WRITE, 0, 1, bytes(BLOCK)))
    power_cycle(served)
    power_cycle(served)
    assert number(side.log(0xC0), 160, 16) == 2 and number(side.log(0xC0), 112, 4) == 2
    served.save_counts()
    served.served.service.close()
    served.served.drive.abandon()  # as after a kill
    served, side = start(tmp_path / "s", **SAFE)
    assert served.served.drive.started.value == "recovery"
    assert number(side.log(0xC0), 160, 16) == 3
    served.close()
    stop(served)


def test_a_state_of_version_1_is_continued(tmp_path):
    served, side = start(tmp_path / "s")
    work(served, side)
    served.close()
    stop(served)
    path = tmp_path / "s" / controller_state.NAME
    document = json.loads(path.read_bytes())
    del document["ran"], document["past"]["ran"]
    document["past"]["power_on_ps"], document["now_ps"] = 7, 5
    path.write_text(json.dumps(document | {"version": 1}))
    served, _ = start(tmp_path / "s")
    assert served.past.power_cycles == 2 and served.past.ran.power_on_ps == 7  # it was closed
    served.close()
    stop(served)


@pytest.fixture
def served():
    found, side = start(None)
    yield found, side
    found.close()
    stop(found)


def ask(served: NvmeDrive, side: Side, cid: int) -> None:
    """Send an Async Event Request that waits."""
    assert served.execute(side.controller, Sqe(EVENT, cid=cid).pack()).entries == ()


def words(side: Side) -> list[int]:
    """Events that were sent since the last call: dwords 0."""
    found, side.events = [each.dw0 for each in side.events], []
    return found


def test_warnings_are_reported_once_and_masked_until_the_log_is_read(served):
    drive, side = served
    for cid in (1, 2, 3):
        ask(drive, side, cid)
    assert side.admin(SET_FEATURES, cdw10=0x0B, cdw11=0xFF)[0] == 0
    assert side.admin(SET_FEATURES, cdw10=4, cdw11=300)[0] == 0  # 313 K are over it
    assert words(side) == [TEMPERATURE_DW]
    drive.look()
    call(drive, drive.served.drive.wear_out)
    drive.look()
    assert words(side) == []  # the type is masked
    data = side.log(2)  # the reply carries what follows; the warnings are spare, read-only, heat
    assert data[0] & 0b1011 == 0b1011
    assert side.controller.events.masked == {1} and len(side.controller.events.requests) == 1
    side.log(2)
    assert len(side.controller.events.requests) == 0  # reliability, after spare
    side.log(2)
    ask(drive, side, 4)
    drive.look()
    assert words(side) == []  # each cause once
    assert side.admin(SET_FEATURES, cdw10=4, cdw11=0xFFFF)[0] == 0
    assert side.admin(SET_FEATURES, cdw10=4, cdw11=300)[0] == 0
    assert words(side) == [TEMPERATURE_DW]  # it was gone in between


@pytest.mark.parametrize("bit, word", [(0, SPARE_DW), (3, RELIABILITY_DW)])
def test_a_warning_is_reported_if_its_bit_is_set(served, bit, word):
    drive, side = served
    other = Side(drive)  # enables nothing
    for each in (side, other):
        ask(drive, each, 1)
    assert side.admin(SET_FEATURES, cdw10=0x0B, cdw11=1 << bit)[0] == 0
    call(drive, drive.served.drive.wear_out)
    drive.look()
    assert words(side) == [word] and words(other) == []
    side.controller.disabled()
    ask(drive, side, 1)
    assert side.admin(SET_FEATURES, cdw10=0x0B, cdw11=1 << bit)[0] == 0
    assert words(side) == [word]  # after a reset, the host knows nothing of it


def test_the_watch_reports_and_keeps(tmp_path, monkeypatch):
    monkeypatch.setattr(health_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(health_watch, "SAVE_S", 0.05)
    drive, side = start(tmp_path / "s")
    watch = HealthWatch(drive)
    ask(drive, side, 1)
    assert side.admin(SET_FEATURES, cdw10=0x0B, cdw11=1)[0] == 0
    before = work(drive, side)
    saved = threading.Event()
    save = drive.save
    monkeypatch.setattr(drive, "save", lambda: (save(), saved.set()))
    side.run(io(WRITE, 0, 1, bytes(BLOCK)))
    assert saved.wait(10)
    found = controller_state.load(tmp_path / "s", type(drive.shared.namespaces)(
        drive.capabilities))  # fmt: skip
    assert found is not None and found.ran.host_write_bytes >= before.host_write_bytes
    call(drive, drive.served.drive.wear_out)
    assert side.happened.wait(10) and words(side) == [SPARE_DW]
    watch.close()
    drive.close()
    stop(drive)


@pytest.mark.parametrize("ause, allowed", [(0, {2}), (8, {1, 2, 2 | 8})])
def test_the_failure_of_a_restricted_sanitize_is_left_by_a_restricted_one_alone(
    served, ause, allowed
):
    """Exit Failure Mode (1), block erase (2), and AUSE (8) after a failed operation."""
    drive, side = served
    for dword in (1, 2, 2 | 8):
        drive.shared.sanitize = SanitizeState(FAILED, dword=2 | ause)
        status = side.admin(SANITIZE, cdw10=dword)[0]
        assert (status == 0) == (dword in allowed) and status in (0, 0x01C)
        if drive._sanitizing is not None:
            drive._sanitizing.join(20)


def test_a_log_page_does_not_wait_for_a_sanitize_operation(served, monkeypatch):
    """It has the counters of the begin, and new ones after the end."""
    drive, side = served
    before = work(drive, side)
    begun, end = threading.Event(), threading.Event()
    erase = drive.served.drive.erase_stale

    def slowly() -> None:
        begun.set()
        assert end.wait(60)
        erase()

    monkeypatch.setattr(drive.served.drive, "erase_stale", slowly)
    assert side.admin(SANITIZE, cdw10=2)[0] == 0 and begun.wait(20)
    try:
        asked: list[bytes] = []
        asking = threading.Thread(target=lambda: asked.extend((side.log(2), identify(side))))
        asking.start()
        asking.join(20)
        assert not asking.is_alive()
    finally:
        end.set()
    drive._sanitizing.join(20)
    assert number(asked[0], 160, 16) == before.media_errors == 1
    assert number(asked[1], 16, 8) == 0  # NUSE
    assert drive.health().media_write_bytes >= before.media_write_bytes


def identify(side: Side) -> bytes:
    status, data = side.admin(6, nsid=1)
    assert status == 0
    return data
