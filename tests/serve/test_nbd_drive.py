"""A drive behind NBD: what a flush covers, the depth of the queue, errors of single requests,
clients that leave, power cuts, and the state of blocks."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ondie.emu.nvme.command import FLUSH, WRITE
from ondie.emu.serve import nbd_session
from tests.serve import nbd_client as nbd
from tests.serve import served
from tests.serve.nbd_client import Client, client, until
from tests.state.test_service import MODES


def test_flush_covers_the_writes_of_all_connections(tmp_path):
    """Multi-conn: what was answered on one connection is clean after a flush on another."""
    with served.drive(tmp_path, "write back") as (server, path), client(path) as a:
        with client(path) as b:
            for number in range(8):
                a.write(number * 4096, bytes([number + 1]) * 4096)
            assert dirty(server) == 8
            assert b.ask(nbd.FLUSH) == nbd.Answer(0)
            assert dirty(server) == 0
            assert b.read(4096, 512) == b"\2" * 512


def test_fua_is_on_flash_before_its_reply(tmp_path):
    """A write with it leaves nothing dirty; zeros and trims with it are followed by a flush."""
    with served.drive(tmp_path, "write back") as (server, path), client(path) as one:
        seen = recorded(server)
        one.write(0, b"a" * 4096)
        assert dirty(server) == 1
        one.write(4096, b"b" * 4096, flags=nbd.FUA)
        one.ask(nbd.WRITE_ZEROES, 8192, 4096, flags=nbd.FUA)
        assert dirty(server) == 0
        one.ask(nbd.TRIM, 0, 4096, flags=nbd.FUA)
        assert one.ask(nbd.READ, 0, 8192, flags=nbd.FUA).data == bytes(4096) + b"b" * 4096
        ops = [op for batch in seen for op in batch]
        assert ops == [WRITE, WRITE, 2, FLUSH, 2, FLUSH, 0]


def dirty(server) -> int:
    """Number of units in the data cache that are not on flash."""
    return int(np.count_nonzero(server.drive.arrays.cpage["dirty"]))


def recorded(server) -> list[list[int]]:
    """The operations of each batch that reaches the drive from now on."""
    seen: list[list[int]] = []
    submit = server.drive.submit

    def record(commands, *rest):
        seen.append(commands["op"].tolist())
        return submit(commands, *rest)

    server.drive.submit = record
    return seen


def test_back_pressure_at_the_depth_of_the_drive(tmp_path):
    """A client that sends more than the drive takes: no batch is larger."""
    options = {"frontend__queue_depth": 4, "host__io_queue_depth": 4}
    with served.drive(tmp_path, **options) as (server, path), client(path) as one:
        assert server.served.depth == 4
        seen = recorded(server)
        batch = b"".join(nbd.request(nbd.READ, n * 512, 512, cookie=n) for n in range(64))
        one._lengths = dict.fromkeys(range(64), 512)
        one.socket.sendall(batch)
        assert {one.answer().cookie for _ in range(64)} == set(range(64))
        assert sum(map(len, seen)) == 64 and max(map(len, seen)) <= 4


def test_disconnects_in_mid_write(tmp_path, counts):
    """Clients that leave in the middle of a write, or with requests in flight: the drive goes on,
    and each of their writes took effect as a whole or not at all."""
    with served.drive(tmp_path) as (server, path):
        for number in range(counts(20, 200)):
            one = Client(path)
            data = bytes([number % 255 + 1]) * 8192
            sent = nbd.request(nbd.WRITE, 0, 8192, data=data) * 3
            one.socket.sendall(sent[: len(sent) - (number * 977) % 8192])
            one.close()
            with client(path) as other:
                found = other.read(0, 8192)
                assert len({found[at : at + 4096] for at in (0, 4096)}) <= 2
                assert found == found[:1] * 8192 or found[:4096] != found[4096:]
        until(lambda: server.nbd.admitted == 0, "no place in use")


def test_media_errors_are_those_of_the_blocks(tmp_path):
    """A batch in which the drive fails one read: EIO for that one, its neighbours have their
    bytes, and the client goes on."""
    with served.drive(tmp_path) as (server, path), client(path) as one:
        one.write(0, b"q" * 16384)
        completions = server.drive.completions

        def fail():
            done = completions()
            done["status"][done["tag"] == 1] = 0x281
            return done

        server.drive.completions = fail
        for cookie in range(3):
            one._lengths[cookie] = 4096
        one.socket.sendall(b"".join(
            nbd.request(nbd.READ, n * 4096, 4096, cookie=n) for n in range(3)
        ))  # fmt: skip
        found = {each.cookie: each for each in (one.answer() for _ in range(3))}
        failed = [each for each in found.values() if each.error]
        assert [(each.cookie, each.error) for each in failed] == [(1, nbd.EIO)]
        assert all(found[n].data == b"q" * 4096 for n in (0, 2))
        server.drive.completions = completions
        assert one.read(4096, 4096) == b"q" * 4096


def test_the_power_is_cut_under_clients(tmp_path):
    """They get EIO until it is on again; what was flushed is there."""
    with served.drive(tmp_path, "write back") as (server, path), client(path) as one:
        one.write(0, b"p" * 4096)
        one.ask(nbd.FLUSH)
        server.service.call(lambda: server.drive.power_cut(0)).result(nbd.SECONDS)
        assert one.ask(nbd.READ, 0, 512).error == nbd.EIO
        assert one.ask(nbd.WRITE, 0, data=bytes(512)).error == nbd.EIO
        assert one.ask(nbd.FLUSH).error == nbd.EIO
        server.service.call(server.drive.power_on).result(nbd.SECONDS)
        assert one.read(0, 4096) == b"p" * 4096


def test_many_clients_at_once(tmp_path, counts):
    """Eight clients write and read their own sectors at the same time, on a drive and in memory."""

    def work(path, number):
        rng = np.random.default_rng(number)
        mine = {}
        with client(path) as one:
            for _ in range(counts(40, 400)):
                at = int(rng.integers(0, 32)) * 8 + number
                if rng.random() < 0.5 or at not in mine:
                    mine[at] = rng.bytes(512)
                    one.write(at * 512, mine[at])
                else:
                    assert one.read(at * 512, 512) == mine[at]
        return mine

    for make in (served.memory, served.drive):
        with make(tmp_path) as (_, path), ThreadPoolExecutor(8) as pool:
            for mine in pool.map(work, [path] * 8, range(8)):
                with client(path) as one:
                    for at, data in mine.items():
                        assert one.read(at * 512, 512) == data


@pytest.mark.parametrize("mode", MODES)
def test_block_status_knows_what_is_cached(tmp_path, mode):
    """Data in the cache are no hole, before and after a flush; trimmed units are one."""
    with served.drive(tmp_path, mode) as (_, path), client(path) as one:
        one.write(8192, b"c" * 4096)
        expected = ((8192, 3), (4096, 0), (8192, 3))
        assert one.ask(nbd.BLOCK_STATUS, 0, 20480).extents == expected
        assert one.ask(nbd.BLOCK_STATUS, 8704, 8192).extents == ((3584, 0), (4608, 3))
        one.ask(nbd.FLUSH)
        assert one.ask(nbd.BLOCK_STATUS, 0, 20480).extents == expected
        assert one.ask(nbd.BLOCK_STATUS, 8192, 20480, nbd.REQ_ONE).extents == ((4096, 0),)
        one.ask(nbd.TRIM, 8192, 4096)
        assert one.ask(nbd.BLOCK_STATUS, 0, 20480).extents == ((20480, 3),)
        units = one.size // 4096
        assert units > 2 * nbd_session.FIRST_STATUS_UNITS
        whole = units * 4096
        assert one.ask(nbd.BLOCK_STATUS, 0, whole, nbd.REQ_ONE).extents == ((whole, 3),)
        one.write(whole - 8192, b"e" * 4096)
        assert one.ask(nbd.BLOCK_STATUS, 0, whole, nbd.REQ_ONE).extents == ((whole - 8192, 3),)
        assert one.ask(nbd.BLOCK_STATUS, 1 << 40, 4096).error == nbd.EINVAL
