"""Do Sanitize and Format with a user data erase succeed while clients of NBD write?"""

import threading

import pytest

from ondie.emu.serve.nvme_drive import NvmeDrive
from tests.serve import nbd_client
from tests.serve.served import drive
from tests.state.test_nvme_drive import FORMAT, SANITIZE, Side

AT_ONCE = 8


@pytest.mark.parametrize("how", [FORMAT, SANITIZE])
def test_an_erase_succeeds_beside_writers(how, tmp_path):
    with drive(tmp_path, "write back") as (server, path):
        nvme = NvmeDrive(server.served)
        side, end, begun, wrong = Side(nvme), threading.Event(), threading.Barrier(4), []

        def write() -> None:
            client, at = nbd_client.Client(path), 0
            while not end.is_set():
                if at == AT_ONCE:
                    begun.wait(60)
                client.socket.sendall(b"".join(
                    nbd_client.request(nbd_client.WRITE, (at + i) % 64 * 512, 512, 0, i, b"x" * 512)
                    for i in range(AT_ONCE)))  # fmt: skip
                replies, at = client.receive(16 * AT_ONCE), at + AT_ONCE
                wrong.extend(i for i in range(AT_ONCE) if any(replies[16 * i + 4 : 16 * i + 8]))

        writers = [threading.Thread(target=write, daemon=True) for _ in range(3)]
        for each in writers:
            each.start()
        begun.wait(60)
        try:
            if how == FORMAT:
                for _ in range(3):
                    assert side.admin(FORMAT, nsid=1, cdw10=1 << 9)[0] == 0
            else:
                assert side.admin(SANITIZE, cdw10=2)[0] == 0
                nvme.close()  # waits for its end
                assert nvme.shared.sanitize.status == 1
        finally:
            end.set()
            for each in writers:
                each.join(30)
        assert not any(each.is_alive() for each in writers)
        assert not wrong
