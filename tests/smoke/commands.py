"""The `ondie` command for tests: in this process where that is enough, else as a user starts it.

Owns running it, its outcome, what it left on disk, and a short start of scripts with torch. Does
not own any expectation but the one form of every error: one line on standard error.
Source: own.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ondie.emu.analysis.compare import compare
from ondie.emu.cli.main import main
from ondie.emu.config.config import Config, Leaf, load_preset
from ondie.emu.nand.timing import word_line_pages
from ondie.emu.units import KINDS
from ondie.emu.validate import model

SMALL = ("flash.channels=2", "flash.dies_per_channel=2", "flash.blocks_per_plane=64",
         "flash.pages_per_block=16", "ftl.gc_low_blocks=2")  # fmt: skip
"""Overrides that make a drive of four dies, each of which a small model uses."""
SHORT = SMALL[2:]
"""Overrides that leave all dies, with few and short blocks."""
BY_SMALL = tuple(word for text in SMALL for word in ("--set", text))
"""SMALL as options of a command."""


def small_for(name):
    """SMALL, with whole word lines per block for a preset that programs these."""
    line = word_line_pages(load_preset(name))
    return SMALL if line == 1 else (*SMALL[:3], f"flash.pages_per_block={6 * line}", SMALL[4])


LITTLE_FLASH = ("flash.dies_per_channel=2", "flash.blocks_per_plane=64")
"""Overrides that make a drive whose channels and capacity suffice for a cluster's photos."""


@dataclass(frozen=True)
class Outcome:
    """What a command gave."""

    code: int
    out: str
    err: str


@functools.cache
def compiled() -> None:
    """Fill the compile cache, so that no test's clock pays for it."""
    compare(model("adam", 1000), load_preset("optimstore-r1"), swing=False)


NO_COMPILER = """
import sys, types
compiler = types.ModuleType("torch._dynamo")
compiler.disable = lambda function, *arguments, **options: function
compiler.graph_break = lambda: None
sys.modules["torch._dynamo"] = compiler
"""
"""Takes the place of torch's compiler, which the first optimizer of a process imports: half of the
time that a short script takes. Scripts of tests do not use it."""


def here(capsys: pytest.CaptureFixture[str], *arguments: object) -> Outcome:
    """Run `ondie ARGUMENTS` in this process. The figures that a result in a folder (`--out`) has
    are composed but not rendered, which would take longer than the run: their files are empty.
    Tests of figures use `--figure`, :func:`apart`, or the functions that draw."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        if "--out" in arguments:
            patch.setattr(Figure, "savefig", lambda *args, **options: None)
        main([str(x) for x in arguments])
    text = capsys.readouterr()
    code = end.value.code
    assert code is None or isinstance(code, int)
    return Outcome(code or 0, text.out, text.err)


def apart(
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
) -> Outcome:
    """Run `ondie ARGUMENTS` in a process of its own; ``env`` is added to this one's."""
    done = subprocess.run(
        [sys.executable, "-m", "ondie.emu.cli", *(str(x) for x in arguments)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def files(folder: Path) -> list[str]:
    """Everything below a folder, hidden files and folders included."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def refused(outcome: Outcome, *words: str, code: int = 2) -> str:
    """The one line on standard error with which a command was refused."""
    assert outcome.code == code, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("ondie: ") and outcome.err.endswith("\n"), outcome.err
    line = outcome.err[:-1]
    assert line.isprintable() and "Traceback" not in line, outcome.err
    for word in words:
        assert word in line, line
    return line


def as_toml(cfg: Config, ranges: Mapping[str, tuple[str, str]] | None = None) -> str:
    """A configuration as the TOML file of a preset; ``ranges`` replaces some (low, high) texts."""
    text = []
    section = ""
    for leaf in cfg.leaves():
        head, _, key = leaf.key.partition(".")
        if head != section:
            section = head
            text.append(f"[{section}]")
        low, high = (ranges or {}).get(
            leaf.key, (spelled(leaf, leaf.low), spelled(leaf, leaf.high))
        )
        span = f", low = {low}, high = {high}" if low else ""
        reference = json.dumps(leaf.ref, ensure_ascii=False)
        text.append(
            f"{key} = {{ value = {spelled(leaf, leaf.value)}, "
            f'source = "{leaf.source}", ref = {reference}{span} }}'
        )
    return "\n".join(text) + "\n"


def assumed_only(cfg: Config, *keys: str) -> Config:
    """A configuration whose other assumed constants are stated: a swing varies ``keys``, and what
    is published with a range."""
    return cfg.replace({leaf.key: leaf.value for leaf in cfg.assumed() if leaf.key not in keys})


def swung_only(cfg: Config, *keys: str) -> Config:
    """A configuration in which ``keys`` alone have a range, whatever their source: a swing varies
    nothing else."""
    ranged = (leaf for leaf in cfg.leaves() if leaf.low is not None and leaf.key not in keys)
    return cfg.replace({leaf.key: leaf.value for leaf in ranged})


SWUNG = (
    "host.adam", "link.latency", "flash.t_erase", "dram.bandwidth", "host.accelerator_wait_power",
    "energy.controller", "energy.dram",
)  # fmt: skip
"""Some assumed constants of times and of energies, which every preset with dies that update has."""


def spelled(leaf: Leaf, value: object) -> str:
    """A value of a leaf as TOML spells it, quantities in base units; "" for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and leaf.unit is not None:
        return f'"{value} {KINDS[leaf.unit].shown[0]}"'
    return json.dumps(value)


if __name__ == "__main__":
    compiled()
