"""Ablation of on-die update protections: the protections that on-die update bypasses, and their
cost.

Owns the list of protections, the purpose of each, and the table. Does not own the implementation of
a protection (paths/on_die/protection.py, compute/pe.py) or its time and energy (the engine,
analysis/energy.py). Source: OptimStore (HPCA 2023), which omits all of these protections.

The controller applies these protections to every page that passes through it. A page that a
processing element changes in the page registers does not pass through the controller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from ondie.emu.config.config import Config
from ondie.emu.config.leaf import spelled
from ondie.emu.paths.base import Options, Unavailable
from ondie.emu.units import InputError, fmt_energy, fmt_time, quoted
from ondie.emu.validate.update_stage import Stage, stage
from ondie.traces import Trace

DIES_OF_PARITY = 16
"""Number of dies per parity stripe in the table: 15 data dies and one parity die.

For a drive with fewer than 16 dies, the stripe has all dies of the drive. pe.rain accepts other
values.
"""


@dataclass(frozen=True)
class Protection:
    """Protection that one or several configuration settings enable, and its purpose.

    ``settings``: values of the configuration keys.
    """

    name: str
    settings: dict[str, Any]
    breaks: str
    """Data fault that can occur without this protection."""
    repair: str
    """Way in which an on-die update can implement this protection."""
    impossible: str = ""
    """Reason why this drive cannot have this protection; empty if it can."""


NOTHING: dict[str, Any] = {
    "pe.randomiser": "none", "pe.cipher": "none", "pe.integrity": "none",
    "pe.protection": "nan_comparator", "pe.rain": 0, "pe.atomicity": "none",
}  # fmt: skip
DIE: dict[str, Any] = {"pe.randomiser": "die", "pe.cipher": "die", "pe.integrity": "die"}
BARE = (
    Protection("none, as published", {}, "", ""),
    Protection(
        "data randomizer",
        {"pe.randomiser": "die"},
        "flash stores the states without scrambling: long runs of equal cells disturb their "
        "neighbors, and the elements cannot read pages that the controller scrambled",
        "the elements apply a key stream, seeded by the row address, in one pass after sensing and "
        "one pass before programming",
    ),
    Protection(
        "encryption (XTS)",
        {"pe.cipher": "die"},
        "flash stores the states as plain text; with the drive's encryption, the elements would "
        "compute with ciphertext",
        "an AES-XTS engine on each die processes every page that the die senses and programs; the "
        "key leaves the controller",
    ),
    Protection(
        "end-to-end protection",
        {"pe.integrity": "die"},
        "the guard of a sector belongs to the content that the host sent last: the check of every "
        "updated sector fails when it is read",
        "the elements check the guards of pages that they sense and compute the guards of pages "
        "that they program; protection covers die to host only, because the host has not seen the "
        "states",
    ),
    Protection(
        "ECC parity, on the die",
        {"pe.protection": "on_die_ecc"},
        "a page programmed by an element has no valid parity: bit errors persist in w, m and v, "
        "and the controller cannot correct them later",
        "an engine on each die (10 bit/1 KiB) decodes before the update and encodes after it; the "
        "spare area of the page holds its 17.5 B per KiB",
    ),
    Protection(
        "ECC parity, by the controller",
        {"pe.protection": "controller_ecc"},
        "as in the row above",
        "states move to the controller's decoder and back, and results move to its encoder, which "
        "computes their parity: 36 B/param more on the channel with Adam",
    ),
)
ATOMICITY = (
    Protection(
        "atomicity, step is resumed",
        {"pe.atomicity": "resume"},
        "gradients are volatile: after a power cut, part of w, m and v belongs to this step and "
        "part to the previous one, and no record distinguishes them",
        "programs carry step and super-page numbers out of band, and every die programs a record "
        "when it has finished the step; the host keeps the gradients until then and sends the "
        "missing ones again",
    ),
    Protection(
        "atomicity, step is undone",
        {"pe.atomicity": "undo"},
        "as in the row above",
        "old super-pages stay valid until the records are programmed, which needs space for two "
        "versions; the interrupted step is lost, and the host need not keep its gradients",
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
        "parity over dies is stale after the first update: the states of a failed die are lost",
        "results are read from the registers, and the controller programs one super-page of parity "
        f"for every {over - 1} super-pages of results",
        "" if over > 1 else "the drive has 1 die: parity would be on the die that it protects",
    )
    every = DIE | {"pe.atomicity": "resume"} | ({"pe.rain": over} if over > 1 else {})
    name, above = (
        ("all", "all of the above") if over > 1 else ("all but RAIN", "all of the above but RAIN")
    )
    both = (
        Protection(
            f"{name}, {where}",
            {**every, "pe.protection": code},
            above,
            f"{above}, ECC by the {who}",
        )
        for where, who, code in (
            ("on the die", "die", "on_die_ecc"),
            ("ECC by the controller", "controller", "controller_ecc"),
        )
    )
    return (*BARE, rain, *ATOMICITY, *both)


@dataclass(frozen=True)
class Repaired:
    """Result of the update stage of on-die update (``stage``) with one added protection."""

    protection: Protection
    stage: Stage | None
    """Result of the update stage with this protection; None if this drive cannot run it."""
    bare: Stage
    """Result of the update stage without any of the added protections, as published."""
    baseline_s: float | None
    """Time of the update stage of serial host offload on the same drive (s); None if this path
    cannot run."""
    params: int
    reason: str = ""
    """Reason why the update stage cannot run with this protection; empty if it can."""

    @property
    def channel_bytes(self) -> int:
        """Bytes transferred over the channels in the update stage; requires that ``stage`` is not
        None."""
        assert self.stage is not None
        by = self.stage.totals.bytes_by
        return by["channels in"] + by["channels out"]

    def data(self) -> dict[str, Any]:
        """Return the fields of this row in the result of --json."""
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
        """Speedup of the update stage with this protection over serial host offload; None if this
        drive cannot run the update stage with this protection, or cannot run serial host
        offload."""
        if self.baseline_s is None or self.stage is None:
            return None
        return self.baseline_s / self.stage.seconds


def check(cfg: Config) -> None:
    """Raise InputError if the configuration already sets a key that the table varies."""
    if cfg.pe.kind == "none":
        return  # on-die update is unavailable; its own error gives the reason
    for key, value in NOTHING.items():
        leaf = cfg.leaf(key)
        if leaf.value != value:
            raise InputError(
                f"{cfg.system.name}: {key} = {quoted(leaf.text)}: the table varies this key, "
                f"starting from {quoted(spelled(value))}; remove this setting, or use `ondie "
                "compare`"
            )


def ablation(
    cfg: Config,
    trace: Trace,
    options: Options | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> list[Repaired]:
    """Simulate the first step of a trace with each protection, and return one result per
    protection.

    Raises InputError if the configuration already sets a key that the table varies, and Unavailable
    if on-die update cannot run without protections on this device or with this model.
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
    costs = Table(
        title=f"Cost of each protection of the on-die update: {title}",
        title_justify="left",
    )
    for column in ("protection", "update stage", "", "over host offload", "channel, B/param",
                   "energy, drive", "",
                   "energy, drive + host", "states on flash"):  # fmt: skip
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
            f"{s.seconds / bare.seconds - 1:+z.1%}",
            "" if r.speedup is None else f"{r.speedup:.2f}x",
            f"{r.channel_bytes / r.params:.1f}",
            fmt_energy(s.drive_j * 1e15),
            f"{s.drive_j / bare.drive_j - 1:+z.1%}",
            fmt_energy(s.all_j * 1e15),
            f"{s.reserved / bare.reserved - 1:+z.1%}",
        )
    reasons = [f"{r.protection.name}: n/a: {r.reason}" for r in found if r.stage is None]
    if reasons:
        costs.caption, costs.caption_justify = "\n".join(reasons), "left"
    words = Table(
        title="Data faults without each protection, and implementation of the protection",
        title_justify="left",
    )
    for column in ("protection", "without", "repaired"):
        words.add_column(column)
    for r in found[1:]:
        if not r.protection.name.startswith("all"):
            words.add_row(r.protection.name, r.protection.breaks, r.protection.repair)
    return [costs, words]
