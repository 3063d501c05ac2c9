"""NBD beside NVMe/TCP: reads of logical blocks that a host has marked with Write Uncorrectable fail
over both, and what is written or deallocated over NBD loses its mark. Source: NVM Command Set
Specification 1.0, section 3.2.7; docs/serve.md."""

import contextlib
import json
import time

import pytest

from ondie.emu.serve import controller_state
from ondie.emu.serve.marked_blocks import MarkedBlocks
from ondie.emu.units import InputError
from tests.protocol.nvme_tcp_client import Queue
from tests.serve import nbd_client as nbd
from tests.serve import served
from tests.serve.nbd_client import client

BLOCK, UNIT = 512, 4096
UNRECOVERED = 0x281
CLOCKS = pytest.mark.parametrize("clock", ["virtual", "real"])


class Host:
    """A host of NVMe/TCP: its admin queue and an I/O queue."""

    def __init__(self, server):
        address = "127.0.0.1", server.nvme_tcp.listener.address.port
        name = server.nvme_tcp.subsystem.name
        self.admin, self.io = Queue(address), Queue(address)
        status, cntlid = self.admin.connect(name)
        assert status == 0
        self.admin.enable()
        assert self.io.connect(name, 1, cntlid) == (0, cntlid)

    def mark(self, first, blocks=1):
        assert self.io.run(4, nsid=1, cdw10=first, cdw12=blocks - 1) == (0, 0)

    def fails(self, first, blocks=1):
        """Whether a read fails, with the status of marked blocks."""
        status, _ = self.io.get(2, blocks * BLOCK, 1, cdw10=first, cdw12=blocks - 1)
        assert status & 0x7FF in (0, UNRECOVERED)
        return status != 0

    def close(self):
        self.io.close()
        self.admin.close()


@contextlib.contextmanager
def both(tmp_path, clock="virtual", **options):
    """(server, client of NBD, host) of a drive in a folder."""
    options |= {"nvme_tcp": ":0", "clock": clock, "store": str(tmp_path / "store")}
    with served.drive(tmp_path, "write back", options) as (server, path), client(path) as one:
        host = Host(server)
        try:
            yield server, one, host
        finally:
            host.close()


def fails(one, first, blocks=1, kind=nbd.READ):
    """Whether a request of blocks fails, with EIO."""
    found = one.ask(kind, first * BLOCK, blocks * BLOCK)
    assert found.error in (0, nbd.EIO)
    return found.error != 0


@CLOCKS
def test_reads_of_marked_blocks_fail_and_others_of_their_batch_do_not(tmp_path, clock):
    with both(tmp_path, clock) as (server, one, host):
        one.write(0, b"d" * 4 * UNIT)
        assert one.read(0, UNIT) == b"d" * UNIT
        host.mark(3, 2)
        for kind in (nbd.READ, nbd.CACHE):
            assert [fails(one, at, 1, kind) for at in range(2, 6)] == [False, True, True, False]
            assert fails(one, 0, 32, kind) and not fails(one, 5, 27, kind)
        assert host.fails(3) and not host.fails(5)
        before = server.served.statistics()["errors"]
        batch = b"".join(
            nbd.request(nbd.READ, at * BLOCK, BLOCK, cookie=at) for at in range(8)
        )  # fmt: skip
        one._lengths = dict.fromkeys(range(8), BLOCK)
        one.socket.sendall(batch + nbd.request(nbd.WRITE, UNIT, BLOCK, cookie=8, data=b"w" * BLOCK))
        one._lengths[8] = 0
        found = {each.cookie: each for each in (one.answer() for _ in range(9))}
        assert {at for at, each in found.items() if each.error} == {3, 4}
        assert all(found[at].data == b"d" * BLOCK for at in (0, 1, 2, 5, 6, 7))
        assert one.read(UNIT, BLOCK) == b"w" * BLOCK and host.fails(3, 2)
        assert server.served.statistics()["errors"] == before + 2


@CLOCKS
def test_what_is_written_or_deallocated_loses_its_mark(tmp_path, clock):
    """And only that, over both protocols, and after a restart with the same store."""
    sent = (
        (1, nbd.WRITE, 0), (3, nbd.WRITE, nbd.FUA), (5, nbd.TRIM, 0), (7, nbd.TRIM, nbd.FUA),
        (9, nbd.WRITE_ZEROES, 0), (11, nbd.WRITE_ZEROES, nbd.NO_HOLE),
    )  # fmt: skip
    places = {unit: b"n" * UNIT if kind == nbd.WRITE else bytes(UNIT) for unit, kind, _ in sent}

    def look(one, host):
        for unit in range(13):
            if unit in places:
                assert one.read(unit * UNIT, UNIT) == places[unit]
                assert host.io.read(8 * unit, 8, BLOCK) == places[unit]
            else:
                assert all(fails(one, at) for at in (8 * unit, 8 * unit + 7)), unit
                assert host.fails(8 * unit) and host.fails(8 * unit + 7)

    with both(tmp_path, clock) as (_, one, host):
        one.write(0, b"o" * 13 * UNIT)
        host.mark(0, 13 * 8)
        for unit, kind, flags in sent:
            data = places[unit] if kind == nbd.WRITE else b""
            size = 0 if data else UNIT
            assert one.ask(kind, unit * UNIT, size, flags, data) == nbd.Answer(0)
            state = json.loads((tmp_path / "store" / "nvme.json").read_text())
            ends = {end for each in state["uncorrectable"] for end in each}
            assert {unit * UNIT, (unit + 1) * UNIT} <= ends  # kept when the reply comes
        look(one, host)
        one.ask(nbd.FLUSH)
    with both(tmp_path, clock) as (_, one, host):
        look(one, host)


@CLOCKS
def test_a_server_without_nvme_respects_the_marks_of_its_store(tmp_path, clock):
    """Reads fail, writes and trims clear; what else hosts have left stays as it is, byte by byte.
    A store that cannot be changed keeps its marks, and a damaged file is refused."""
    path = tmp_path / "store" / "nvme.json"
    with both(tmp_path, clock) as (_, one, host):
        one.write(0, b"o" * 6 * UNIT)
        host.mark(0, 48)
    before = json.loads(path.read_text())
    alone = {"clock": clock, "store": str(tmp_path / "store")}
    with served.drive(tmp_path, "write back", alone) as (_, name), client(name) as one:
        assert fails(one, 0) and fails(one, 47) and not fails(one, 48)
        assert one.ask(nbd.BLOCK_STATUS, 0, 7 * UNIT).extents == ((6 * UNIT, 0), (UNIT, 3))
        one.write(UNIT, b"n" * UNIT)
        assert one.ask(nbd.TRIM, 3 * UNIT, UNIT, nbd.FUA) == nbd.Answer(0)
        assert one.read(UNIT, UNIT) == b"n" * UNIT and one.read(3 * UNIT, UNIT) == bytes(UNIT)
        assert [fails(one, 8 * unit) for unit in range(6)] == [1, 0, 1, 0, 1, 1]
    ranges = [[0, UNIT], [2 * UNIT, 3 * UNIT], [4 * UNIT, 6 * UNIT]]
    assert json.loads(path.read_text()) == before | {"uncorrectable": ranges}
    locked = path.read_bytes()
    with (
        served.drive(tmp_path, "write back", alone | {"read_only": True}) as (_, name),
        client(name) as one,
    ):
        assert fails(one, 0) and not fails(one, 8)
    assert path.read_bytes() == locked
    with both(tmp_path, clock) as (_, one, host):
        assert [host.fails(8 * unit) for unit in range(6)] == [1, 0, 1, 0, 1, 1]
    path.write_text(json.dumps(before | {"uncorrectable": [[8, 4]]}))
    with pytest.raises(InputError, match=r"nvme.json: is damaged \(first uncorrectable byte = 8"):
        with served.drive(tmp_path, "write back", alone):
            pass


def erased(host):
    """Global Data Erased of the Sanitize Status log page."""
    status, data = host.admin.get(2, 4, 0xFFFFFFFF, cdw10=0x81)
    assert status == 0
    return data[3] & 1


def sanitize(host):
    assert host.admin.run(0x84, cdw10=2) == (0, 0)
    end = time.monotonic() + nbd.SECONDS
    while host.admin.get(2, 4, 0xFFFFFFFF, cdw10=0x81)[1][2] & 7 == 2:
        assert time.monotonic() < end
        time.sleep(0.01)


@CLOCKS
def test_a_write_after_a_sanitize_is_in_its_log_page(tmp_path, clock):
    """Of NBD too, beside NVMe and alone; and it is kept. A read, a trim, zeros and a write that
    fails are none."""
    with both(tmp_path, clock) as (server, one, host):
        assert erased(host) == 0
        for alone in (False, True):
            sanitize(host)
            assert erased(host) == 1
            one.read(0, UNIT)
            for kind in (nbd.TRIM, nbd.WRITE_ZEROES):
                assert one.ask(kind, 0, UNIT) == nbd.Answer(0)
            server.service.call(lambda: server.drive.power_cut(0)).result(nbd.SECONDS)
            assert one.ask(nbd.WRITE, UNIT, data=bytes(UNIT)).error == nbd.EIO
            server.service.call(server.drive.power_on).result(nbd.SECONDS)
            assert erased(host) == 1
            if not alone:
                one.write(0, b"w" * BLOCK)
                assert erased(host) == 0
                state = json.loads((tmp_path / "store" / "nvme.json").read_text())
                assert not state["sanitize"]["erased"]  # kept when the reply comes
    options = {"clock": clock, "store": str(tmp_path / "store")}
    with served.drive(tmp_path, "write back", options) as (_, name), client(name) as one:
        assert json.loads((tmp_path / "store" / "nvme.json").read_text())["sanitize"]["erased"]
        one.write(0, b"w" * BLOCK)
    with both(tmp_path, clock) as (_, one, host):
        assert erased(host) == 0 and one.read(0, BLOCK) == b"w" * BLOCK


@CLOCKS
def test_a_change_that_could_not_be_kept_is_kept_with_the_next_write(tmp_path, monkeypatch, clock):
    """The file system had no room for it once. The client is told so: what it has written or
    trimmed may still be marked after the next start. Reads are not concerned."""
    with both(tmp_path, clock) as (_, one, host):
        sanitize(host)

    def fails(*_):
        raise InputError("no room: test")

    note = tmp_path / "store" / "nvme.json"
    options = {"clock": clock, "store": str(tmp_path / "store")}
    with served.drive(tmp_path, "write back", options) as (server, name), client(name) as one:
        with monkeypatch.context() as patch:
            patch.setattr(controller_state, "write_atomically", fails)
            assert one.ask(nbd.WRITE, 0, data=b"w" * 2 * UNIT) == nbd.Answer(0, nbd.EIO)
            assert one.ask(nbd.WRITE_ZEROES, 0, UNIT, nbd.FUA) == nbd.Answer(0, nbd.EIO)
            assert one.ask(nbd.TRIM, 0, UNIT) == nbd.Answer(0, nbd.EIO)
            for cookie in range(1, 4):
                one.send(nbd.WRITE, cookie * UNIT, cookie=cookie, data=b"w" * UNIT)
            found = sorted((one.answer() for _ in range(3)), key=lambda each: each.cookie)
            assert found == [nbd.Answer(cookie, nbd.EIO) for cookie in range(1, 4)]
            assert one.read(UNIT, UNIT) == b"w" * UNIT
            assert server.served.statistics()["errors"] == 6
        before = json.loads(note.read_text())
        assert before["sanitize"]["erased"]
        one.write(4 * UNIT, b"x" * UNIT)
        after = before | {"sanitize": before["sanitize"] | {"erased": False}}
        assert json.loads(note.read_text()) == after


def test_a_write_beside_a_sanitize_is_in_its_log_page(tmp_path):
    """It may have come after the erase: the log page does not say that nothing was written."""
    with both(tmp_path) as (server, one, host):
        nvme = server.nvme
        erase = server.served.erase_stale

        def erase_and_write():
            status = erase()
            one.write(0, b"w" * BLOCK)
            return status

        server.served.erase_stale = erase_and_write
        sanitize(host)
        server.served.erase_stale = erase
        assert one.read(0, BLOCK) == b"w" * BLOCK
        assert nvme.shared.sanitize.status == 1 and erased(host) == 0
        sanitize(host)
        assert erased(host) == 1


@CLOCKS
def test_a_write_that_fails_leaves_the_mark(tmp_path, clock):
    with both(tmp_path, clock) as (server, one, host):
        host.mark(8, 8)
        server.service.call(lambda: server.drive.power_cut(0)).result(nbd.SECONDS)
        assert one.ask(nbd.WRITE, UNIT, data=bytes(UNIT)).error == nbd.EIO
        assert one.ask(nbd.TRIM, UNIT, UNIT, nbd.FUA).error == nbd.EIO
        assert one.ask(nbd.TRIM, UNIT, UNIT).error == nbd.EIO
        server.service.call(server.drive.power_on).result(nbd.SECONDS)
        assert fails(one, 8) and fails(one, 15) and host.fails(8)
        completions, run_single = server.drive.completions, server.drive.run_single

        def fail():
            done = completions()
            done["status"] = 0x280
            return done

        def fail_alone(*given):
            status = run_single(*given)
            return 0x280 if status >= 0 else status

        server.drive.completions, server.drive.run_single = fail, fail_alone
        assert one.ask(nbd.WRITE, UNIT, data=bytes(UNIT)).error == nbd.EIO
        server.drive.completions, server.drive.run_single = completions, run_single
        assert fails(one, 8) and host.fails(15)


def test_marked_blocks_are_no_holes(tmp_path):
    """A client that copies only what is no hole would take them for zeros."""
    with both(tmp_path) as (_, one, host):
        host.mark(2 * 8 + 7, 2)
        expected = ((2 * UNIT, 3), (2 * UNIT, 0), (UNIT, 3))
        assert one.ask(nbd.BLOCK_STATUS, 0, 5 * UNIT).extents == expected
        assert one.ask(nbd.BLOCK_STATUS, 3 * UNIT, 2 * UNIT).extents == ((UNIT, 0), (UNIT, 3))
        whole = one.size // UNIT * UNIT
        found = one.ask(nbd.BLOCK_STATUS, 4 * UNIT, whole - 4 * UNIT, nbd.REQ_ONE).extents
        assert found == ((whole - 4 * UNIT, 3),)
        assert one.ask(nbd.TRIM, 2 * UNIT, 2 * UNIT) == nbd.Answer(0)
        assert one.ask(nbd.BLOCK_STATUS, 0, 5 * UNIT).extents == ((5 * UNIT, 3),)


@CLOCKS
def test_nothing_is_looked_up_without_marks(tmp_path, clock, monkeypatch):
    def looked(*_):
        raise AssertionError("marks were looked at")

    with both(tmp_path, clock) as (_, one, host):
        host.mark(0)
        one.write(0, b"c" * UNIT)
        for name in ("touched", "units", "clear"):
            monkeypatch.setattr(MarkedBlocks, name, looked)
        one.write(0, b"e" * UNIT)
        assert one.read(0, UNIT) == b"e" * UNIT
        assert one.ask(nbd.TRIM, 0, UNIT, nbd.FUA) == nbd.Answer(0)
        assert one.ask(nbd.BLOCK_STATUS, 0, UNIT).extents == ((UNIT, 3),)
