"""Does `ondie study formats` write what it found, refuse what it cannot do in one line, and end
with everything it started?"""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ondie.emu.analysis.workers import pool
from ondie.emu.cli.figures import saved
from ondie.emu.cli.main import main
from ondie.emu.validate import SUITES
from tests.smoke.commands import Outcome, apart, files, here, refused

WORDS = ("study", "formats")
STEPS = 6
# Says when its imports are done: before that, an interrupt is Python's own affair.
DRIVER = """
import sys
from ondie.emu.cli import main as cli
from ondie.emu.studies import formats
print("ready", flush=True)
cli.main(sys.argv[1:])
"""
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from ondie.emu.cli import main as cli
cli.main(sys.argv[1:])
"""


def needs_torch():
    pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(scope="module")
def done(tmp_path_factory, counts) -> tuple[Outcome, Path]:
    """A short run and its folder: as a user starts it, or, at small counts, in this process alone,
    since each process imports torch and its compiler for 5 s."""
    needs_torch()
    folder = tmp_path_factory.mktemp("formats")
    options = ("--steps", STEPS, "--seeds", 1, "--json", "rows.json", "--figure", "new/f.PNG")
    return counts(without_workers, apart)(*WORDS, *options, cwd=folder), folder


@contextlib.contextmanager
def no_pool(suite, jobs):
    """In the place of a pool of processes: one piece of work after the other."""
    yield lambda work, wanted: ((arguments, work(*arguments)) for arguments in wanted)


def without_workers(*arguments: object, cwd: Path) -> Outcome:
    """`ondie ARGUMENTS` in this process, which trains, too. The command with its workers is what
    the tests of interrupts start."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.chdir(cwd)
        patch.setattr("ondie.emu.studies.formats.pool", no_pool)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main([str(x) for x in arguments])
    code = end.value.code
    assert code is None or isinstance(code, int)
    return Outcome(code or 0, out.getvalue(), err.getvalue())


def test_what_is_written(done):
    outcome, folder = done
    assert (outcome.code, outcome.err) == (0, "")
    assert files(folder) == ["new", "new/f.PNG", "rows.json"]
    assert "compared with FP32: small GPT, AdamW, 6 steps in closed loop" in outcome.out
    assert "9 rows, 0 outside their tolerance\n" in outcome.out
    assert outcome.out.endswith("written: rows.json, new/f.PNG\n")


def test_the_rows_are_those_of_trainings_here(done):
    from ondie.emu.studies import formats

    found = {(name, 1): formats.train(name, 1, STEPS) for name in formats.VARIANTS}
    text = (done[1] / "rows.json").read_text()
    rows = json.loads(text)
    assert [row["name"] for row in rows] == [
        f"{name}, seed 1: loss at the end" for name in formats.VARIANTS if name != formats.PLAIN
    ]
    assert rows == [row.data() for row in formats.rows(found)]
    for row, (name, _) in zip(rows, list(found)[1:], strict=True):
        assert set(row) == {
            "suite", "name", "kind", "published", "predicted", "unit", "tolerance", "source",
            "place", "constants",
        }  # fmt: skip
        # Six steps: their last tenth is the last.
        assert row["published"] == found[formats.PLAIN, 1][-1]
        assert row["predicted"] == found[name, 1][-1]
    assert (done[1] / "new/f.PNG").read_bytes() == formats.draw(found, saved)["png"]


def test_workers_are_processes_that_give_what_the_work_returns():
    with pool("formats", 1) as run:
        found = list(run(pow, [(2, 5), (3, 4)]))
        ((_, process),) = run(os.getpid, [()])
        with pytest.raises(ZeroDivisionError):
            list(run(divmod, [(1, 0)]))
    assert sorted(found) == [((2, 5), 32), ((3, 4), 81)]
    assert process != os.getpid()


def test_a_miss_exits_1_and_is_written(capsys, tmp_path, monkeypatch):
    needs_torch()
    from ondie.emu.studies import formats

    def losses(names, seeds, steps, jobs, progress):
        assert (seeds, steps) == ([3, 5], 2)
        return {(n, s): [4.0, 4.2 if n == "fp16" else 4.0] for n in names for s in seeds}

    monkeypatch.setattr(formats, "losses", losses)
    monkeypatch.chdir(tmp_path)
    options = ("--steps", 2, "--seeds", "3,5", "--json", "rows.json")
    outcome = here(capsys, *WORDS, *options)
    assert (outcome.code, outcome.err) == (1, "")
    assert outcome.out.count("MISS") == 2
    assert "18 rows, 2 outside their tolerance\n" in outcome.out
    assert len(json.loads(Path("rows.json").read_text())) == 18
    assert here(capsys, *WORDS, *options, "--quiet") == Outcome(1, "", "")


# --- bad input


def untouched(*arguments, **options):
    raise AssertionError("trained, or wrote")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with a file in it, where nothing may be written."""
    monkeypatch.setattr("ondie.emu.files.tempfile.mkstemp", untouched)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--steps", "0"], ["steps = 0", "at least 1"]),
        (["--steps", "-5"], ["steps = -5", "at least 1"]),
        (["--seeds", "1,1"], ["seeds = 1, 1", "distinct"]),
        (["--seeds", "-1"], ["seeds = -1", "0 to 2**32 - 1"]),
        (["--seeds", "1,4294967296"], ["4294967296", "0 to 2**32 - 1"]),
    ],
    ids=" ".join,
)
def test_numbers_that_cannot_be(folder, capsys, monkeypatch, options, words):
    needs_torch()
    monkeypatch.setattr("ondie.emu.studies.formats.losses", untouched)
    refused(here(capsys, *WORDS, *options, "--json", "rows.json", "--figure", "f.png"), *words)
    assert files(folder) == ["file"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["formats", "--seeds", "x"], ["--seeds", "'x'", "such as 1,2,3"]),
        (["formats", "--seeds", "1,,2"], ["--seeds", "'1,,2'", "such as 1,2,3"]),
        (["formats", "--seeds", ""], ["--seeds", "''", "such as 1,2,3"]),
        (["formats", "--steps", "many"], ["--steps", "'many'"]),
        (["formats", "--figure", "x.svg"], ["x.svg", ".png or .pdf"]),
        (["formats", "--figure", "png"], ["png", ".png or .pdf"]),
        (["formats", "--figure", "file/x.png"], ["file/x.png", "cannot be written"]),
        (["formats", "--json", "file/rows.json"], ["file/rows.json", "cannot be written"]),
        (["formats", "--json", "."], [".", "is a folder"]),
        (["formats", "--json", "a.png", "--figure", "./a.png"], ["a.png"]),
        (["formats", "--cases", "."], ["No such option", "--cases"]),
        (["formats", "--rates", "1e-6"], ["No such option", "--rates"]),
        (["format"], ["'format'", "'formats'"]),
    ],
    ids=lambda x: " ".join(x),
)
def test_options_that_cannot_be(folder, capsys, monkeypatch, arguments, words):
    """They are refused before torch is loaded."""
    monkeypatch.setattr("ondie.emu.cli.commands.study.trainings", untouched)
    refused(here(capsys, "study", *arguments), *words)
    assert files(folder) == ["file"]
    assert (folder / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "spelling"),
    [
        (["formats"], "study formats"),
        (["errors", "--rates", "1e-6", "--json", "rows.json"],
         "study errors --rates 1e-6 --json rows.json"),
        (["--figure", "a b.png", "formats"], "study formats --figure 'a b.png'"),
        (["--json", "rows.json", "errors"], "study errors --json rows.json"),
    ],
    ids=lambda x: "" if isinstance(x, str) else " ".join(x),
)  # fmt: skip
def test_the_old_spelling_prints_the_new_one(folder, capsys, monkeypatch, arguments, spelling):
    for suite in SUITES:
        monkeypatch.setitem(SUITES, suite, untouched)
    line = refused(here(capsys, "validate", *arguments), "is a study now")
    assert line.endswith(f"use: ondie {spelling}")
    assert files(folder) == ["file"]


@pytest.mark.parametrize("option", ["--steps", "--seeds", "--figure"])
def test_options_of_studies_are_no_options_of_validate(folder, capsys, monkeypatch, option):
    for suite in SUITES:
        monkeypatch.setitem(SUITES, suite, untouched)
    refused(here(capsys, "validate", "bytes", option, "5"), "No such option", option)


def test_without_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *WORDS, "--json", "rows.json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    outcome = Outcome(done.returncode, done.stdout, done.stderr)
    refused(outcome, "torch is not installed", "pip install 'ondie[train]'")
    assert files(tmp_path) == []


# --- interrupts


def group(leader: int) -> dict[int, str]:
    """What runs in a process group, by number: its command."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            command, _, rest = path.read_text().rpartition(") ")
        except OSError:  # gone
            continue
        state, _, number = rest.split()[:3]
        if int(number) == leader and state not in "ZX":
            found[int(path.parent.name)] = command
    return found


def wait_until(condition) -> None:
    """For a minute at most."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    assert condition()


WORKERS = min(os.cpu_count() or 1, 10)


def children(leader: int) -> int:
    return len(group(leader).keys() - {leader})


def workers(leader: int) -> list[int]:
    return [
        number
        for number in group(leader)
        if b"spawn_main" in Path(f"/proc/{number}/cmdline").read_bytes()
    ]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
@pytest.mark.parametrize(
    "to", ["terminal", *(pytest.param(to, marks=pytest.mark.soak)
                       for to in ("command", "killed", "worker killed"))]
)  # fmt: skip
def test_an_interrupt_ends_all_of_it(to, tmp_path, counts):
    """It goes to the command alone, or as from a terminal to all processes; or the command is
    killed, and cannot tell its workers; or one of these is."""
    needs_torch()
    early = () if to == "worker killed" else (0, 1)
    for when in (*counts((), early), WORKERS + 1):  # one more than workers keeps track
        folder = tmp_path / str(when)
        folder.mkdir()
        options = ("--json", "rows.json", "--figure", "figure.pdf")
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *WORDS, *options], cwd=folder, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            wait_until(lambda p=process, n=when: children(p.pid) >= n)
            time.sleep(counts(1.0, 1.5))
            assert process.poll() is None, "it ended before it could be interrupted"
            if to == "killed":
                process.kill()
            elif to == "command":
                process.send_signal(signal.SIGINT)
            elif to == "worker killed":
                os.kill(workers(process.pid)[-1], signal.SIGKILL)
            else:
                os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=100)
            assert out == "" and "Traceback" not in err
            if to == "killed":  # Python itself says that it cleans up
                assert process.returncode == -signal.SIGKILL
            elif to == "worker killed":
                refused(Outcome(process.returncode, out, err), "formats: a worker process")
            else:
                assert process.returncode == 130
                assert err.strip() == "ondie: interrupted; nothing was written"
            wait_until(lambda p=process: not group(p.pid))
            assert files(folder) == []
        finally:
            for number in group(process.pid):
                os.kill(number, signal.SIGKILL)
            process.kill()
            process.wait()
