"""Do the programs that others use find a disk at `ondie serve`, and the faults that `ondie ctl`
asks for?

Needs libnbd-bin, qemu-utils and fio; for mounts also root, e2fsprogs, FUSE
and loop devices.
"""

import json
import os
import re
import subprocess

import numpy as np
import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.control_words import send
from ondie.emu.units import InputError
from ondie.emu.validate.speed.servers import modeled_latency
from tests.live.processes import Live, needs, needs_mounts

UNIT = 4096
MIB = 1 << 20
SMALL = """\
base = "gen4-tlc"

[system]
name = { value = "small", source = "derived", ref = "gen4-tlc with 288 MiB of flash" }

[flash]
channels = { value = 4, source = "derived", ref = "small" }
dies_per_channel = { value = 2, source = "derived", ref = "small" }
blocks_per_plane = { value = 24, source = "derived", ref = "small" }
pages_per_block = { value = 24, source = "derived", ref = "small" }
"""


@pytest.fixture
def small(live: Live) -> Live:
    """A folder with small.toml."""
    (live.folder / "small.toml").write_text(SMALL)
    return live


def served(live: Live, *options: str) -> "subprocess.Popen[bytes]":
    return live.serve("--device", "small.toml", *options)


def ctl(live: Live, command: str, **arguments: object) -> dict:
    """What the control socket answers, without a process for each question."""
    return send(str(live.folder / "ctl"), command, arguments)


def counters(live: Live) -> dict:
    return ctl(live, "counters")


def io(live: Live, *commands: str, code: int = 0) -> list[str]:
    """Run commands of qemu-io; return the line with the outcome of each."""
    words = [word for command in commands for word in ("-c", command)]
    text = live.run(["qemu-io", "-f", "raw", *words, live.uri], code=code)
    return [line for line in text.splitlines() if re.search(r"failed|at offset", line)]


def check_description(small: Live) -> None:
    """What nbdinfo says is what the drive is, which has no data yet."""
    export = json.loads(small.run(["nbdinfo", "--json", small.uri]))["exports"][0]
    size = export["export-size"]
    assert size % UNIT == 0 and 200 * MIB < size < 288 * MIB
    expected = {"flush": True, "fua": True, "trim": True, "zero": True, "multi_conn": True}
    assert {name: export[f"can_{name}"] for name in expected} == expected
    assert export["is_read_only"] is False and export["description"] == "ondie small"
    sizes = [export[f"block_size_{name}"] for name in ("minimum", "preferred", "maximum")]
    assert sizes == [UNIT, UNIT, MIB]
    extents = json.loads(small.run(["nbdinfo", "--map", "--json", small.uri]))
    assert extents == [{"offset": 0, "length": size, "type": 3, "description": "hole,zero"}]
    assert "drive" in small.run(["nbdinfo", "--list", f"nbd+unix://?socket={small.folder}/nbd"])


def test_copies(small, rng):
    """The drive is described as it is. A copy in and a copy out are the same bytes, over several
    connections; zeros are no copies, and what is discarded is no longer mapped."""
    needs("nbdcopy", "nbdinfo", "qemu-img", "qemu-io")
    served(small)
    check_description(small)
    data = rng.integers(0, 256, 24 * MIB, np.uint8)
    data[8 * MIB : 16 * MIB] = 0
    (small.folder / "image").write_bytes(data.tobytes())
    small.run(["nbdcopy", "--flush", "--connections=4", "image", small.uri])
    assert counters(small)["mapped_units"] == 16 * MIB // UNIT
    small.run(["nbdcopy", "--connections=4", small.uri, "back"])
    assert (small.folder / "back").read_bytes()[: len(data)] == data.tobytes()
    assert "identical" in small.run(["qemu-img", "compare", "-Fraw", "-fraw", "image", small.uri])
    small.run(["qemu-img", "convert", "-fraw", "-Oqcow2", small.uri, "image.qcow2"])
    assert "identical" in small.run(["qemu-img", "compare", "image", "image.qcow2"])
    io(small, "discard 0 4M", "write -zu 20M 1M", "flush")
    io(small, "read -P 0 0 4M", "read -P 0 20M 1M")
    kinds = [(each["offset"], each["type"]) for each in
             json.loads(small.run(["nbdinfo", "--map", "--json", small.uri]))]  # fmt: skip
    starts = [0, 4 * MIB, 8 * MIB, 16 * MIB, 20 * MIB, 21 * MIB, 24 * MIB]
    assert kinds == list(zip(starts, (3, 0, 3, 0, 3, 0, 3), strict=True))
    assert counters(small)["mapped_units"] == 11 * MIB // UNIT


def fio(live: Live, *options: str) -> dict:
    """Run a job of 4 KiB requests at depth 32; return what fio says of it."""
    words = ["fio", "--name=job", "--ioengine=nbd", f"--uri={live.uri}", "--output-format=json",
             "--thread", "--bs=4k", "--iodepth=32", "--randseed=7"]  # fmt: skip
    text = live.run([*words, *options])
    return json.loads(text[text.index("{") : text.rindex("}") + 1])["jobs"][0]


def check_sockets(small: Live) -> None:
    """They are not taken from a running server, and the control socket is private."""
    for name in ("nbd", "ctl"):
        with pytest.raises(InputError, match="another program listens on this socket"):
            Listener(Address(path=str(small.folder / name)), f"--{name}")
    assert os.stat(small.folder / "ctl").st_mode & 0o777 == 0o600


@pytest.mark.soak
def test_fio_finds_what_it_has_written(small, counts):
    """4 KiB at depth 32, reads and writes at random, each block with a checksum. At its end, the
    server prints what it has counted and removes its sockets."""
    needs("fio")
    process = served(small, "--stats")
    check_sockets(small)
    size = counts(16, 256)
    job = fio(small, "--rw=randrw", "--size=48m", f"--io_size={size}m", "--verify=crc32c",
              "--verify_fatal=1", "--verify_backlog=512", "--norandommap=0")  # fmt: skip
    assert job["error"] == 0 and job["write"]["total_ios"] > 1000
    printed = dict(
        line.split(" ", 1) for line in small.stop(process).splitlines()[1:] if " " in line
    )
    assert int(printed["requests.writes"]) == job["write"]["total_ios"]
    assert int(printed["requests.reads"]) >= job["read"]["total_ios"]
    assert (printed["requests.errors"], printed["condition"]) == ("0", "online")
    assert not (small.folder / "ctl").exists() and not (small.folder / "nbd").exists()
    said = "ctl: the command failed: No such file or directory; give the SOCKET of"
    with pytest.raises(InputError, match=said):
        counters(small)


ABOVE_US = 20
"""What fio may wait at depth 1 beyond the modelled latency and a server without a drive, us."""


@pytest.mark.soak
def test_fio_at_depth_1_on_the_wall_clock(small):
    """The median of its completion latency is that of a read plus that of the same server without a
    drive, and at most 20 us: in the best of five rounds, in which both take turns, since other
    programs may need the processors."""
    needs("fio")
    served(small, "--clock", "real")
    null = ["ondie", "serve", "--nbd", f"unix:{small.folder}/null", "--null", "--device",
            "small.toml"]  # fmt: skip
    small.start(null, lambda log: log.read_text().startswith("nbd "))
    fio(small, "--rw=write", "--size=48m")
    modelled_us = modeled_latency() * 1e6  # of gen4-tlc, with more dies
    uri, above = small.uri, []
    for _ in range(5):
        medians = []
        for target in (uri, uri.replace("/nbd", "/null")):
            job = fio(small, "--rw=randread", "--size=48m", "--iodepth=1", "--time_based",
                      "--runtime=1", f"--uri={target}")  # fmt: skip
            medians.append(job["read"]["clat_ns"]["percentile"]["50.000000"] / 1000)
        above.append(medians[0] - medians[1] - modelled_us)
    assert any(abs(each) < ABOVE_US for each in above), (above, modelled_us)


ONE_READ = ("ecc.soft_reads=0", "ecc.soft_gain=1")
BCH = ("ecc.code=bch", "ecc.codeword=1 KiB", "ecc.correctable_bits=40", *ONE_READ)
BCH_76 = ("ecc.code=bch", "ecc.codeword=1 KiB", "ecc.correctable_bits=76", *ONE_READ)
"""The strongest BCH code of 1 KiB whose check bytes fit the spare area of gen4-tlc."""
LDPC = ("ecc.code=ldpc",)
ENDURANCE = 3000  # flash.endurance_cycles of gen4-tlc


def verified(live: Live, size: int, cycles: int, *keys: str) -> tuple[dict, dict]:
    """What fio says of a job that writes and verifies ``size`` MiB of a drive with ``cycles`` P/E
    cycles, and the drive's counters. Reads that fail do not end the job; wrong bytes do."""
    keys += ("errors.kind=model", "cache.mode=off", f"errors.initial_cycles={cycles}")
    served(live, *(word for key in keys for word in ("--set", key)))
    job = fio(live, "--rw=randwrite", f"--size={size}m", "--verify=crc32c", "--do_verify=1",
              "--verify_fatal=1", "--continue_on_error=read")  # fmt: skip
    assert job["read"]["total_ios"] >= 1000
    return job, counters(live)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(BCH_76, marks=pytest.mark.soak, id="bch"),
        pytest.param(LDPC, id="ldpc"),
    ],
)
def test_fio_verifies_a_drive_at_its_end_of_life(small, counts, code):
    """After the P/E cycles that the preset states every page has wrong bits, which the decoder
    corrects, if need be after retries."""
    needs("fio")
    assert load_preset("gen4-tlc").flash.endurance_cycles == ENDURANCE
    job, found = verified(small, counts(4, 64), ENDURANCE, *code)
    assert job["error"] == job["total_err"] == 0
    decoder = found["decoder"]
    assert decoder["pages"] >= job["read"]["total_ios"]
    assert decoder["wrong_bits"] == found["counters"]["corrected_bits"] > 90 * decoder["pages"]
    assert decoder["failed_pages"] == decoder["miscorrected_words"] == 0
    assert found["requests"]["errors"] == found["counters"]["media_errors"] == 0


@pytest.mark.soak
@pytest.mark.parametrize(
    ("code", "cycles"), [(BCH, 2600), ((*LDPC, *ONE_READ), 4500)], ids=["bch", "ldpc"]
)
def test_fio_past_the_limit_has_eio_and_no_wrong_bytes(small, code, cycles):
    """A good part of the pages cannot be corrected: fio has EIO for each of them, and the checksum
    of every other block is right."""
    needs("fio")
    job, found = verified(small, 4, cycles, *code)
    failed = found["counters"]["media_errors"]
    assert 100 < failed < 900 and job["first_error"] == job["error"] == 5
    assert job["total_err"] == found["requests"]["errors"] == failed
    assert found["decoder"]["failed_pages"] == failed
    assert found["counters"]["corrected_bits"] > 10_000


@pytest.mark.soak
def test_media_errors(small, rng):
    """Reads of the damaged units fail, and no others; the drive counts as many; a write heals."""
    needs("qemu-io", "fio")
    served(small)
    units = 256
    io(small, f"write -P 9 0 {units * UNIT}", "flush")
    bad = sorted(rng.choice(units, 9, replace=False).tolist())
    for unit in bad:
        assert ctl(small, "inject-media-error", offset=unit * UNIT, size=UNIT) == {"units": 1}
    assert counters(small)["counters"]["media_errors"] == 0
    outcomes = io(small, *(f"read -P 9 {unit * UNIT} {UNIT}" for unit in range(units)), code=1)
    assert len(outcomes) == units
    failed = {at: line for at, line in enumerate(outcomes) if "failed" in line}
    assert failed == dict.fromkeys(bad, "read failed: Input/output error")
    assert counters(small)["counters"]["media_errors"] == len(bad)
    job = fio(small, "--rw=randread", f"--size={units * UNIT}", "--continue_on_error=read")
    assert (job["total_err"], job["first_error"]) == (len(bad), 5)
    found = counters(small)
    assert found["counters"]["media_errors"] == found["requests"]["errors"] == 2 * len(bad)
    assert found["critical_warning"] & 4
    io(small, *(f"{op} -P 8 {unit * UNIT} {UNIT}" for unit in bad for op in ("write", "read")))


@pytest.mark.soak
def test_power_cuts(small):
    """What was flushed is there after a cut; without power every request fails, and the drive
    answers again when it is back."""
    needs("qemu-io")
    served(small, "--store", "store")
    io(small, "write -P 1 0 1M", "write -P 2 1M 1M", "flush", "write -P 3 0 512k")
    said = small.run("ondie ctl ctl power-cut").splitlines()
    assert said[0] == "events 0" and "power-on" in said[1]
    assert io(small, "read 0 4k", code=1) == ["read failed: Input/output error"]
    found = counters(small)
    assert (found["condition"], found["why"]) == ("offline", "the power was cut")
    text = small.run("ondie ctl ctl power-cut --after 5", code=2)
    line = "the drive is offline after a power cut and cannot execute commands; turn the power on"
    assert text == f"ondie: {line} first\n"
    assert ctl(small, "power-on")["condition"] == "online"
    for _ in range(2):
        io(small, "read -P 1 512k 512k", "read -P 2 1M 1M", "write -P 4 3M 64k", "flush",
           "read -P 4 3M 64k")  # fmt: skip
        found = ctl(small, "power-cut", restart=True)
        assert found["condition"] == "online" and "recovered from flash" in found["why"]


@pytest.mark.soak
def test_a_worn_drive_under_a_mount(small):
    """Writes fail and the file system becomes read-only; what was there can be read."""
    needs("nbdfuse", "mkfs.ext4", "losetup", "umount")
    needs_mounts()
    served(small, "--block", "512")
    small.attach()
    small.run("mkfs.ext4 -q -F fuse/disk")
    small.mount_disk("errors=remount-ro")
    small.run("head -c 2M /dev/urandom > mnt/before && sha256sum mnt/before > sum && sync -f mnt")
    assert ctl(small, "wear-out")["condition"] == "read-only"
    small.run("head -c 2M /dev/zero > mnt/after; sync mnt/after", code=None)
    small.run("touch mnt/after; sync -f mnt; true")
    assert "Read-only file system" in small.run("touch mnt/another", code=1)
    found = counters(small)
    assert found["condition"] == "read-only" and "spare blocks" in found["why"]
    assert found["critical_warning"] == 9
    small.run("sha256sum -c sum")
    small.detach()
    small.attach()
    small.run("mkdir again; mount -o ro,noload $(losetup -f --show -r fuse/disk) again; "
              "sed s/mnt/again/ sum | sha256sum -c")  # fmt: skip
