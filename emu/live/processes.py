"""Clusters as background processes: start, programs that run inside the clusters, and termination.

Owns the state file, which identifies the process of a cluster. Does not own the work of this
process (cluster.py).
Source: this project.
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
    """Return the path of the state file of the running cluster ``name``. Raises InputError if the
    name is invalid.

    The file contains {"pid": process ID, "start": start time of the process, "own_user": true if
    the process is in a user namespace}.
    """
    return file_of(name, "json")


def write_state(cluster: Cluster) -> None:
    """Write the state file of a cluster (see :func:`state_file`)."""
    state = {"pid": cluster.pid, "start": namespaces.start_of(cluster.pid),
             "own_user": cluster.way.own_user}  # fmt: skip
    state_file(cluster.request.name).write_text(json.dumps(state))


def read_state(name: str) -> dict[str, Any] | None:
    """Return the content of the state file of the running cluster ``name`` (see
    :func:`state_file`), or None if no such cluster is running."""
    file = state_file(name)
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        return found if namespaces.start_of(found["pid"]) == found["start"] != 0 else None
    except (OSError, ValueError, KeyError):
        return None


def start(request: Request, way: Way) -> int:
    """Start a cluster in the background. Return its process ID when packets can pass between the
    host and the drives. The output of the cluster is written to the file NAME.log. Raises
    InputError if the cluster cannot start."""
    return _start(request, way, file_of(request.name, "log"))


def run(request: Request, way: Way, ready: Callable[[int], None]) -> None:
    """Run a cluster until this process terminates or receives SIGTERM, SIGINT or SIGHUP. ``ready``:
    function that is called with the process ID of the cluster when packets can pass.

    The cluster runs in a separate process, because this process may have threads, and a process
    with threads can neither enter a user namespace nor fork safely. Raises InputError if the
    cluster cannot start or terminates with an error.
    """
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
        raise InputError(
            f"tunnel up: process {pid} has ended with an error; see its messages above"
        )


def _start(request: Request, way: Way, log: Path | None) -> int:
    """Start the process of a cluster. Return its process ID when packets can pass. ``log``: file
    for the output; if it is None, the process shares the output of this process and terminates with
    this process. Raises InputError if the cluster cannot start."""
    parent = os.getpid()

    def run(ready: Callable[[], None]) -> None:
        _be_cluster(request, way, log, parent, ready)

    return forked.start(
        run,
        f"tunnel up: the cluster has ended during its start{'' if log is None else f'; see {log}'}",
    )


def _be_cluster(
    request: Request, way: Way, log: Path | None, parent: int, told: Callable[[], None]
) -> None:
    """Run the cluster in this process. ``told``: function that is called when packets can pass.
    Raises InputError if the cluster cannot start."""
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
    """Return the report of cluster ``name`` (Relay.report) with the kernel's counters of its
    devices. Raises InputError if no such cluster is running, or if the cluster does not answer."""
    deadline = time.monotonic() + ANSWER_S
    while (found := _asked(name)) is None:  # the relay has ended, and the next one will answer
        if time.monotonic() > deadline:
            raise InputError(
                f"--name {name}: the cluster did not answer within {ANSWER_S:g} s; see "
                f"{file_of(name, 'log')}, or its terminal if it was started with --foreground"
            )
        time.sleep(0.01)
    counted = [("", found["host"]), *((each["namespace"], each) for each in found["drives"])]
    for space, each in counted:
        each["kernel"], each["kernel_missing"] = _kernel_counters(found, space, each["device"])
    return found


def _asked(name: str) -> dict[str, Any] | None:
    """Return the report of a cluster's relay, or None if the relay terminated before it answered.
    Raises InputError if there is no such cluster, or if the relay does not answer in time."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(ANSWER_S)
        try:
            client.connect(str(file_of(name, "sock")))
        except OSError:
            raise InputError(
                f"--name {name}: no cluster with this name is up; start it with `ondie tunnel up`"
            ) from None
        text = b""
        try:
            while part := client.recv(1 << 16):
                text += part
            found: dict[str, Any] = json.loads(text)
        except TimeoutError:
            raise InputError(
                f"--name {name}: the cluster did not answer within {ANSWER_S:g} s; see "
                f"{file_of(name, 'log')}, or its terminal if it was started with --foreground"
            ) from None
        except (OSError, ValueError):
            return None
    return found


def _kernel_counters(found: dict[str, Any], space: str, device: str) -> tuple[dict[str, int], str]:
    """Return the kernel's counters of a device and "", or an empty dictionary and the reason why
    there are no counters. This process reads the counters, because packets would wait if the
    cluster's process read them."""
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
    """Return the start of a command line that runs a program in the namespaces of a cluster's host.
    The list is empty if the host has no separate namespaces. ``found``: report of the cluster.
    Raises InputError if a required program is not installed."""
    if not found["own_user"]:
        return []
    tool = namespaces.tool("nsenter")
    return [tool, "-t", str(found["pid"]), "-U", "-n", "-m", "--preserve-credentials"]


def stop(name: str) -> bool:
    """Terminate a cluster, including one that has not completed its start, and remove its files,
    namespaces and devices. Return False if no such cluster was running. Raises InputError if the
    name is invalid, if the process of the cluster is unknown or does not terminate, or if stale
    namespaces cannot be removed."""
    place, state = file_of(name, "sock"), read_state(name)
    deadline = time.monotonic() + END_S
    while state is None and listens(place):  # it is about to say which process it is, or to end
        if time.monotonic() > deadline:
            raise InputError(
                f"--name {name}: {place} belongs to an unknown process; end this process"
            )
        time.sleep(0.01)
        state = read_state(name)
    if state is not None:
        pid = state["pid"]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        if not _ended(pid, END_S):
            os.kill(pid, signal.SIGKILL)
            if not _ended(pid, END_S):
                raise InputError(
                    f"--name {name}: process {pid} is still running after SIGKILL; try again later"
                )
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
