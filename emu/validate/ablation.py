"""Ablation of on-die update protections: the protection that on-die update bypasses, and its cost.

Owns the list of protections, the purpose of each, and the table. Does not own the implementation of
a protection (paths/on_die/protection.py, compute/pe.py) or its time and energy (the engine,
analysis/energy.py).
Source: OptimStore (HPCA 2023) omits all of these protections. The controller applies them to every
page that passes through it. A page that a processing element changes in the page registers does not
pass through the controller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from ondie.emu.config.config import Config
from ondie.emu.config.leaf import spelled
from ondie.emu.paths.base import Options, Unavailable
from ondie.emu.units import InputError, fmt_time, quoted
from ondie.emu.validate.update_stage import Stage, stage
from ondie.traces import Trace

DIES_OF_PARITY = 16
"""Dies per parity stripe in the table: 15 data dies and one parity die.

A drive with fewer than 16 dies uses all of its dies. pe.rain accepts other values.
"""


@dataclass(frozen=True)
class Protection:
    """Protection that one or several configuration settings enable, and its purpose."""

    name: str
    settings: dict[str, Any]
    breaks: str
    """Fault without this protection."""
    repair: str
    """Implementation with on-die update."""
    impossible: str = ""
    """Reason why this drive cannot have it; empty if it can."""


NOTHING: dict[str, Any] = {
    "pe.randomiser": "none", "pe.cipher": "none", "pe.integrity": "none",
    "pe.protection": "nan_comparator", "pe.rain": 0, "pe.atomicity": "none",
}  # fmt: skip
DIE: dict[str, Any] = {"pe.randomiser": "die", "pe.cipher": "die", "pe.integrity": "die"}
BARE = (
    Protection("none, as published", {}, "", ""),
    Protection(
        "data randomiser",
        {"pe.randomiser": "die"},
        "stored patterns are those of the states: long runs of equal cells disturb their "
        "neighbours, and what the controller writes cannot be read by the elements",
        "a key stream by row address, a pass of the elements after sensing and one before "
        "programming",
    ),
    Protection(
        "encryption (XTS)",
        {"pe.cipher": "die"},
        "states lie in the flash as plain text; or, under the drive's key, the elements compute "
        "with ciphers",
        "an AES-XTS engine on each die, over every page it senses and programs; the key leaves the "
        "controller",
    ),
    Protection(
        "end-to-end protection",
        {"pe.integrity": "die"},
        "the guard of every sector is that of the last content the host sent: all fail when read",
        "the elements check the guard of what they sense, and make that of what they program; "
        "from die to host only, since no host has seen the states",
    ),
    Protection(
        "ECC parity, on the die",
        {"pe.protection": "on_die_ecc"},
        "a page programmed by an element has no valid parity: wrong bits persist in w, m and v, "
        "and nobody can correct them later, the controller neither",
        "an engine on each die (10 bit/1 KiB), decoding before the update and encoding after it; "
        "its 17.5 B per KiB lie in the page's spare area",
    ),
    Protection(
        "ECC parity, by the controller",
        {"pe.protection": "controller_ecc"},
        "the same",
        "states out to the decoder and back, results out to the encoder for their parity: 36 "
        "B/param more on the channel with Adam",
    ),
)
ATOMICITY = (
    Protection(
        "atomicity, step goes on",
        {"pe.atomicity": "resume"},
        "gradients are volatile: after a power cut part of w, m and v is of this step, part of "
        "the last, and nothing says which",
        "programs carry step and super-page out of band, every die programs a record when its "
        "step is done; the host keeps the gradients until then and sends the rest again",
    ),
    Protection(
        "atomicity, step is undone",
        {"pe.atomicity": "undo"},
        "the same",
        "old super-pages stay until the records are programmed: room for two versions; the step "
        "that was cut is lost, and the host need not keep its gradients",
    ),
)


def protections(dies: int) -> tuple[Protection, ...]:
    """Return the protections of a drive with ``dies`` dies, one per table row.

    A drive with one die has no second die for parity: its RAIN row states this, and its last two
    rows omit RAIN.
    """
    over = min(DIES_OF_PARITY, dies)
    rain = Protection(
        f"RAIN over {over} dies" if over > 1 else "RAIN over dies",
        {"pe.rain": over},
        "parity over dies is stale with the first update: a die that fails takes its states along",
        "results are read out of the registers, the controller programs a super-page of parity "
        f"for each {over - 1}",
        "" if over > 1 else "the drive has 1 die: parity would lie beside what it is for",
    )
    every = DIE | {"pe.atomicity": "resume"} | ({"pe.rain": over} if over > 1 else {})
    name, of_it = ("all", "all of it") if over > 1 else ("all but RAIN", "all of it but RAIN")
    both = (
        Protection(
            f"{name}, {where}",
            {**every, "pe.protection": code},
            of_it,
            f"{of_it}, ECC by the {who}",
        )
        for where, who, code in (
            ("on the die", "die", "on_die_ecc"),
            ("ECC by the controller", "controller", "controller_ecc"),
        )
    )
    return (*BARE, rain, *ATOMICITY, *both)


@dataclass(frozen=True)
class Repaired:
    """Update stage of on-die update with one protection."""

    protection: Protection
    stage: Stage | None
    """None if this protection cannot run."""
    bare: Stage
    """Update stage without protections."""
    baseline_s: float | None
    """Update stage of serial host offload on the same drive (s); None if it does not fit."""
    params: int
    reason: str = ""
    """Reason why this protection cannot run."""

    @property
    def channel_bytes(self) -> int:
        """Bytes over the channels in the update stage; requires that ``stage`` is not None."""
        assert self.stage is not None
        by = self.stage.totals.bytes_by
        return by["channels in"] + by["channels out"]

    def data(self) -> dict[str, Any]:
        """Return the row as --json writes it."""
        s = self.stage
        words = {
            "name": self.protection.name,
            "settings": self.protection.settings,
            "breaks": self.protection.breaks,
            "repair": self.protection.repair,
        }
        if s is None:
            return words | {"status": "n/a", "reason": self.reason}
        return words | {
            "status": "ok",
            "update_s": s.seconds,
            "update_ratio": s.seconds / self.bare.seconds,
            "speedup_over_host_offload": self.speedup,
            "drive_j": list(s.energy.drive),
            "drive_ratio": s.drive_j / self.bare.drive_j,
            "drive_and_host_j": list(s.energy.storage_and_host),
            "channel_bytes_per_param": self.channel_bytes / self.params,
            "reserved_pages": s.reserved,
            "reserved_ratio": s.reserved / self.bare.reserved,
        }

    @property
    def speedup(self) -> float | None:
        """Speedup over serial host offload; None if either did not run."""
        if self.baseline_s is None or self.stage is None:
            return None
        return self.baseline_s / self.stage.seconds


def check(cfg: Config) -> None:
    """Raise InputError if the configuration already sets a protection that the table varies."""
    if cfg.pe.kind == "none":
        return  # on-die update is unavailable; its own error gives the reason
    for key, value in NOTHING.items():
        leaf = cfg.leaf(key)
        if leaf.value != value:
            raise InputError(
                f"{cfg.system.name}: {key} = {quoted(leaf.text)}: the table varies {key} itself, "
                f"from {quoted(spelled(value))} on; leave it out, or take `ondie compare`"
            )


def ablation(
    cfg: Config,
    trace: Trace,
    options: Options | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> list[Repaired]:
    """Simulate the first step of a trace with each protection.

    Raises InputError if the device or the model cannot run on-die update without protections, or if
    the configuration already sets a protection.
    """
    check(cfg)
    rows = protections(cfg.flash.channels * cfg.flash.dies_per_channel)
    bare = None
    found: list[tuple[Stage | None, str]] = []
    for i, row in enumerate(rows):
        if progress is not None:
            progress("ablation", i / (len(rows) + 1))
        if row.impossible:
            found.append((None, row.impossible))
            continue
        try:
            ran = stage("on_die", cfg.replace(NOTHING | row.settings), trace, options)
        except Unavailable as error:
            if bare is None:
                raise
            found.append((None, str(error)))
            continue
        bare = bare or ran
        found.append((ran, ""))
    assert bare is not None
    try:
        baseline = stage("host_offload", cfg, trace, options).seconds
    except Unavailable:
        baseline = None
    return [
        Repaired(row, ran, bare, baseline, trace.n_params, reason)
        for row, (ran, reason) in zip(rows, found, strict=True)
    ]


def tables(found: list[Repaired], title: str) -> list[Table]:
    """Return two tables: the cost of each protection, and the fault that it prevents."""
    costs = Table(title=f"Update stage on the dies alone, repaired: {title}", title_justify="left")
    for column in ("protection", "update stage", "", "over host offload", "channel, B/param",
                   "J drive", "",
                   "J drive + host", "states on flash"):  # fmt: skip
        left = column == "protection"
        costs.add_column(column, justify="left" if left else "right", no_wrap=left)
    for r in found:
        s, bare = r.stage, r.bare
        if s is None:
            costs.add_row(r.protection.name, "n/a", *[""] * 7)
            continue
        costs.add_row(
            r.protection.name,
            fmt_time(s.seconds * 1e12),
            f"{s.seconds / bare.seconds - 1:+.1%}",
            "" if r.speedup is None else f"{r.speedup:.2f}x",
            f"{r.channel_bytes / r.params:.1f}",
            f"{s.drive_j:.3g} J",
            f"{s.drive_j / bare.drive_j - 1:+.1%}",
            f"{s.all_j:.3g} J",
            f"{s.reserved / bare.reserved - 1:+.1%}",
        )
    reasons = [f"{r.protection.name}: n/a: {r.reason}" for r in found if r.stage is None]
    if reasons:
        costs.caption, costs.caption_justify = "\n".join(reasons), "left"
    words = Table(title="What breaks without, and how it is repaired", title_justify="left")
    for column in ("protection", "without", "repaired"):
        words.add_column(column)
    for r in found[1:]:
        if not r.protection.name.startswith("all"):
            words.add_row(r.protection.name, r.protection.breaks, r.protection.repair)
    return [costs, words]
