"""`ondie warmup`: compiles the functions that other commands need and stores the compiled code.

Owns the list of small runs that compile every engine, server and kernel. Does not own the cache of
compiled code (kernels/code_cache.py). Source: this project.

User-defined policies and the suites of `ondie validate` compile their functions when they first
run.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import click
import numpy as np

from ondie.emu.config.config import configuration
from ondie.emu.ftl.policies import STREAMS, VICTIMS
from ondie.emu.serve.served_states import StatesOptions
from ondie.emu.serve.server import MemoryServer, ServeOptions, Server
from ondie.emu.units import InputError, fmt_bytes, fmt_time
from ondie.kernels import FORMATS, FORMS, ON_DIE, OPS, KernelError, code_cache, get, native
from ondie.kernels.bench.contenders import HYPER, KEY, filled

PROBE_BYTES = 1 << 20
"""Size (bytes) of a test file in the cache folder. `ondie warmup` writes this file to check whether
files can be stored there."""
DRIVE = (
    "flash.channels=2", "flash.dies_per_channel=2", "flash.blocks_per_plane=64",
    "flash.pages_per_block=18", "ftl.gc_low_blocks=2",
)  # fmt: skip
"""Overrides that select a small drive with four dies, so that a run is short."""
KERNEL_PARAMS = 4096
ERRORS = ("errors.kind=rate", "errors.rate=1e-4")
COMPARE = "compare mlp-fp16 --steps 1 --no-swing"
REPLAY = "replay requests.csv --from msr --precondition steady"
RUNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (COMPARE, DRIVE),
    (f"{COMPARE} --device smartssd", DRIVE),
    (f"{COMPARE} --device newport", DRIVE),
    (f"{COMPARE} --paths on_die", (*DRIVE, *ERRORS, "pe.protection=on_die_ecc")),
    (f"{COMPARE} --paths on_die", (*DRIVE, *ERRORS, "pe.protection=nan_comparator")),
    (REPLAY, DRIVE),
    (REPLAY, (*DRIVE, "ftl.map_cache=4 KiB")),
    *((REPLAY, (*DRIVE, f"ftl.gc_policy={name}")) for name in VICTIMS),
    *(
        (REPLAY, (*DRIVE, "ftl.write_streams=2", f"ftl.stream_policy={name}"))
        for name in STREAMS
        if name != "by_command"
    ),
    (f"{REPLAY} --device gen4-tlc", (*DRIVE, *ERRORS)),
    (
        "stannis simulate squeezenet --drives newport=2 --steps 5 --draw-load 0.5,2 --private 0 "
        "--public 100000",
        (),
    ),
)
"""Command lines that compile the engine when they run, each with its overrides."""
OUTPUT = ("--json", os.devnull, "--quiet")


@click.command()
@click.option("--quiet", is_flag=True, help="Print no progress bar and no summary.")
def warmup(quiet: bool) -> None:
    """Compile the engine and the kernels into the cache, so that later commands start faster.

    The cache folder is $XDG_CACHE_HOME/ondie/compiled, or ~/.cache/ondie/compiled.
    """
    folder = writable_folder()
    before, began = stored_files(folder), time.perf_counter()
    problems: list[str] = []
    code_cache.say = problems.append
    for name in itertools.chain(run_commands(problems), run_servers(), run_kernels()):
        if problems:
            raise InputError(f"{problems[0]} ({name})")
    new = stored_files(folder) - before
    if quiet:
        return
    if new:
        size = sum((folder / file).stat().st_size for file in new)
        took = fmt_time(round((time.perf_counter() - began) * 1e12))
        click.echo(f"compiled {len(new)} programs ({fmt_bytes(size)}) into {folder} in {took}")
    else:
        click.echo(f"nothing to compile: {folder} has all {len(before)} programs")


def writable_folder() -> Path:
    """Return the cache folder. Raises InputError if the folder cannot be created or a test file
    cannot be written."""
    problems: list[str] = []
    code_cache.say = problems.append
    folder = code_cache.folder()
    if folder is None:
        raise InputError(f"{problems[0]}; set XDG_CACHE_HOME to a writable folder")
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
    except OSError as error:
        raise InputError(
            f"{folder}: compiled code cannot be stored: {error.strerror}; free some space, or "
            "set XDG_CACHE_HOME to another folder"
        ) from error
    return folder


def stored_files(folder: Path) -> set[str]:
    """Return the names of the files with compiled code in ``folder``."""
    return {path.name for path in folder.glob("*.code")}


def run_commands(problems: list[str]) -> Iterator[str]:
    """Run each command line of RUNS in a temporary folder; yield the line after its run.

    ``problems``: list to which the messages of the code cache are added.
    """
    from ondie.emu.cli.main import commands

    context = click.get_current_context()
    with tempfile.TemporaryDirectory() as place, chdir(place):
        Path("requests.csv").write_text(
            "".join(
                f"{128166372003061629 + 1000 * i},host,0,{('Read', 'Write')[i % 2]},"
                f"{4096 * i},{4096 + 512 * (i % 3)},100\n"
                for i in range(64)
            )
        )
        for line, settings in RUNS:
            words = [word for setting in settings for word in ("--set", setting)]
            name, arguments = line.split()[0], [*line.split()[1:], *words]
            command = commands.get_command(context, name)
            assert command is not None
            code_cache.say = problems.append  # each command sets its own message function
            try:
                code = command.main([*arguments, *OUTPUT], name, standalone_mode=False)
            except SystemExit as stop:
                code = stop.code
            if code:
                raise InputError(f"ondie {line}: ended with exit code {code}")
            yield f"ondie {line}"


def run_servers() -> Iterator[str]:
    """Start and stop one server of each kind; yield the command line of each server after it has
    stopped.

    A server compiles the code for requests when it starts, except the code that erases stale
    blocks.
    """
    cfg, options = configuration("gen4-tlc", DRIVE), ServeOptions(nbd="unix:nbd")
    with tempfile.TemporaryDirectory() as place, chdir(place):
        MemoryServer(cfg, options).close()
        yield "ondie serve --null"
        if native.lib is None:  # a server of a drive does not start
            return
        server = Server(cfg, options)
        server.service.call(server.drive.erase_stale).result()
        server.close()
        yield "ondie serve"
        states = StatesOptions(count=KERNEL_PARAMS, optimizer="adam")
        options = ServeOptions(nvme_tcp=":0", states=states)
        Server(configuration("csd-pe", DRIVE), options).close()
        yield "ondie serve --states"


def run_kernels() -> Iterator[str]:
    """Call each Numba kernel once; yield the name of the kernel after the call."""
    for op, form, stored in itertools.product((*OPS, *ON_DIE), FORMS, FORMATS):
        try:
            kernel = get(op, backend="numba", form=form, format=stored)
        except KernelError:  # no such combination of operation, form and format
            continue
        arrays = filled(kernel, KERNEL_PARAMS)
        hyper = HYPER[op.removesuffix("_on_die")]
        given = {name: value for name, value in hyper.items() if name in kernel.takes}
        kernel.run(arrays, kernel.coefficients(given, 1), 1, 0, KEY)
        yield f"{op} {stored}"
    code = get("bch", "numba", m=10, t=1, data_bytes=1)
    word = np.zeros(1, np.uint8)
    check = code.encode(word)
    word[0] = 1
    code.decode(word, check)
    yield "bch"
    words = get("ldpc", "numba", data_bytes=24, circulant=64)
    words.decode(words.encode(np.zeros(24, np.uint8)) ^ np.uint8(1))
    yield "ldpc"
