"""Owns: what must hold of the parsers of NBD for any bytes; run on examples, on the corpus, and by
a coverage-guided fuzzer (fuzz.py). Does not own: the meaning of requests. Source: own.
"""

import struct
from collections.abc import Callable

import numpy as np

from ondie.emu.engine.core.state import as_records
from ondie.emu.nvme.command import COMMAND, FLUSH, READ, TRIM, WRITE
from ondie.emu.serve import nbd_request as words
from ondie.emu.serve.handshakes import Phase
from ondie.emu.serve.nbd_wire import MOST_OPTION_BYTES, OPTION, Export, Handshake

EXPORT = Export(size=1 << 20, block=512, preferred=4096, largest=1 << 15, description="a drive")
MOST_REPLY = 512
"""Largest reply to one option, bytes; there are at most 256 options."""
INPUT, OUT = 3 << 15, 1 << 16
REQUESTS, DEPTH = 16, 8


def handshake(data: bytes) -> None:
    """Pieces do not matter, memory and replies are bounded, and every reply has its option's
    number."""
    step, sent = (data[0] & 63) + 1 if data else 1, data[1:]
    whole, pieces = (Handshake(EXPORT, lambda: "", lambda: None) for _ in range(2))
    out = whole.feed(sent)
    found = b""
    for at in range(0, len(sent), step):
        if pieces.phase is not Phase.OPEN:
            break
        found += pieces.feed(sent[at : at + step])
        if pieces.phase is Phase.OPEN:
            assert len(pieces.rest) < OPTION.size + MOST_OPTION_BYTES
    assert found == out and pieces.phase is whole.phase
    assert (pieces.structured, pieces.allocation) == (whole.structured, whole.allocation)
    assert len(out) <= 256 * MOST_REPLY
    assert whole.phase is not Phase.ENDED or not whole.rest
    at = 0
    while at < len(out) and out[at : at + 8] == struct.pack(">Q", 0x3E889045565A9):
        number, _, size = struct.unpack_from(">III", out, at + 8)
        assert struct.pack(">I", number) in sent
        at += 20 + size
    assert at == len(out) or (whole.phase is Phase.SERVED and len(out) - at in (10, 134))


def parser(structured: bool, allocation: bool, read_only: bool) -> Callable[[bytes], list[int]]:
    """A function that parses bytes as a session does, and returns the errors of the requests."""
    limits = as_records(np.zeros(1, words.LIMITS))
    for name, value in {
        "size": EXPORT.size, "block": EXPORT.block, "unit": 4096, "transfer": 8192,
        "largest": EXPORT.largest, "structured": structured, "allocation": allocation,
        "out": INPUT, "end": INPUT + OUT, "commands": DEPTH, "read_only": read_only, "tag": 7,
    }.items():  # fmt: skip
        limits[name] = value
    memory = np.zeros(INPUT + OUT, np.uint8)
    requests = as_records(np.zeros(REQUESTS, words.REQUEST))
    commands = as_records(np.zeros(DEPTH + EXPORT.largest // 8192, COMMAND))
    found = np.zeros(words.NUMBERS, np.int64)

    def parse(data: bytes) -> list[int]:
        memory[: len(data)] = np.frombuffer(data, np.uint8)
        begin, errors = 0, []
        while True:
            words.parse(memory, begin, len(data), limits, requests, commands, found)
            at, count, made, out, skip, why, refused, missing, *kinds = found.tolist()
            assert bytes(memory[: len(data)]) == data
            assert begin <= at <= len(data) and 0 <= count <= REQUESTS and sum(kinds) == count
            assert INPUT <= out <= INPUT + OUT and 0 <= made <= len(commands)
            check_batch(requests[:count], commands[:made], begin, out)
            errors += requests["error"][:count].tolist()
            assert refused == np.count_nonzero(requests["error"][:count])
            assert not skip or (why == words.MORE and at == len(data))
            assert not missing or (why == words.MORE and missing <= EXPORT.largest + 28)
            if why == words.SLOW:
                at += words.HEADER_BYTES
            elif why != words.FULL:
                return errors
            assert at > begin or count, "the parser makes no progress"
            begin = at

    return parse


def check_batch(requests: np.ndarray, commands: np.ndarray, begin: int, out: int) -> None:
    """Commands are those that the drive may get, their data are where they arrived or where the
    reply is, and replies follow each other."""
    place = INPUT
    for number, request in enumerate(requests):
        mine = commands[int(request["first"]) : int(request["first"] + request["count"])]
        assert (int(request["count"]) == 0) == (request["error"] != 0)
        assert request["out"] == place
        place += int(request["out_size"])
        assert (mine["tag"] == 7 + number).all()
        if not len(mine):
            continue
        assert (
            int(mine["size"].sum()) == request["length"]
            and mine["offset"][0] == (request["offset"])
        )
        assert (np.diff(mine["offset"]) == mine["size"][:-1]).all()
        for command in mine:
            op, offset, size = (int(command[name]) for name in ("op", "offset", "size"))
            data = int(command["data"])
            assert op in (READ, WRITE, TRIM, FLUSH) and command["fua"] in (0, 1)
            if op == FLUSH:
                assert size == 0
                continue
            assert size > 0 and size % 512 == 0 and offset % 512 == 0
            assert 0 <= offset and offset + size <= EXPORT.size
            if op == WRITE:
                assert begin <= data and data + size <= INPUT and size <= 8192
            elif op == READ and data >= 0:
                assert int(request["out"]) < data and data + size <= place and size <= 8192
    assert place == out


def requests(data: bytes) -> None:
    """The first byte says what was negotiated."""
    mode, sent = data[0] if data else 0, data[1:][:INPUT]
    parser(bool(mode & 1), mode & 3 == 3, bool(mode & 4))(sent)


TARGETS = {"handshake": handshake, "requests": requests}
