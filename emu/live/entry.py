"""Access to an end of a running cluster: the command line and the environment variables of a
program that runs there.

Owns the names of ends, and the environment of a program at an end. Does not own namespaces
(namespaces.py) or the report of a cluster (relay.py).
Source: Linux, ip-netns(8), nsenter(1).
"""

from __future__ import annotations

from typing import Any

from ondie.emu.live import namespaces, processes
from ondie.emu.units import InputError

ADDRESS, DEVICE = "ONDIE_TUNNEL_ADDRESS", "ONDIE_TUNNEL_DEVICE"
OTHERS = "ONDIE_TUNNEL_OTHERS"
"""Names of the environment variables of a program that runs at an end (the host or a drive).
ADDRESS contains the IPv4 address of the end, DEVICE the name of its network device, and OTHERS the
network of the addresses at which the program reaches the other ends."""
LOOPBACK = "lo"


def end_of(found: dict[str, Any], where: str) -> int:
    """Return the number of the drive that ``where`` names, or -1 if ``where`` names the host.
    ``where``: "host", the number of a drive, or the address of the host or of a drive. ``found``:
    report of the cluster's relay (Relay.report). Raises InputError if ``where`` names neither."""
    drives = found["drives"]
    if where in map(str, range(len(drives))):
        return int(where)
    addresses = [drive["address"] for drive in drives]
    if where in addresses:
        return addresses.index(where)
    if where in ("host", found["host"]["address"]):
        return -1
    most = len(drives) - 1
    raise InputError(
        f"{where}: no such end of the tunnel; must be host, a drive from 0 to {most}, or the "
        "address of an end"
    )


def words_at(found: dict[str, Any], where: str, command: tuple[str, ...], shell: bool) -> list[str]:
    """Return the command line that runs ``command`` on the host or drive ``where``
    (:func:`end_of`). ``found``: report of the cluster's relay. ``shell``: True to join the words of
    ``command`` with spaces and pass the line to sh, as ssh does. Raises InputError if there is no
    such host or drive, or if a required program is not installed."""
    number = end_of(found, where)
    words = processes.inside(found)
    if number >= 0 and (space := found["drives"][number]["namespace"]):
        words += [namespaces.tool("ip"), "netns", "exec", space]
    return [*words, "sh", "-c", " ".join(command)] if shell else [*words, *command]


def variables_at(found: dict[str, Any], where: str) -> dict[str, str]:
    """Return the environment variables (ADDRESS, DEVICE, OTHERS) of a program on the host or drive
    ``where`` (:func:`end_of`). ``found``: report of the cluster's relay. Raises InputError if there
    is no such host or drive."""
    number = end_of(found, where)
    end = found["host"] if number < 0 else found["drives"][number]
    device = end["device"] or LOOPBACK
    return {ADDRESS: end["address"], DEVICE: device, OTHERS: end["others"]}
