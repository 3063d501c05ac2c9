"""Owns: what all tests share: the scale option, seeds, the compilation before worker processes
start, the schedule of full counts, and the rule that under CI a skipped test has failed.
Does not own: fixtures of one folder.
Source: none.

`scale` is "small" (make test) or "full" (make soak, `pytest --full`): the same tests with more
counts.
"""

import fnmatch
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

from tests.running import Running

ROOT = Path(__file__).resolve().parent.parent

for _name, _examples in (("small", 25), ("full", 200)):
    hypothesis.settings.register_profile(
        _name, max_examples=_examples, derandomize=True, deadline=None, database=None
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="full counts instead of small ones")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: children too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.settings.load_profile("full" if config.getoption("--full") else "small")
    if starts_workers(config):
        compile_once()
        folder = tempfile.TemporaryDirectory(prefix="ondie-suites-")
        os.environ["ONDIE_TEST_SUITES"] = folder.name  # for tests/suites.py
        config.add_cleanup(folder.cleanup)
        config.pluginmanager.register(Running())


ENGINES = (("tests.smoke.commands",), ("tests.timing.flash",), ("tests.state.small",))
"""Modules that compile the engine, the engine of flash alone, and what few drives need: those that
lose their power, are full, or are sanitized."""
COLLECTION = ("pytest", "--collect-only", "-qq")
"""Compiles the test files with pytest's assertions, into their folders."""


def starts_workers(config: pytest.Config) -> bool:
    """Whether this process starts worker processes that run the tests (pytest-xdist)."""
    several = config.getoption("numprocesses", None) or config.getoption("tx", None)
    return bool(several) and not hasattr(config, "workerinput") and not config.option.collectonly


def test_files_are_stored() -> bool:
    """Whether pytest has stored all test files, or would not store them."""
    if sys.dont_write_bytecode or sys.pycache_prefix is not None:
        return True
    tag = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    files = (ROOT / "tests").rglob("test_*.py")
    return all((file.parent / "__pycache__" / f"{file.stem}.{tag}").exists() for file in files)


def compile_once() -> None:
    """Store what every worker would compile for itself: the engines and, in a fresh checkout, the
    test files. A failure is shown, and the tests that use the engine fail with the same error."""
    programs = ENGINES if test_files_are_stored() else (*ENGINES, COLLECTION)
    running = [
        subprocess.Popen(
            [sys.executable, "-m", *words], cwd=ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, encoding="utf-8",
        )
        for words in programs
    ]  # fmt: skip
    for words, process in zip(programs, running, strict=True):
        output, _ = process.communicate()
        if process.returncode:
            sys.stderr.write(f"python -m {' '.join(words)} failed:\n{output}\n")


@pytest.fixture(scope="session")
def scale(request: pytest.FixtureRequest) -> str:
    """ "small" or "full"."""
    return "full" if request.config.getoption("--full") else "small"


@pytest.fixture(scope="session")
def counts(scale: str) -> Callable[[Any, Any], Any]:
    """counts(small, full) picks one by scale."""
    return lambda small, full: full if scale == "full" else small


@pytest.fixture(autouse=True)
def freed(request: pytest.FixtureRequest) -> Iterator[None]:
    """At full counts, what a test of more than a second leaves is freed behind it: drives are
    large, and some in circles that the collector would come to late."""
    begun = time.monotonic()
    yield
    if request.config.getoption("--full") and time.monotonic() > begun + 1:
        gc.collect()


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with the same seed in every test."""
    return np.random.default_rng(20260101)


@pytest.fixture(scope="module")
def few_transactions() -> Iterator[None]:
    """For a module whose drives have a few kilobytes: the pool of transactions of a large drive
    takes longer to make, and to save, than short runs take."""
    from ondie.emu.engine.run import build

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "BUDGET", 1024)
        patch.setattr(build, "ROWS", 1 << 10)
        yield


@pytest.fixture(scope="session", autouse=True)
def small_memory_pages() -> Iterator[None]:
    """Tables of the drives of a test are in small memory pages: a test writes few entries here and
    there, and the system would zero 2 MB for each of them. Long runs over whole drives gain from
    large pages; results do not depend on them."""
    from ondie.emu.engine.core import sparse_table

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_table, "HUGE_BYTES", 0)
        yield


MEMORY = Path("/dev/shm")
ROOM = 1 << 30
"""Free bytes of MEMORY with which stores are put there."""


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """An empty folder without a disk, where fsync takes no time: for tests that close and open
    stores hundreds of times, and ask what processes find in their files, not what a disk does.
    Where there is none with ROOM, it is `tmp_path`."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="ondie-test-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


def counted(item: pytest.Item) -> bool:
    """Whether a test does more at full counts: what `make test` has not seen yet."""
    names = getattr(item, "fixturenames", ())
    drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    marked = any(item.get_closest_marker(name) for name in ("soak", "one_in"))
    return marked or drawn or "scale" in names or "counts" in names


SPREAD = (5**0.5 - 1) / 2
"""The golden ratio: its multiples less their whole parts are spread evenly from 0 to 1."""


def only_full(items: list[pytest.Item]) -> set[pytest.Item]:
    """The tests that small counts leave out: those marked `soak`, and of the parameters of a test
    marked `one_in(n)` all but one in n, spread over all axes. The first one stays, or number
    ``start`` (from 0) of `one_in(n, start=...)`."""
    left_out, sets = set(), dict[str, list[pytest.Item]]()
    for item in items:
        if item.get_closest_marker("soak"):
            left_out.add(item)
        elif item.get_closest_marker("one_in"):
            sets.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for marked in sets.values():
        mark = marked[0].get_closest_marker("one_in")
        assert mark is not None
        for number, item in enumerate(marked):
            turn = (number - mark.kwargs.get("start", 0)) % len(marked)
            if turn * SPREAD % 1 >= 1 / mark.args[0]:
                left_out.add(item)
    return left_out


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that do more at full counts (`-m counted`). Leave out those of full counts
    only; at full counts, run the longest tests first."""
    for item in items:
        if counted(item):
            item.add_marker("counted")
    if not config.getoption("--full"):
        left_out = only_full(items)
        if left_out:
            config.hook.pytest_deselected(items=[item for item in items if item in left_out])
            items[:] = [item for item in items if item not in left_out]
    else:
        items.sort(key=lambda item: (not counted(item), -patience(item)))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What collection makes lives on: the garbage collector would visit the syntax trees and the
    items again and again, for a third of the time that collection takes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Modules live to the end: the garbage collector, and a recording, which looks through all
    objects that it knows, need not visit them again."""
    gc.collect()
    gc.freeze()


def patience(item: pytest.Item) -> float:
    """The timeout that a test has of its own, s: it takes long, and begins early."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark else 0.0


TOGETHER = (
    "tests/docs/test_docs.py",
    "tests/faults/test_compiled_code.py",
    "tests/faults/test_training_errors.py",
    "tests/fidelity/test_validate_hypertune.py",
    "tests/live/test_guest_computation.py",
    "tests/live/test_guest_nvme_tcp.py",
    "tests/live/test_guest_pcie.py",
    "tests/live/test_guest_tunnel.py",
    "tests/live/test_nbd_clients.py",
    "tests/live/test_power_cuts.py",
    "tests/live/test_tunnel_allreduce.py",
)
"""Whose tests are built on what takes minutes at full counts, share a cluster, or mount file
systems: one process has them all."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """At full counts: one test after the other to whoever is free, but for these files."""
    if not config.getoption("--full"):
        return None
    from xdist.scheduler import LoadScopeScheduling

    assert all((ROOT / file).is_file() for file in TOGETHER)

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file in TOGETHER else nodeid

    return Scheduling(config, log)


# --- under CI, a test that skips has failed, unless pyproject lists it with a reason


def allowed_skips() -> list[dict[str, str]]:
    """The table [tool.ondie] allowed-skips: test and reason are patterns, why is for the reader."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return project["tool"]["ondie"]["allowed-skips"]


def skip_is_failure(node: str, reason: str) -> bool:
    """Whether a skip of test `node` with message `reason` counts as a failure here."""
    if not os.environ.get("CI"):
        return False
    return not any(
        fnmatch.fnmatch(node, entry["test"]) and fnmatch.fnmatch(reason, entry["reason"])
        for entry in allowed_skips()
    )


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if skip_is_failure(report.nodeid, reason):
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} skipped under CI: {reason}; "
            "install what it needs, or list it in pyproject.toml under [tool.ondie] allowed-skips"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    report = yield
    _judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    report = yield
    _judge(report)
    return report


def _run(*command: object, **options: Any) -> str:
    """Standard output of a command that must succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def tracked(root: Path) -> list[str]:
    """Files of the checkout as git sees them: tracked, or new and not ignored."""
    git = ("git", "-c", "safe.directory=*", "ls-files", "-z")
    if not (root / ".git").exists():
        pytest.skip("not a git checkout")
    names = _run(*git, "--cached", "--others", "--exclude-standard", cwd=root).split("\0")
    return sorted({name for name in names if name and (root / name).is_file()})


@pytest.fixture(scope="session")
def built(
    root: Path, tracked: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """(sdist, wheel): the sdist of a clean copy, the wheel of the sdist."""
    copy = tmp_path_factory.mktemp("clone")
    for name in tracked:
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((root / name).read_bytes())
    dist = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, copy)
    return next(dist.glob("*.tar.gz")), next(dist.glob("*.whl"))
