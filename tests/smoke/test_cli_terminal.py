"""Is there a progress bar on a terminal, and nothing of it elsewhere?"""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.smoke.commands import compiled, files


def on_a_terminal(folder, *arguments: str, interrupt_after_s: float | None = None):
    """(exit code, stdout, what the terminal saw of stderr) of `ondie compare ...`, whose temporary
    files are in ``folder``."""
    compiled()
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ondie.emu.cli", "compare", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
        env={
            **os.environ,
            "TERM": "xterm",
            "COLUMNS": "100",
            "LINES": "40",
            "TMPDIR": str(folder),
        },
    )
    os.close(slave)
    seen = b""
    begin = time.monotonic()
    try:
        while True:
            try:
                piece = os.read(master, 4096)
            except OSError:  # the last writer has closed it
                break
            if not piece:
                break
            seen += piece
            if interrupt_after_s is not None and b"%" in seen:  # the bar is there
                time.sleep(interrupt_after_s)
                process.send_signal(signal.SIGINT)
                interrupt_after_s = None
            assert time.monotonic() - begin < 100
        out, _ = process.communicate(timeout=60)
    finally:
        os.close(master)
        process.kill()
        process.wait()
    return process.returncode, out, seen.decode("utf-8", "replace")


@pytest.mark.soak
def test_the_bar_names_the_paths(tmp_path):
    code, out, seen = on_a_terminal(tmp_path, "mlp-fp16", "--out", "out", "--no-swing")
    assert code == 0
    assert "host_offload" in seen and "on_die" in seen and "%" in seen
    assert "%" in out and "\x1b[" not in out  # the tables themselves go to a pipe: no colours
    assert files(tmp_path) == ["out", "out/figure.pdf", "out/figure.png", "out/result.json"]


@pytest.mark.soak
def test_quiet_draws_none(tmp_path):
    words = ["mlp-fp16", "--steps", "2", "--out", "out", "--no-swing", "--quiet"]
    assert on_a_terminal(tmp_path, *words) == (0, "", "")


def test_an_interrupt_takes_the_bar_away(tmp_path):
    words = ["bert-large", "--out", "out", "--timeline", "line.json"]
    code, out, seen = on_a_terminal(tmp_path, *words, interrupt_after_s=0.1)
    assert (code, out) == (130, "")
    assert seen.rstrip().endswith("ondie: interrupted; nothing was written")
    assert "Traceback" not in seen
    assert files(tmp_path) == []


@pytest.mark.soak
def test_a_reader_that_goes_away(tmp_path):
    """`ondie compare ... | head -1`: no traceback; the files are there."""
    words = ["compare", "mlp-fp16", "--steps", "1", "--no-swing", "--out", "out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ondie.emu.cli", *words],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.wait(timeout=100)
    assert "Traceback" not in err
    assert "out/result.json" in files(tmp_path)
