"""Does `ondie warmup` compile what other commands need, and say where it cannot store it?"""

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from ondie.emu.cli.commands import warmup
from ondie.kernels import code_cache
from tests.smoke.commands import apart, files, here, refused

NEXT = (
    "compare gpt-small --steps 1 --no-swing --json -",
    "stannis tune mobilenetv2 --drives newport=2 --json -",
    "validate rates --json -",
)
"""Commands that find all they need after `ondie warmup`."""
SERVED = ("accept", "take_completions", "parse", "erase_free", "execute")
"""Functions that `ondie serve` needs beyond those of other commands."""


def stored(cache: Path) -> list[str]:
    """The names of the files of compiled code."""
    return sorted(path.name for path in (cache / "ondie/compiled").glob("*.code"))


def compiles_all_that_commands_need(cache: Path, folder: Path, commands: Sequence[str]) -> str:
    """Nothing is left to compile after `ondie warmup`. Returns what it printed."""
    env = {"XDG_CACHE_HOME": str(cache)}
    first = apart("warmup", cwd=folder, env=env, timeout=500)
    assert (first.code, first.err) == (0, "")
    found = stored(cache)
    assert set(SERVED) <= {name.split("-")[0] for name in found}
    again = apart("warmup", cwd=folder, env=env)
    assert again.code == 0
    words = f"nothing to compile: {cache}/ondie/compiled has all {len(found)} programs\n"
    assert again.out == words
    for line in commands:
        assert apart(*line.split(), cwd=folder, env=env).code == 0
        assert stored(cache) == found, line
    assert files(folder) == []
    return first.out


@pytest.mark.soak
def test_a_warm_cache_has_what_commands_need(tmp_path):
    """It starts with a copy of the tests' cache, because other tests store programs there."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    (tmp_path / "work").mkdir()
    shutil.copytree(Path(base) / "ondie/compiled", tmp_path / "cache/ondie/compiled")
    for path in (tmp_path / "cache/ondie/compiled").glob("*.code"):
        if path.name.split("-")[0] in SERVED:
            path.unlink()
    compiles_all_that_commands_need(tmp_path / "cache", tmp_path / "work", NEXT[:1])


@pytest.mark.soak
def test_an_empty_cache(tmp_path):
    (tmp_path / "work").mkdir()
    out = compiles_all_that_commands_need(tmp_path / "cache", tmp_path / "work", NEXT)
    count = len(stored(tmp_path / "cache"))
    assert out.startswith(f"compiled {count} programs (") and "/cache/ondie/compiled in " in out


def test_quiet(capsys, monkeypatch):
    monkeypatch.setattr(warmup, "RUNS", ())
    monkeypatch.setattr(warmup, "run_servers", lambda: ())
    monkeypatch.setattr(warmup, "run_kernels", lambda: ())
    assert here(capsys, "warmup", "--quiet").out == ""
    assert "nothing to compile" in here(capsys, "warmup").out


def test_a_cache_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    outcome = apart("warmup", cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path / "file")})
    refused(outcome, "file/ondie/compiled", "Not a directory", "set XDG_CACHE_HOME")
    assert files(tmp_path) == ["file"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_cache_folder_that_is_full_or_read_only(capsys, tmp_path, monkeypatch, number):
    def refuse(dir):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(warmup.tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(code_cache, "folder", lambda: tmp_path)
    refused(here(capsys, "warmup"), str(tmp_path), os.strerror(number), "free some space")


def test_a_cache_folder_that_fills_up(capsys, tmp_path, monkeypatch):
    """The first program that is not stored ends the command."""
    monkeypatch.setattr(code_cache, "folder", lambda: tmp_path)

    def run(problems):
        code_cache.say("compiled code is not stored in x: No space left on device")
        yield "ondie compare"
        raise AssertionError("it went on")

    monkeypatch.setattr(warmup, "run_commands", run)
    refused(here(capsys, "warmup"), "No space left on device", "ondie compare")
