"""Do the small drive, the trace and the policy that the pages print work as the pages say?"""

import json
import re
import subprocess
import sys

import pytest

from tests.smoke.commands import here


def block(root, page, language, name):
    """The code block of a page whose first line is a comment that begins with ``name``."""
    text = (root / "docs" / page).read_text("utf-8")
    (found,) = re.findall(rf"```{language}\n(# {re.escape(name)}\b.*?)```", text, re.DOTALL)
    return found


@pytest.fixture
def folder(root, tmp_path, monkeypatch):
    """The files of the pages, and the trace that the program writes."""
    for page, language, name in (
        ("replay.md", "toml", "small.toml"),
        ("replay.md", "python", "random_writes.py"),
        ("gc-policy.md", "python", "windowed.py"),
    ):
        (tmp_path / name).write_text(block(root, page, language, name))
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "random_writes.py"], check=True)
    return tmp_path


def replayed(capsys, policy, *more):
    words = ["replay", "writes.csv", "--from", "msr", "--device", "small.toml", "--set"]
    done = here(
        capsys, *words, f"ftl.gc_policy={policy}", *more, "--json", "result.json", "--quiet"
    )
    assert (done.code, done.err) == (0, "")
    return json.loads(open("result.json").read())


def test_the_trace_triggers_collections(folder, capsys):
    greedy, windowed, fifo = (
        replayed(capsys, policy) for policy in ("greedy", "windowed.py:windowed", "fifo")
    )
    assert 1.2 < greedy["waf"] < windowed["waf"] <= fifo["waf"]
    assert greedy["counters"]["collections"] > 1000
    failing = replayed(capsys, "greedy", "--set", "ftl.program_failures=0.0001")
    assert failing["counters"]["program_failures"] > 5


def test_the_window_falls_back_to_greedy(folder, capsys):
    """A few hot pages leave nothing to collect among the old blocks."""
    lines = (folder / "writes.csv").read_text().splitlines()
    hot = [
        re.sub(r"Write,\d+", f"Write,{i % 240 * 4096}", line)
        for i, line in enumerate(lines)
    ]  # fmt: skip
    (folder / "writes.csv").write_text("\n".join(hot) + "\n")
    assert replayed(capsys, "windowed.py:windowed")["waf"] < 1.3
