"""What on-die update breaks, and what it costs to repair: one table.

Owns the list of protections, what each is for, and the table. Does not own how a repair is done
(paths/guards.py, isp/pe.py) or what it takes (the engine, energy.py).
Source: OptimStore (HPCA 2023) leaves all of them out. A controller does them for every page that
passes it; a page that a processing element has changed in the registers does not.
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
"""Dies of a parity stripe in the table: 15 of data and one of parity, as drives of 16 dies and more
have it; all dies of a smaller drive. pe.rain takes any other."""


@dataclass(frozen=True)
class Protection:
    """One toggle, or several: settings of the configuration, and what they are for."""

    name: str
    settings: dict[str, Any]
    breaks: str
    """What is wrong without it."""
    repair: str
    """How it works with on-die update."""
    impossible: str = ""
    """Why this drive cannot have it."""


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
    """The rows of a drive of so many dies. One die has no other for its parity: that row says so,
    and the last two go without."""
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


PROTECTIONS = protections(DIES_OF_PARITY)
"""Of drives with as many dies and more."""


@dataclass(frozen=True)
class Repaired:
    """What the on-die update takes with a protection."""

    protection: Protection
    stage: Stage | None
    """None where it cannot run."""
    bare: Stage
    baseline_s: float | None
    """Update stage of serial host offload on the same drive; None where it does not fit."""
    params: int
    reason: str = ""
    """Why it cannot run."""

    @property
    def channel_bytes(self) -> int:
        """Over the channels, in the update stage; of a row that ran."""
        assert self.stage is not None
        by = self.stage.totals.bytes_by
        return by["channels in"] + by["channels out"]

    def data(self) -> dict[str, Any]:
        """The row as --json writes it."""
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
        if self.baseline_s is None or self.stage is None:
            return None
        return self.baseline_s / self.stage.seconds


def check(cfg: Config) -> None:
    """InputError where a configuration has a protection of its own: the rows set them all."""
    if cfg.pe.kind == "none":
        return  # nothing runs, for a better reason
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
    """The first step of a trace with each protection, simulated. InputError where the device or the
    model cannot run it without any, or the configuration has one already."""
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
    """Costs, and what they buy."""
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
