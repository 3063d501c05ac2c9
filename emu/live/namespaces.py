"""Network namespaces and the addresses in them, through the program `ip` of iproute2.

Owns the names of namespaces, the removal of stale namespaces, and the calls of `ip`. Does not own
packets or processes (cluster.py).
Source: Linux, ip-netns(8), user_namespaces(7), proc_pid_stat(5).

The name of a namespace is ondie-PID-NUMBER, where PID is the ID of the process that created it. The
namespaces and veth devices of terminated processes are found by their names and removed.
"""

from __future__ import annotations

import ctypes
import ipaddress
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from ondie.emu.units import InputError

PREFIX = "ondie-"
OURS = re.compile(rf"{PREFIX}(\d+)-\d+")
LINK = re.compile(r"ondie(\d+)")
"""Pattern of the names of the hosts' veth devices, with the process ID of the cluster as its group.
These devices must be removed explicitly, whereas a TUN device is removed when its process
terminates."""
FOLDER = Path("/run/netns")
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
RUN_S = 20.0
PR_SET_PDEATHSIG = 1
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000


def tool(name: str) -> str:
    """Return the path of the program ``name``. Raises InputError if it is not installed."""
    found = shutil.which(name, path=PATH)
    if found is None:
        raise InputError(f"{name}: not found; install iproute2 and util-linux")
    return found


def run(*words: str, text: str = "") -> str:
    """Run `ip` with the arguments ``words`` and the input ``text``; return its output. Raises
    InputError if `ip` is not installed, fails, or takes longer than RUN_S."""
    return run_tool("ip", *words, text=text)


def run_tool(name: str, *words: str, text: str = "") -> str:
    """Run a program and wait for its termination; return its output. Raises InputError if the
    program is not installed, fails, or takes longer than RUN_S."""
    try:
        done = subprocess.run([tool(name), *words], input=text, capture_output=True, text=True,
                              timeout=RUN_S)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(
            f"{name} {' '.join(words)}: did not end within {RUN_S:g} s; try again"
        ) from None
    if done.returncode:
        why = " ".join((done.stderr or done.stdout).split())
        raise InputError(f"{name} {' '.join(words)}: {why}")
    return done.stdout


def batch(namespace: str, *lines: str) -> None:
    """Run ``lines`` as commands of `ip` in a namespace; "" is the namespace of this process. Raises
    InputError as :func:`run` does."""
    where = ("-n", namespace) if namespace else ()
    run(*where, "-batch", "-", text="\n".join(lines) + "\n")


def start_of(pid: int) -> int:
    """Return the start time of a process, in clock ticks since boot, or 0 if the process does not
    exist or has terminated."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])


def namespaces() -> list[str]:
    """Return the names of all network namespaces that ondie has created, in sorted order."""
    if not FOLDER.is_dir():
        return []
    return sorted(name for name in os.listdir(FOLDER) if OURS.fullmatch(name))


def sweep(pid: int = 0) -> list[str]:
    """Remove the namespaces and veth devices that terminated processes or process ``pid`` have
    created. Return the names of the removed namespaces. Raises InputError as :func:`run` does."""
    found = []
    for row in json.loads(run("-j", "link", "show", "type", "veth") or "[]"):
        match = LINK.fullmatch(row.get("ifname", ""))
        if match is not None and (int(match[1]) == pid or not start_of(int(match[1]))):
            _remove("link", "del", match[0])
    for name in namespaces():
        match = OURS.fullmatch(name)
        assert match is not None
        owner = int(match[1])
        if owner == pid or not start_of(owner):
            _remove("netns", "del", name)
            found.append(name)
    return found


def _remove(kind: str, *words: str) -> None:
    """Remove a device or namespace. Raises InputError if the removal fails, unless another process
    has removed it."""
    try:
        run(kind, *words)
    except InputError:
        listed = namespaces() if kind == "netns" else os.listdir("/sys/class/net")
        if words[-1] in listed:
            raise


def check_store(network: ipaddress.IPv4Network) -> None:
    """Raise InputError if a route of this host overlaps ``network``, or if `ip` is not installed or
    fails. The routes include the local routes of the host's addresses, but not the default
    route."""
    for row in json.loads(run("-j", "-4", "route", "show", "table", "all") or "[]"):
        where = row.get("dst", "default")
        if where == "default":
            continue
        other = ipaddress.ip_network(where, strict=False)
        if other.overlaps(network):
            raise InputError(
                f"--subnet {network}: address in use: {where} is a route of device "
                f"{row.get('dev', '?')}; use a network to which this host has no route"
            )


def become_root() -> None:
    """Enter new user, network and mount namespaces, in which this user is root and /run is empty.
    The process must have only one thread. Raises InputError if one of the steps fails."""
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS):
        raise InputError(f"cannot create a user namespace: {os.strerror(ctypes.get_errno())}")
    maps = {"setgroups": "deny", "uid_map": f"0 {user} 1", "gid_map": f"0 {group} 1"}
    for name, text in maps.items():
        try:
            Path("/proc/self", name).write_text(text)
        except OSError as error:
            raise InputError(
                f"cannot set up a user namespace: /proc/self/{name}: {error.strerror}"
            ) from error
    run_tool("mount", "--make-rprivate", "/")
    run_tool("mount", "-t", "tmpfs", "none", "/run")
    batch("", "link set lo up")
