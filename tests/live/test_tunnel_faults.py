"""Do TCP streams stay correct when commands and completions of the tunnel are lost, repeated and
reordered, and controllers are reset, on a live cluster?"""

import socket
import subprocess
import sys
import threading
import time

import pytest
from click.testing import CliRunner

from ondie.emu.cli.main import commands
from ondie.emu.config.config import load_preset
from ondie.emu.live import inject, processes
from ondie.emu.live.admin_queue import STATUS_CID
from ondie.emu.live.inject import COPIES, Faults, FaultyPort, FaultyQueue
from ondie.emu.live.request import Request
from ondie.emu.nvme import wire
from ondie.emu.nvme.tunnel.framing import Format
from ondie.emu.nvme.wire import Command, Completion, Cqe, Sqe
from ondie.emu.units import InputError
from tests.live.processes import alone
from tests.live.test_tunnel_cluster import NAME, NET, Running
from tests.live.tunnel_cluster import settled

WAYS = [f"{way}_{what}" for way in ("commands", "completions")
        for what in ("lost", "duplicated", "reordered")]  # fmt: skip


@pytest.fixture(autouse=True)
def only_clusters():
    with alone("tunnel"):
        yield


def check_once(found: dict) -> None:
    """Nothing was dropped on the way, so that TCP had to repeat nothing: every packet has crossed
    once, as the counters say that agree (tunnel_cluster.settled)."""
    assert found["host"]["dropped"] == 0
    for drive in found["drives"]:
        assert drive["state"] == "open" and drive["packets_down"] > 0 < drive["packets_up"]
        assert drive["dropped"] == drive["drive_dropped"] == drive["drive_refused"] == 0


FORM = Format(4096, 4, 1500, notify="hold")
ENDS = ((1, -1), (0, 1))


def test_lost_repeated_and_reordered_commands_and_completions():
    shares = "loss=0.02,duplicate=0.04,reorder=0.1,seed=5"
    with Running(pace="none", mtu=9000, inject=shares) as cluster:
        for ends in ENDS:
            cluster.copy(*ends)
        found = settled(NAME)
        check_once(found)
        assert found["inject"] == "loss=0.02,duplicate=0.04,reorder=0.1,reset=0,seed=5"
        for drive in found["drives"]:
            lost = drive["injected_commands_lost"] + drive["injected_completions_lost"]
            assert all(drive[f"injected_{name}"] > 0 for name in WAYS)
            # a lost command, or one whose completion is lost, is issued again; some will be
            assert drive["repeated"] >= lost - 2 * found["in_flight"] - 1
            # a copy is one of a block that the drive has, or of one that waits
            assert drive["drive_repeated"] >= drive["injected_commands_duplicated"] / 2
            assert drive["strays"] >= drive["injected_completions_duplicated"]
        printed = CliRunner().invoke(commands, ["tunnel", "status", "--name", NAME]).output
        assert "  injected: lost " in printed and " resets\n" in printed


def test_controllers_are_reset_under_load():
    with Running(pace="none", mtu=9000, inject="reset=0.1,seed=2") as cluster:
        for ends in ENDS:
            cluster.copy(*ends)
        found = settled(NAME)
        check_once(found)
        for drive in found["drives"]:
            assert drive["resets"] >= 5 and drive["repeated"] >= drive["resets"]
            assert not any(drive[f"injected_{name}"] for name in WAYS)


def test_identifiers_of_lost_commands_are_not_used_again_before_a_reset():
    """Nothing is reset by chance: the resets are those that free identifiers."""
    with Running(drives=1, pace="none", inject="loss=0.1") as cluster:
        cluster.copy(-1, 0)
        (drive,) = settled(NAME)["drives"]
        lost = drive["injected_commands_lost"] + drive["injected_completions_lost"]
        room = COPIES.start - 2 * 8 - 1
        assert lost / (2 * room) <= drive["resets"] <= drive["repeated"] / room


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_more_faults_than_any_link_has(seed):
    shares = f"loss=0.1,duplicate=0.1,reorder=0.2,reset=0.01,seed={seed}"
    with Running(pace="none", inject=shares) as cluster:
        for ends in ENDS:
            cluster.copy(*ends)
        check_once(settled(NAME))


# --- the queue


class Far:
    """A controller that completes everything at once, and keeps what it was given."""

    def __init__(self) -> None:
        self.got: list[Command] = []
        self.resets = 0

    def submit(self, given) -> None:
        self.got += given

    def completions(self):
        done, self.got = self.got, []
        return [Completion(Cqe(int.from_bytes(each.sqe[2:4], "little")).pack(), b"")
                for each in done]  # fmt: skip

    def reset(self) -> None:
        self.resets += 1


class Silent(Far):
    """One that completes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)

    def fileno(self) -> int:
        return self.near.fileno()

    def completions(self):
        return []


def command(cid: int) -> Command:
    return Command(Sqe(wire.TUNNEL_SEND, cid=cid, cdw14=cid).pack(), bytes([cid]))


def cids(completions) -> list[int]:
    return [Cqe.unpack(each.cqe).cid for each in completions]


def test_each_fault_is_counted(monkeypatch):
    """Whatever arrives, or does not, more often or later than it was sent has been counted."""
    now = [100.0]
    monkeypatch.setattr(inject.time, "monotonic", lambda: now[0])
    far = Far()
    queue = FaultyQueue(far, Faults.of("loss=0.1,duplicate=0.1,reorder=0.2"), 0)
    down, up, sent = [], [], 0
    for _ in range(400):
        queue.submit([command(cid) for cid in range(20)])
        sent += 20
        now[0] += 0.001
        down += [each.sqe[2] for each in far.got]
        up += cids(queue.completions())
    for _ in range(2):
        now[0] += 1.0
        queue.submit([])
        down += [each.sqe[2] for each in far.got]
        up += cids(queue.completions())
    counts = queue.counts
    copies = [cid for cid in down if cid in COPIES]
    assert len(copies) == counts["commands_duplicated"]
    assert len(down) - len(copies) == sent - counts["commands_lost"]
    answered = len(down) - len(copies)
    assert not any(cid in COPIES for cid in up)
    lost, twice = counts["completions_lost"], counts["completions_duplicated"]
    assert len(up) == answered - lost + twice
    assert 0.08 < counts["commands_lost"] / sent < 0.12
    assert 0.08 < lost / answered < 0.12 and 0.08 < twice / answered < 0.12
    assert 0.08 < counts["commands_duplicated"] / sent < 0.12
    for way in ("commands", "completions"):
        assert 0.15 < counts[f"{way}_reordered"] / sent < 0.22


def test_a_copy_has_what_the_command_has_and_none_is_made_without_an_identifier():
    far = Far()
    queue = FaultyQueue(far, Faults.of("duplicate=0.5"), 0)
    queue.submit([command(7)] * 200)
    copies = [each for each in far.got if each.sqe[2] in COPIES]
    assert [each.sqe[2] for each in copies] == list(COPIES)
    assert {(each.sqe[4:], each.data) for each in far.got} == {(command(7).sqe[4:], b"\x07")}
    assert queue.counts["commands_duplicated"] == len(COPIES)
    queue.completions()
    queue.submit([command(7)] * 50)  # they are free again
    assert any(each.sqe[2] in COPIES for each in far.got)


def test_faults_are_spelled_as_they_were_given():
    text = "loss=0.01,duplicate=0,reorder=0.05,reset=0.0001,seed=4294967295"
    assert str(Faults.of(text)) == text


def test_the_status_command_meets_no_fault():
    far = Far()
    queue = FaultyQueue(far, Faults.of("loss=0.5"), 0)
    for _ in range(50):
        queue.submit([command(STATUS_CID)])
        assert cids(queue.completions()) == [STATUS_CID]


def test_a_reset_forgets_what_is_delayed():
    far = Far()
    queue = FaultyQueue(far, Faults.of("reorder=0.5,reset=0.5"), 0)
    queue.submit([command(cid) for cid in range(40)])
    assert queue.reset_due and len(far.got) < 40
    queue.completions()
    queue.reset()
    assert far.resets == 1 and not queue.reset_due
    time.sleep(2 * inject.MOST_DELAY_S)
    queue.submit([])
    assert far.got == queue.completions() == []


def test_a_reset_of_a_silent_drive_holds_up_nobody(monkeypatch):
    """Commands and questions wait until the reset has ended, and then go on."""
    far, may_end = Silent(), threading.Event()
    monkeypatch.setattr(far, "reset", lambda: may_end.wait(20.0))
    port = FaultyPort(FaultyQueue(far, Faults.of("reset=0.5"), 0), FORM, bytes(4), 10**12)
    opening = len(far.got)
    assert opening == 1
    port.reset()
    for _ in range(3):
        port.tick()
        port.ask()
        assert port.busy and port.work() == [] and len(far.got) == opening
    may_end.set()
    deadline = time.monotonic() + 20.0
    while port.busy:
        assert time.monotonic() < deadline
        port.tick()
    port.pump()
    again = [Sqe.unpack(each.sqe).opcode for each in far.got[opening:]]
    assert again == [wire.TUNNEL, wire.TUNNEL_RECEIVE]  # the open, and the question
    assert port.report()["resets"] == 1 and not port.gone


def test_a_drive_that_answers_no_reset_is_given_up(monkeypatch):
    far = Silent()

    def refuse() -> None:
        raise InputError("controller of the tunnel: timed out")

    monkeypatch.setattr(far, "reset", refuse)
    port = FaultyPort(FaultyQueue(far, Faults.of("reset=0.5"), 0), FORM, bytes(4), 10**12)
    port.reset()
    deadline = time.monotonic() + 20.0
    while not port.gone:
        assert time.monotonic() < deadline
        port.tick()
    assert port.report()["state"] == "ended: controller of the tunnel: timed out"
    assert port.report()["resets"] == 0


# --- bad input


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", '"" must be KEY=VALUE with one of the keys loss, duplicate, reorder, reset, seed;'),
        ("loss", '"loss" must be KEY=VALUE'),
        ("lost=0.1", '"lost=0.1" must be KEY=VALUE'),
        ("loss=0.1,loss=0.2", "loss is given twice"),
        ("loss=1%", 'loss = "1%": must be a probability from 0 to 0.5'),
        ("reorder=-0.1", 'reorder = "-0.1": must be a probability'),
        ("reset=0.6", 'reset = "0.6": must be a probability'),
        ("duplicate=nan", 'duplicate = "nan": must be a probability'),
        ("loss=0.3,reorder=0.3", "the sum of loss, duplicate and reorder must be at most 0.5"),
        ("seed=1.5", 'seed = "1.5": must be a whole number from 0 to 4294967295'),
        ("seed=4294967296", "seed = .*must be a whole number"),
    ],
)
def test_bad_faults_are_one_line(text, why):
    with pytest.raises(InputError, match=why) as caught:
        Request.of(load_preset("newport"), subnet=f"{NET}.0/24", inject=text)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("--inject")


def test_the_command_refuses_them_in_one_line():
    words = ["tunnel", "up", "--name", NAME, "--inject", "loss=2"]
    done = subprocess.run([sys.executable, "-m", "ondie.emu.cli", *words],
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == 'ondie: --inject: loss = "2": must be a probability from 0 to 0.5\n'
    assert processes.read_state(NAME) is None
