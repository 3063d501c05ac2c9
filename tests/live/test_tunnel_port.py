"""Does the host's end of one tunnel ask a drive for its status as it should? Without a device."""

from ondie.emu.controller.tunnel import STATUS_BYTES
from ondie.emu.live.admin_queue import STATUS_CID
from ondie.emu.live.host_end import Port
from ondie.emu.nvme.tunnel.framing import Format
from ondie.emu.nvme.wire import Completion, Cqe, Sqe


class Queue:
    """A queue whose controller answers when the test says so."""

    def __init__(self) -> None:
        self.submitted: list[int] = []
        self.done: list[Completion] = []

    def fileno(self) -> int:
        return -1

    def submit(self, commands) -> None:
        self.submitted += [Sqe.unpack(each.sqe).cid for each in commands]

    def completions(self) -> list[Completion]:
        found, self.done = self.done, []
        return found

    def answer(self) -> None:
        self.done.append(Completion(Cqe(STATUS_CID).pack(), bytes(STATUS_BYTES)))


def test_a_drive_that_owes_an_answer_is_not_asked_again():
    queue = Queue()
    port = Port(queue, Format(notify="hold"), bytes(4))
    for _ in range(3):
        port.ask()
        assert not port.answered
    assert queue.submitted.count(STATUS_CID) == 1
    queue.answer()
    port.work()
    assert port.answered and queue.submitted.count(STATUS_CID) == 1
    port.ask()
    assert not port.answered and queue.submitted.count(STATUS_CID) == 2
    queue.answer()
    port.work()
    assert port.answered
