"""Images of a drive: export of the contents of a store, import of an image into a new store.

Owns the transfer between a drive and a sparse raw image, and the conversion from and to qcow2. Does
not own the drive (drive.py), its store (nand/store_folder.py) or the format qcow2, which the
program qemu-img in the user's PATH reads and writes.
Source: this project; byte i of a raw image is byte i of the drive, as in images of qemu and dd.
"""

from __future__ import annotations

import math
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ondie.emu.config.config import Config, restored
from ondie.emu.drive import Drive
from ondie.emu.engine.core import counters
from ondie.emu.engine.core.sparse_table import touched_parts
from ondie.emu.files import as_path, check_target, reading, writing
from ondie.emu.nand import sparse_file
from ondie.emu.nand.store_folder import StoreFolder, leaves_of
from ondie.emu.nvme import condition
from ondie.emu.nvme.command import COMMAND, READ, WRITE
from ondie.emu.nvme.status import Status
from ondie.emu.units import InputError, plural

FORMATS = ("raw", "qcow2")
BATCH_BYTES = 1 << 24
"""Total data size of the commands that are submitted to the drive as one batch, bytes."""
IN_FLIGHT = 2
"""Maximum number of command batches that are in flight during an export or import."""
HOLE_BYTES = 4096
"""Upper limit of the granularity at which blocks of zeros become holes in an exported image,
bytes."""
QCOW2_MAGIC = b"QFI\xfb"
Progress = Callable[[str, float], None]


def export_image(
    store: str | os.PathLike[str],
    file: str | os.PathLike[str],
    image_format: str = "raw",
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the contents of the drive with folder ``store`` to the image ``file``. Return a
    summary.

    The store does not change. A store that is not clean is recovered in memory. Parts that are not
    mapped or contain only zeros become holes. The image gets its final name when it is complete.
    ``force``: replace an existing file. Raises InputError if the format is unknown, the store
    cannot be used or is in use, the file exists, is in the folder of the store or cannot be
    written, a page of the store is damaged, or qemu-img is missing or fails.
    """
    converter = _converter(image_format)
    target = as_path("file", file)
    check_target(target)
    if os.path.lexists(target) and not (force and target.is_file()):
        raise InputError(f"{target}: exists; use another name, or --force to replace the file")
    if target.resolve().is_relative_to(as_path("store", store).resolve()):
        raise InputError(f"{target}: is in the store's folder; use a path outside that folder")
    folder = StoreFolder.look(store)
    try:
        block, where = folder.superblock, str(folder.path)
        cfg = restored(leaves_of(folder.configuration), where)
    finally:
        folder.close()
    begin = time.perf_counter()
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    drive = Drive(cfg, payload=True, seed=block.seed, store=store, read_only=True)
    with drive, _partial(target, "raw") as raw, _partial(target, image_format) as converted:
        with writing(target), raw.open("w+b", buffering=0) as image:
            image.truncate(drive.capacity)
            size = _read_all(drive, image.fileno(), where, progress)
            os.fsync(image.fileno())
        if converter is None:
            done = raw
        else:
            done = converted
            _convert(converter, raw, "raw", done, image_format, target)
        with writing(target):
            os.replace(done, target)
        lost = drive.recovered
    return {
        "file": str(target),
        "format": image_format,
        "image_bytes": drive.capacity,
        "data_bytes": size,
        "recovery": "none" if lost is None else condition.why_recovered(lost),
        "wall_s": time.perf_counter() - begin,
    }


def _mapped_runs(drive: Drive, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (first, count), int64[n] each: the runs of mapped units, divided into runs of at most
    ``most`` units."""
    table = np.asarray(drive.arrays.l2p[0, : drive.units])
    parts_of_table = [
        slice(part.start // table.itemsize, -(-part.stop // table.itemsize))
        for part in touched_parts(table.view(np.uint8))
    ]  # without the memory of a large table that was never touched
    found = [part.start + np.flatnonzero(table[part]) for part in parts_of_table]
    mapped = np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
    starts = np.flatnonzero(np.diff(mapped, prepend=-2) != 1)
    lengths = np.diff(starts, append=len(mapped))
    parts = -(-lengths // most)
    number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    first = np.repeat(mapped[starts], parts) + number * most
    return first, np.minimum(np.repeat(lengths, parts) - number * most, most)


def _read_all(drive: Drive, image: int, where: str, progress: Progress | None) -> int:
    """Write all mapped data of the drive, except blocks of zeros, to the file descriptor ``image``.
    Return the number of bytes written, which is a multiple of the granularity of holes."""
    unit = drive.unit_bytes
    first, count = _mapped_runs(drive, drive.cfg.frontend.max_transfer_bytes // unit)
    per_batch = max(BATCH_BYTES // drive.cfg.frontend.max_transfer_bytes, 1)
    grain, written = math.gcd(unit, HOLE_BYTES), 0
    for at in range(0, len(first), per_batch):
        part = slice(at, at + per_batch)
        offsets, sizes = first[part] * unit, count[part] * unit
        memory = np.zeros(int(sizes.sum()), np.uint8)
        _submit(drive, READ, offsets, sizes, memory)
        _finish(drive, 0, f"{where}: cannot be exported")
        places = np.repeat(offsets - np.cumsum(sizes) + sizes, sizes // grain)
        places += np.arange(len(places)) * grain
        blocks = memory.reshape(-1, grain)
        kept = np.flatnonzero(blocks.any(axis=1))
        written += len(kept) * grain
        breaks = np.flatnonzero((np.diff(kept) != 1) | (np.diff(places[kept]) != grain)) + 1
        for run in np.split(kept, breaks):
            if len(run):
                _write_all(image, blocks[run[0] : run[-1] + 1], int(places[run[0]]))
        if progress is not None:
            progress("export", min(at + per_batch, len(first)) / len(first))
    return written


def _write_all(image: int, data: np.ndarray, offset: int) -> None:
    rest = memoryview(data.tobytes())
    while len(rest):
        size = os.pwrite(image, rest, offset)
        rest, offset = rest[size:], offset + size


def import_image(
    file: str | os.PathLike[str],
    store: str | os.PathLike[str],
    cfg: Config | str,
    image_format: str = "raw",
    *,
    seed: int = 0,
    durability: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the image ``file`` to a new drive with configuration ``cfg`` and folder ``store``, and
    stop the drive cleanly. Return a summary.

    The data is written through the drive in simulated time, with many commands in flight. Holes of
    the image are not written, and the drive contains zeros after the end of the image. The folder
    gets its final name when all data is stored. Raises InputError if the format is unknown, the
    image cannot be read or is larger than the drive, the folder is not empty or cannot be created,
    the drive cannot store the data, or qemu-img is missing or fails.
    """
    converter = _converter(image_format)
    source, target = as_path("file", file), as_path("store", store)
    if target.is_symlink() or (target.exists() and not (target.is_dir() and _empty(target))):
        raise InputError(f"{target}: exists and is not an empty folder; name a new folder")
    begin = time.perf_counter()
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with _partial(target, "store") as made, _partial(target, "raw") as raw, _image(source) as image:
        if converter is None:
            if os.pread(image, 4, 0) == QCOW2_MAGIC:
                raise InputError(f"{source}: is a qcow2 image; use --format qcow2")
            report = _import(image, source, made, cfg, seed, durability, progress)
        else:
            _convert(converter, source, image_format, raw, "raw", source)
            with _image(raw) as converted:
                report = _import(converted, source, made, cfg, seed, durability, progress)
        with writing(target):
            os.rename(made, target)
    return {
        "store": str(target),
        "file": str(source),
        "format": image_format,
        **report,
        "wall_s": time.perf_counter() - begin,
    }


def _import(
    image: int,
    source: Path,
    made: Path,
    cfg: Config | str,
    seed: int,
    durability: str | None,
    progress: Progress | None,
) -> dict[str, Any]:
    """Write the image with file descriptor ``image`` to a new drive in the folder ``made``. Return
    sizes and counts. Raises InputError if the image does not fit or a command fails."""
    size = os.fstat(image).st_size
    with Drive(cfg, payload=True, seed=seed, store=made, durability=durability) as drive:
        if size > drive.capacity:
            raise InputError(
                f"{source}: {size:,} bytes do not fit in {drive.capacity:,} bytes; use a "
                "larger drive (flash.blocks_per_plane, ftl.over_provisioning)"
            )
        wrong = f"{source}: cannot be stored"
        written = 0
        for start, end in _batches(image, size, drive.unit_bytes):
            memory = np.zeros(end - start, np.uint8)
            _read_image(image, memory, start, source)
            most = drive.cfg.frontend.max_transfer_bytes // drive.unit_bytes * drive.unit_bytes
            offsets = np.arange(start, end, most)
            sizes = np.minimum(end - offsets, most)
            _submit(drive, WRITE, offsets, sizes, memory)
            _finish(drive, (IN_FLIGHT - 1) * len(offsets), wrong)
            written += len(memory)
            if progress is not None:
                progress("import", min(end / size, 1.0))
        _finish(drive, 0, wrong)
        drive.flush()
        count = drive.arrays.count[0]
        programmed = int(count[counters.PROGRAM_PAGES] + count[counters.GC_PROGRAM_PAGES])
        return {
            "image_bytes": size,
            "drive_bytes": drive.capacity,
            "written_bytes": written,
            "programmed_bytes": programmed * drive.unit_bytes,
            "erased_blocks": int(count[counters.ERASED_BLOCKS]),
            "simulated_s": drive.now / 1e12,
        }


def _batches(image: int, size: int, unit: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges (start, end) of an image of ``size`` bytes that contain data. A range
    consists of whole mapping units and has at most BATCH_BYTES."""
    done, most = 0, max(BATCH_BYTES // unit, 1) * unit
    for first, last in sparse_file.data_extents(image, size):
        end = -(-last // unit) * unit
        for start in range(max(first // unit * unit, done), end, most):
            yield start, min(start + most, end)
        done = max(end, done)


def _read_image(image: int, memory: np.ndarray, offset: int, source: Path) -> None:
    """Read an image into ``memory``, starting at byte ``offset`` of the image. The part of
    ``memory`` after the end of the image does not change. Raises InputError if the image cannot be
    read."""
    at = 0
    with reading(source):
        while at < len(memory):
            size = os.preadv(image, [memory[at:].data], offset + at)
            if size == 0:
                return
            at += size


# --- commands


def _submit(
    drive: Drive, op: int, offsets: np.ndarray, sizes: np.ndarray, memory: np.ndarray
) -> None:
    """Submit one command for each element of ``offsets`` and ``sizes``, with the earliest possible
    arrival time. The data of the commands is in consecutive parts of ``memory`` (uint8[n])."""
    commands = np.zeros(len(offsets), COMMAND)
    commands["op"], commands["offset"], commands["size"] = op, offsets, sizes
    commands["tag"], commands["data"] = offsets, np.cumsum(sizes) - sizes
    commands["arrival"] = drive.earliest_arrival
    drive.submit(commands, memory)


def _finish(drive: Drive, left: int, wrong: str) -> None:
    """Run until at most ``left`` commands are in flight. Raises InputError, whose message begins
    with ``wrong``, if a command ended with an error."""
    if drive.outstanding > left:
        drive.run_until(completions=drive.outstanding - left)
    done = drive.completions()
    failed = done[done["status"] != Status.SUCCESS]
    if not len(failed):
        return
    status = Status(int(failed["status"][0]))
    hint = drive.why or "the drive could not execute it"
    if status == Status.UNRECOVERED_READ_ERROR:
        hint = "a page is damaged; `ondie store check` lists damaged pages"
    raise InputError(
        f"{wrong}: {plural(len(failed), 'command')} failed, the first at byte "
        f"{failed['tag'].min()}: {status.name.lower().replace('_', ' ')}; {hint}"
    )


# --- files


def _empty(folder: Path) -> bool:
    with reading(folder):
        return not any(folder.iterdir())


@contextmanager
def _image(path: Path) -> Iterator[int]:
    """Open an image in this context and yield its file descriptor. Raises InputError if the image
    cannot be opened or is not a regular file."""
    with reading(path):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InputError(f"{path}: is not a regular file")
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _partial(path: Path, what: str) -> Iterator[Path]:
    """Yield a temporary name in the folder of ``path``; remove a file or folder with this name at
    the end. Raises InputError if the name exists already."""
    found = path.with_name(f".{path.name}.{os.getpid()}.{what}.partial")
    if os.path.lexists(found):
        raise InputError(f"{found}: already exists; remove it")
    try:
        yield found
    finally:
        if found.is_dir():
            shutil.rmtree(found, ignore_errors=True)
        else:
            with suppress(OSError):
                found.unlink()


# --- qcow2


def _converter(image_format: str) -> str | None:
    """Return the path of qemu-img if the format requires it, or None for raw. Raises InputError if
    the format is unknown or qemu-img is missing."""
    if image_format not in FORMATS:
        raise InputError(f"format = {image_format!r}: must be {' or '.join(FORMATS)}")
    if image_format == "raw":
        return None
    found = shutil.which("qemu-img")
    if found is None:
        raise InputError(
            f"--format {image_format}: the program qemu-img is missing; install it (package "
            "qemu-utils of Debian and Ubuntu, qemu-img of Fedora), or use --format raw"
        )
    return found


def _convert(program: str, old: Path, read: str, new: Path, written: str, about: Path) -> None:
    """Convert an image with qemu-img from format ``read`` to format ``written``; zeros become
    holes. Raises InputError, whose message names the file ``about``, if qemu-img fails."""
    words = [program, "convert", "-S", "4k", "-f", read, "-O", written]
    done = subprocess.run(
        [*words, os.path.abspath(old), os.path.abspath(new)],
        capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise InputError(f"{about}: qemu-img failed to convert the image: {said}")
