"""Clusters as background processes: their start, programs that run inside them, and their end.

Owns the file that names the process of a cluster. Does not own its work (cluster.py).
Source: none.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ondie.emu.live import forked, namespaces
from ondie.emu.live.cluster import ENDING, Cluster, listens, serve
from ondie.emu.live.namespaces import PR_SET_PDEATHSIG
from ondie.emu.live.request import Request, Way, file_of
from ondie.emu.units import InputError

END_S, ANSWER_S = 15.0, 10.0


def state_file(name: str) -> Path:
    """Return the file of cluster ``name``: {"pid": its process, "start": when that started,
    "own_user": whether it has a user namespace}. Raises InputError for a wrong name."""
    return file_of(name, "json")


def write_state(cluster: Cluster) -> None:
    """Write the state file of a cluster, which names its process."""
    state = {"pid": cluster.pid, "start": namespaces.start_of(cluster.pid),
             "own_user": cluster.way.own_user}  # fmt: skip
    state_file(cluster.request.name).write_text(json.dumps(state))


def read_state(name: str) -> dict[str, Any] | None:
    """Return the state of a cluster that runs; None: none does."""
    file = state_file(name)
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        return found if namespaces.start_of(found["pid"]) == found["start"] != 0 else None
    except (OSError, ValueError, KeyError):
        return None


def start(request: Request, way: Way) -> int:
    """Start a cluster in the background; return its process when packets may pass. Its output goes
    to the file NAME.log. Raises InputError."""
    return _start(request, way, file_of(request.name, "log"))


def run(request: Request, way: Way, ready: Callable[[int], None]) -> None:
    """Run a cluster until this process gets SIGTERM, SIGINT or SIGHUP, or has gone. ``ready``:
    called with the cluster's process when packets may pass. That is a separate process, because
    this one may have threads, and then can neither enter a user namespace nor fork. Raises
    InputError."""
    pid = _start(request, way, None)

    def end(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    before = {each: signal.signal(each, end) for each in ENDING}
    try:
        ready(pid)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # the number stays its own until the end
    except BaseException:
        end()
        raise
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    _, code = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(code):
        raise InputError(f"tunnel up: process {pid} has ended with an error")


def _start(request: Request, way: Way, log: Path | None) -> int:
    """Start the process of a cluster; return it when packets may pass. ``log``: file for what it
    prints; None: it prints where this process does, and ends with it. Raises InputError."""
    parent = os.getpid()

    def run(ready: Callable[[], None]) -> None:
        _be_cluster(request, way, log, parent, ready)

    return forked.start(run, f"tunnel up: has ended{'' if log is None else f'; see {log}'}")


def _be_cluster(
    request: Request, way: Way, log: Path | None, parent: int, told: Callable[[], None]
) -> None:
    """Be the cluster. ``told``: called when packets may pass. Raises InputError."""
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for target, source in ((0, null), (1, file), (2, file)):
            os.dup2(source, target)

    def begun(cluster: Cluster) -> None:
        write_state(cluster)
        if log is not None:  # not before: a cluster that is up may write there
            os.ftruncate(1, 0)

    def ready(cluster: Cluster) -> None:
        if log is None:  # not before: a new user namespace forgets it
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                cluster.end()
        told()

    serve(request, way, begun, ready)


def status(name: str) -> dict[str, Any]:
    """Return the report of a cluster (Relay.report). Raises InputError if none runs."""
    deadline = time.monotonic() + ANSWER_S
    while (found := _asked(name)) is None:  # the relay has ended, and the next one will answer
        if time.monotonic() > deadline:
            raise InputError(f"--name {name}: has not answered for {ANSWER_S:g} s")
        time.sleep(0.01)
    counted = [("", found["host"]), *((each["namespace"], each) for each in found["drives"])]
    for space, each in counted:
        each["kernel"], each["kernel_missing"] = _kernel_counters(found, space, each["device"])
    return found


def _asked(name: str) -> dict[str, Any] | None:
    """Return what the relay of a cluster reports; None if it has ended instead. Raises InputError
    if there is no cluster, or it does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(ANSWER_S)
        try:
            client.connect(str(file_of(name, "sock")))
        except OSError:
            raise InputError(
                f"--name {name}: no cluster of this name is up; `ondie tunnel up` starts one"
            ) from None
        text = b""
        try:
            while part := client.recv(1 << 16):
                text += part
            found: dict[str, Any] = json.loads(text)
        except TimeoutError:
            raise InputError(f"--name {name}: has not answered for {ANSWER_S:g} s") from None
        except (OSError, ValueError):
            return None
    return found


def _kernel_counters(found: dict[str, Any], space: str, device: str) -> tuple[dict[str, int], str]:
    """Return the kernel's counters of a device, and ""; or none, and why they are missing. Asked
    for here, because packets would wait in the cluster's process."""
    if not device:
        return {}, "TCP relays have no network device"
    try:
        words = [*inside(found), namespaces.tool("ip"), *(("-n", space) if space else ())]
        text = namespaces.run_tool(*words, "-j", "-s", "link", "show", "dev", device)
    except InputError as error:
        return {}, str(error)
    (row,) = json.loads(text)
    counters = {
        f"{way}_{what}": int(row["stats64"][way][what])
        for way in ("tx", "rx")
        for what in ("packets", "bytes", "dropped")
    }
    return counters, ""


def inside(found: dict[str, Any]) -> list[str]:
    """Return the words that run a program where a cluster's host is; ``found``: its status."""
    if not found["own_user"]:
        return []
    tool = namespaces.tool("nsenter")
    return [tool, "-t", str(found["pid"]), "-U", "-n", "-m", "--preserve-credentials"]


def stop(name: str) -> bool:
    """End a cluster, also one that is still starting, and remove its files, namespaces and devices;
    return False if none was running. Raises InputError if it does not end."""
    place, state = file_of(name, "sock"), read_state(name)
    deadline = time.monotonic() + END_S
    while state is None and listens(place):  # it is about to say which process it is, or to end
        if time.monotonic() > deadline:
            raise InputError(f"--name {name}: {place} belongs to an unknown process; end that")
        time.sleep(0.01)
        state = read_state(name)
    if state is not None:
        pid = state["pid"]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        if not _ended(pid, END_S):
            os.kill(pid, signal.SIGKILL)
            if not _ended(pid, END_S):
                raise InputError(f"--name {name}: process {pid} does not end")
    if os.geteuid() == 0 and shutil.which("ip", path=namespaces.PATH):
        namespaces.sweep()
    if not listens(place):  # else another one has the name
        for each in (state_file(name), place):
            each.unlink(missing_ok=True)
    return state is not None


def _ended(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while namespaces.start_of(pid):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # if this process has started it
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
