"""Images of a drive: what an import writes, an export reads, and what is refused or interrupted.

Images of qcow2 need the program qemu-img (Debian package qemu-utils).
"""

import os
import shutil
import subprocess

import numpy as np
import pytest

from ondie.emu.drive import Drive
from ondie.emu.engine.run import build
from ondie.emu.engine.run.power_system import Start
from ondie.emu.nand.store_check import check_store
from ondie.emu.nvme.status import Condition, Status
from ondie.emu.replay import disk_image
from ondie.emu.replay.disk_image import export_image, import_image
from ondie.emu.units import InputError
from tests.smoke.commands import here
from tests.state import small

SHAPE = {"flash__page": "4 KiB", "flash__blocks_per_plane": 16, "frontend__max_transfer": "32 KiB"}
CACHED = {"cache__mode": "write_back", "cache__capacity": "64 KiB"}
PAGE = 4096


@pytest.fixture(autouse=True)
def few_transactions(monkeypatch):
    """The pool of a large drive takes longer to make than these runs; batches are small."""
    monkeypatch.setattr(build, "BUDGET", 1024)
    monkeypatch.setattr(build, "ROWS", 1 << 10)
    monkeypatch.setattr(disk_image, "BATCH_BYTES", 1 << 16)


@pytest.fixture
def cfg():
    return small.config(**SHAPE | CACHED)


def sparse(path, rng, pages, holes):
    """An image of 4 KiB pages, of which ``holes`` are holes, and an odd end."""
    with path.open("wb") as file:
        file.truncate(pages * PAGE + 100)
        for at in range(pages):
            if at not in holes:
                os.pwrite(file.fileno(), rng.bytes(PAGE), at * PAGE)
        os.pwrite(file.fileno(), rng.bytes(100), pages * PAGE)
    return path


@pytest.fixture
def image(tmp_path, rng):
    return sparse(tmp_path / "a.raw", rng, 200, {3, *range(40, 90), 120})


def padded(path, size):
    return path.read_bytes().ljust(size, b"\0")


def files(folder):
    return sorted(each.name for each in folder.iterdir())


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and all(word in message for word in words), message


def test_an_image_there_and_back(tmp_path, image, cfg):
    seen = []
    report = import_image(image, tmp_path / "store", cfg, progress=lambda *at: seen.append(at))
    drive = Drive(cfg, payload=True, store=tmp_path / "store")
    assert drive.started is Start.CHECKPOINT and drive.now > 0
    size = drive.capacity
    mapped = np.flatnonzero(drive.arrays.l2p[0])
    assert mapped.tolist() == sorted({*range(201)} - {3, *range(40, 90), 120})
    assert report["written_bytes"] == len(mapped) * PAGE <= report["programmed_bytes"]
    assert report["drive_bytes"] == size and report["image_bytes"] == 200 * PAGE + 100
    drive.close()
    assert check_store(tmp_path / "store").intact
    shares = [share for _, share in seen]
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert {name for name, _ in seen} == {"import"}
    report = export_image(tmp_path / "store", tmp_path / "b.raw")
    assert (tmp_path / "b.raw").read_bytes() == padded(image, size) and report["recovery"] == "none"
    assert report["data_bytes"] == len(mapped) * PAGE
    assert (tmp_path / "b.raw").stat().st_blocks * 512 <= (len(mapped) + 4) * PAGE
    assert files(tmp_path) == ["a.raw", "b.raw", "store"]


def test_writes_of_the_drive_are_exported_and_its_store_does_not_change(tmp_path, rng, cfg):
    """A store that is not clean is recovered in memory; zeros become holes."""
    drive = Drive(cfg, payload=True, store=tmp_path / "store", durability="host")
    expected = np.zeros(drive.capacity, np.uint8)
    for at in rng.permutation(drive.units).tolist()[:300]:
        data = rng.integers(0, 256, PAGE, np.uint8) * (at % 5 > 0)
        expected[at * PAGE :][:PAGE] = data
        drive.write(at * PAGE, data)
    drive.flush()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "store", copy)  # as after a kill
    drive.close()
    before = {each.name: each.read_bytes() for each in copy.iterdir()}
    report = export_image(copy, tmp_path / "new" / "b.raw")
    assert "recovered from flash" in report["recovery"]
    assert "300 mapping units" in report["recovery"]
    assert (tmp_path / "new" / "b.raw").read_bytes() == expected.tobytes()
    assert {each.name: each.read_bytes() for each in copy.iterdir()} == before
    again = Drive(cfg, payload=True, store=copy, read_only=True)
    other = Drive(cfg, payload=True, store=shutil.copytree(copy, tmp_path / "other"))
    assert again.recovered is not None and other.recovered is not None
    assert again.recovered.checked_pages == other.recovered.checked_pages  # all, with "host"
    other.close()
    assert again.condition is Condition.READ_ONLY and "opened with read_only = True" in again.why
    assert (again.read(0, PAGE) == expected[:PAGE]).all()
    with pytest.raises(OSError, match="write protected") as caught:
        again.write(0, bytes(PAGE))
    assert caught.value.status == Status.NAMESPACE_WRITE_PROTECTED
    again.power_cut(0)
    again.power_on()
    assert (again.read(0, PAGE) == expected[:PAGE]).all()
    again.close()
    assert {each.name: each.read_bytes() for each in copy.iterdir()} == before


def test_batches_are_whole_units_and_do_not_overlap(tmp_path, rng):
    """Two extents in one mapping unit are written once; a batch is not larger than its limit."""
    path = sparse(tmp_path / "a.raw", rng, 64, {at for at in range(64) if at % 8 not in (0, 2)})
    unit = 4 * PAGE
    with disk_image._image(path) as image:
        found = list(disk_image._batches(image, path.stat().st_size, unit))
    assert found == [(at * PAGE, at * PAGE + unit) for at in range(0, 72, 8)]
    path = sparse(tmp_path / "b.raw", rng, 64, set())
    with disk_image._image(path) as image:
        found = list(disk_image._batches(image, path.stat().st_size, unit))
    ends = [start for start, _ in found[1:]]
    assert [end for _, end in found[:-1]] == ends == [at << 16 for at in range(1, len(found))]
    assert found[-1][1] == 65 * PAGE + 3 * PAGE


def test_what_is_refused(tmp_path, image, cfg):
    store, out = tmp_path / "store", tmp_path / "b.raw"
    import_image(image, store, cfg)
    refused(lambda: import_image(image, store, cfg), "store", "not an empty folder")
    refused(lambda: import_image(tmp_path / "none", tmp_path / "s", cfg), "none", "cannot be read")
    refused(lambda: import_image(tmp_path, tmp_path / "s", cfg), "not a regular file")
    refused(lambda: import_image(image, image / "s", cfg), "cannot be written")
    refused(lambda: import_image(image, tmp_path / "s", cfg, "vmdk"), "raw or qcow2")
    large = tmp_path / "large.raw"
    size = Drive(cfg).capacity
    with large.open("wb") as file:
        file.truncate(size + 1)
    wrong = f"{size + 1:,} bytes do not fit in {size:,} bytes"
    refused(lambda: import_image(large, tmp_path / "s", cfg), "large.raw", wrong)
    large.write_bytes(disk_image.QCOW2_MAGIC + bytes(PAGE))
    refused(lambda: import_image(large, tmp_path / "s", cfg), "qcow2 image; use --format qcow2")
    large.unlink()
    out.write_bytes(b"mine")
    refused(lambda: export_image(store, out), "b.raw: exists", "--force")
    assert out.read_bytes() == b"mine"
    refused(lambda: export_image(store, tmp_path, force=True), "is a folder")
    refused(lambda: export_image(store, store / "b.raw"), "in the store's folder")
    for wrong in (5, b"x", ""):
        refused(lambda wrong=wrong: export_image(wrong, tmp_path / "c"), "store = ")
        refused(lambda wrong=wrong: export_image(store, wrong), "file = ")
        refused(lambda wrong=wrong: import_image(wrong, tmp_path / "c", cfg), "file = ")
        refused(lambda wrong=wrong: import_image(image, wrong, cfg), "store = ")
    refused(lambda: export_image(tmp_path / "none", tmp_path / "c"), "none")
    with Drive(cfg, payload=True, store=store):
        refused(lambda: export_image(store, out, force=True), "in use")
    export_image(store, out, force=True)
    assert out.read_bytes()[:PAGE] == image.read_bytes()[:PAGE]
    with (store / "segment-0.pages").open("r+b") as file:
        file.write(bytes(8 * PAGE))
    refused(lambda: export_image(store, tmp_path / "c"), "store check", "first at byte")
    assert files(tmp_path) == ["a.raw", "b.raw", "store"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_transfer_leaves_nothing(tmp_path, image, cfg, error, monkeypatch):
    store = tmp_path / "store"
    import_image(image, store, cfg)

    def stop(name, share):
        if share > 0.4:
            raise error

    caught = KeyboardInterrupt if error is KeyboardInterrupt else OSError
    with pytest.raises(caught):
        import_image(image, tmp_path / "other", cfg, progress=stop)
    with pytest.raises((caught, InputError)):
        export_image(store, tmp_path / "b.raw", progress=stop)
    assert files(tmp_path) == ["a.raw", "store"]


def test_a_drive_that_cannot_hold_it(tmp_path, rng):
    """More bad blocks come up than there are spare ones."""
    cfg = small.config(**SHAPE | CACHED, ftl__program_failures=0.2)
    image = sparse(tmp_path / "a.raw", rng, 500, set())
    refused(lambda: import_image(image, tmp_path / "store", cfg), "cannot be stored", "failed")
    assert files(tmp_path) == ["a.raw"]


def test_the_commands(tmp_path, image, capsys):
    leaves = small.LEAVES | {"flash.page": "4 KiB", "flash.blocks_per_plane": "24",
                             "flash.pages_per_block": "12"}  # fmt: skip
    sets = [word for name, value in leaves.items() for word in ("--set", f"{name}={value}")]
    words = ["--device", "gen4-tlc", *sets, "--seed", 3]
    store, out = tmp_path / "store", tmp_path / "b.raw"
    done = here(capsys, "store", "import", image, store, *words)
    assert done.code == 0 and "simulated" in done.out, done.err
    assert '"seed": 3' in here(capsys, "store", "info", store, "--json", "-").out
    done = here(capsys, "store", "export", store, out)
    assert done.code == 0 and "b.raw" in done.out, done.err
    data = image.read_bytes()
    assert out.read_bytes()[: len(data)] == data
    for line in (["export", store, out], ["import", image, store], ["import", out, image]):
        bad = here(capsys, "store", *line)
        assert bad.code == 2 and len(bad.err.splitlines()) == 1 and "exists" in bad.err, bad


# --- qcow2


@pytest.fixture(scope="module")
def qemu_img():
    path = shutil.which("qemu-img")
    if path is None:
        pytest.skip("qemu-img is not installed")
    return path


def test_qcow2(tmp_path, image, cfg, qemu_img):
    store, there, back = tmp_path / "store", tmp_path / "a.qcow2", tmp_path / "b.qcow2"
    subprocess.run([qemu_img, "convert", "-f", "raw", "-O", "qcow2", image, there], check=True)
    import_image(there, store, cfg, "qcow2")
    report = export_image(store, back, "qcow2")
    assert back.read_bytes()[:4] == disk_image.QCOW2_MAGIC and report["format"] == "qcow2"
    subprocess.run([qemu_img, "check", "-q", back], check=True)
    plain = tmp_path / "b.raw"
    subprocess.run([qemu_img, "convert", "-f", "qcow2", "-O", "raw", back, plain], check=True)
    assert plain.read_bytes() == padded(image, report["image_bytes"])
    refused(
        lambda: import_image(image, tmp_path / "s", cfg, "qcow2"),
        "qemu-img failed to convert the image",
    )
    plain.unlink()
    assert files(tmp_path) == ["a.qcow2", "a.raw", "b.qcow2", "store"]


def test_qcow2_without_qemu_img(tmp_path, image, cfg, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for call in (
        lambda: import_image(image, tmp_path / "s", cfg, "qcow2"),
        lambda: export_image(tmp_path / "s", tmp_path / "b", "qcow2"),
    ):
        refused(call, "qemu-img is missing", "qemu-utils")
