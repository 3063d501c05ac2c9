"""Validation of the commands that a device accepts.

Owns the rules that a batch of commands must meet before any command is queued, and the text of the
errors. Does not own the command record, queues and depths (command.py) or the execution of a
command (command_split.py).
Source: NVMe base specification: invalid opcode, LBA out of range, MDTS; the command record
(command.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.nvme import command
from ondie.emu.units import InputError

UNSUPPORTED = ("priority", "fence_token", "atomic_unit")
"""Fields of a command that must be 0 because the device does not implement them."""


@dataclass(frozen=True)
class Limits:
    """Limits that a device imposes on a batch of commands at the time of submission."""

    lpns: int
    """Number of logical pages of the device."""
    transfer_pages: int
    """Maximum number of pages of a command (MDTS)."""
    arrival: int
    """Earliest allowed arrival time, ps."""
    slots: int | None
    """Number of pages of the caller's payload buffer; None = the device stores no payload."""
    payload_known: bool = False
    """True if the payload is stored elsewhere; ``payload_slot`` is then not checked."""
    streams: int = 1
    """Number of streams that writes may name (ftl.write_streams)."""


def check(commands: np.ndarray, limits: Limits) -> None:
    """Check ``commands`` (command.COMMAND[n]). Raise InputError for the first rule that they break.

    The error names the first command that breaks the rule, the field, its value and the allowed
    values.
    """
    if commands.dtype != command.COMMAND or commands.ndim != 1:
        raise InputError(
            f"commands: {commands.dtype} in {commands.ndim} dimensions: "
            "must be a one-dimensional array of nvme.command.COMMAND"
        )
    for name, bad, right in (*_rules(commands, limits), *_payload_rules(commands, limits)):
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise InputError(f"command {at}: {name} = {int(commands[name][at])}: {right}")


Rule = tuple[str, np.ndarray, str]


def _rules(cfg: np.ndarray, limits: Limits) -> list[Rule]:
    op, lpn, count = cfg["op"], cfg["lpn"], cfg["n"]
    sized = op != command.FLUSH
    moves = (op == command.READ) | (op == command.WRITE)
    before = np.concatenate([[limits.arrival], cfg["arrival"]])[:-1]
    last = limits.lpns - 1
    return [
        ("op", (op < 0) | (op > command.FLUSH), "must be from 0 to 3: "
        f"{', '.join(command.COMMAND_NAMES)}"),
        ("n", sized & (count < 1), "must be at least 1 page"),
        ("n", ~sized & (count != 0), "must be 0 for a FLUSH"),
        ("lpn", sized & ((lpn < 0) | (lpn > last)), "must be a logical page of the device, from "
        f"0 to {last}"),
        ("n", sized & (count > limits.lpns - lpn), f"extends beyond the last logical page {last}"),
        ("n", moves & (count > limits.transfer_pages),
         f"must be at most {limits.transfer_pages} pages (frontend.max_transfer)"),
        ("arrival", cfg["arrival"] < before,
         f"must be in ps, sorted, and not before {limits.arrival} ps"),
        ("arrival", cfg["arrival"] >= NEVER, f"must be below {NEVER} ps"),
        ("stream", (cfg["stream"] < 0) | (cfg["stream"] >= limits.streams),
         f"must be from 0 to {limits.streams - 1} (ftl.write_streams)"),
        ("fua", (cfg["fua"] != 0) & (cfg["fua"] != 1), "must be 0 or 1"),
        *((name, cfg[name] != 0, "must be 0; nothing else is "
        "supported") for name in UNSUPPORTED),
    ]  # fmt: skip


def _payload_rules(cfg: np.ndarray, limits: Limits) -> list[Rule]:
    op, count, slot = cfg["op"], cfg["n"], cfg["payload_slot"]
    moves = (op == command.READ) | (op == command.WRITE)
    if limits.payload_known:
        return []
    if limits.slots is None:
        return [("payload_slot", slot != -1, "must be -1: the device keeps no payload")]
    return [
        ("payload_slot", (op == command.WRITE) & (slot == -1), "must not be -1 for a write"),
        ("payload_slot", slot < -1, "must be a slot of the buffer, or -1 for timing only"),
        ("payload_slot", moves & (slot >= 0) & (count > limits.slots - slot),
         f"extends beyond the end of the buffer of {limits.slots} pages"),
    ]  # fmt: skip
