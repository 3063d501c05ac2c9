"""Do the small drive, the trace and the policy that the pages print work as the pages say?"""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.smoke.commands import compiled, here


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


@pytest.mark.soak
def test_an_interrupt_ends_an_endless_policy(folder):
    """The compiled loop never returns to Python, so that Python handles no signal."""
    compiled()
    before = sorted(folder.iterdir())
    (folder / "endless.py").write_text(
        "def f(st, u):\n    n = u\n    while n >= 0:\n        n = (n + 1) & 1023\n    return -1\n"
    )
    words = [
        "replay",
        "writes.csv",
        "--from",
        "msr",
        "--device",
        "small.toml",
        "--json",
        "out.json",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "ondie.emu.cli", *words, "--set", "ftl.gc_policy=endless.py:f"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert err.strip() == (
        "ondie: interrupted; nothing was written; the simulation with the policy endless.py:f did "
        "not return within 5 s"
    )
    assert time.monotonic() - begin < 30
    (folder / "endless.py").unlink()
    assert set(folder.iterdir()) - set(before) <= {folder / "__pycache__"}
