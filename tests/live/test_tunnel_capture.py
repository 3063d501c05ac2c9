"""Are packets of a capture whole in its file, and does a file that is full end nothing else?"""

import contextlib
import resource
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ondie.emu.live.capture import Capture
from ondie.emu.units import InputError

PACKET = bytes(range(200))
RECORD, HEAD = 16 + len(PACKET), 24


@contextlib.contextmanager
def longest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def packets(path: Path) -> list[bytes]:
    data, at, found = path.read_bytes(), HEAD, []
    while at < len(data):
        size, length = struct.unpack_from("<II", data, at + 8)
        assert size == length
        found.append(data[at + 16 : at + 16 + size])
        at += 16 + size
    assert at == len(data)
    return found


@pytest.mark.parametrize("rest", [0, 1, RECORD - 1])
def test_a_full_file_ends_with_a_whole_packet_and_is_told_once(rest, tmp_path, capfd):
    """The next packet does not fit, or only its first bytes do."""
    path = tmp_path / "a.pcap"
    capture = Capture(path)
    capture.add(PACKET, 0)
    with longest_file(HEAD + 2 * RECORD + rest):
        for _ in range(5):
            capture.add(PACKET, 0)
    capture.add(PACKET, 0)  # there is room again, but a gap would not be seen
    capture.close()
    assert packets(path) == [PACKET] * 2
    told = capfd.readouterr().err
    assert told.startswith(f"--pcap {path}: cannot be written: ") and told.count("\n") == 1
    assert told.endswith("; no more packets are captured\n")


def test_a_file_without_room_for_its_head_is_refused(tmp_path):
    said = "--pcap /dev/full: cannot be written: No space left on device"
    with pytest.raises(InputError, match=said):
        Capture(Path("/dev/full"))
    said = "--pcap .*a.pcap: cannot be written: No space left"
    with longest_file(HEAD - 1), pytest.raises(InputError, match=said):
        Capture(tmp_path / "a.pcap")
