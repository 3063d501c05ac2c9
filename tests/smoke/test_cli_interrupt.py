"""Does Ctrl-C end a long comparison soon, in one line, with exit code 130 and nothing written?"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from ondie.emu.analysis import compare
from ondie.emu.analysis.compare import Stopped
from ondie.emu.config.config import load_preset
from ondie.emu.units import InputError
from ondie.emu.validate import model
from tests.smoke.commands import BY_SMALL, compiled, files, here, refused

SOON_S = 30
# Says when its imports are done: before that, an interrupt is Python's own affair.
DRIVER = """
import sys
from ondie.emu.cli import main as cli
from ondie.emu.analysis import compare
from ondie.emu.results.tables import compare as report
print("ready", flush=True)
cli.main(sys.argv[1:])
"""


def interrupted(folder: Path, after_s: float, *arguments: str) -> tuple[int, str, str, float]:
    """(exit code, stdout, stderr, seconds it took) after SIGINT in the middle of a comparison."""
    scratch = folder / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, "compare", *arguments],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(after_s)
        assert process.poll() is None, "it ended before it could be interrupted"
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        out, err = process.communicate(timeout=100)
        return process.returncode, out, err, time.monotonic() - begin
    finally:
        process.kill()
        process.wait()


@pytest.mark.soak
def test_a_long_comparison(tmp_path):
    """`test_cli_terminal.py` has an interrupt of a comparison with a progress bar."""
    compiled()  # the compiler itself does not listen
    for i, after_s in enumerate((0.1, 0.4, 1.0, 4.0)):
        folder = tmp_path / str(i)
        folder.mkdir()
        words = ("gpt-10b", "--out", "out", "--timeline", "line.json")
        code, out, err, took = interrupted(folder, after_s, *words)
        assert (code, out) == (130, "")
        assert err.strip() == "ondie: interrupted; nothing was written"
        assert took < SOON_S
        assert files(folder) == ["scratch"]


def test_the_other_paths_stop_when_one_fails(monkeypatch):
    """One thread fails at once; the other is in the middle of a long simulation."""
    running = threading.Event()
    ended = []
    original = compare.run_path

    def run_path(name, *arguments, **options):
        if name == "on_die":
            running.wait(60)
            raise ValueError("a defect")
        watched = options["progress"]

        def progress(at, share):
            running.set()
            watched(at, share)

        try:
            return original(name, *arguments, **{**options, "progress": progress})
        except Stopped:
            ended.append(name)
            raise

    monkeypatch.setattr(compare, "run_path", run_path)
    monkeypatch.setattr("ondie.emu.engine.run.driver.EVENTS_PER_CALL", 1000)
    cfg = load_preset("optimstore-r1")
    with pytest.raises(ValueError, match="a defect"):
        compare.compare(
            model("adam", 20_000_000), cfg, paths=["on_die", "host_offload"], swing=False
        )
    assert ended == ["host_offload"]


def test_while_the_swing_is_simulated(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "swings", interrupt)
    outcome = here(capsys, "compare", "mlp-fp16", "--steps", "1", "--out", "out")
    assert (outcome.code, outcome.err.strip()) == (130, "ondie: interrupted; nothing was written")
    assert files(tmp_path) == []


def test_while_the_files_are_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    real = tempfile.mkstemp
    made = []

    def mkstemp(**where):
        if len(made) == 2:
            interrupt()
        made.append(real(**where))
        return made[-1]

    monkeypatch.setattr("ondie.emu.files.tempfile.mkstemp", mkstemp)
    words = ["compare", "mlp-fp16", "--steps", "1", "--no-swing", *BY_SMALL, "--out", "a/b"]
    assert here(capsys, *words).code == 130
    assert len(made) == 2 and files(tmp_path) == []


def interrupt(*arguments, **options):
    raise KeyboardInterrupt


@pytest.mark.parametrize("error", [MemoryError("full"), InputError("bad")])
def test_a_failure_while_drawing_writes_nothing(tmp_path, capsys, monkeypatch, error):
    def draw(comparison):
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ondie.emu.cli.figures.compare.draw", draw)
    words = ["compare", "mlp-fp16", "--steps", "1", "--no-swing", *BY_SMALL, "--out", "out"]
    refused(here(capsys, *words), str(error))
    assert files(tmp_path) == []
