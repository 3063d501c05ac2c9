"""Is a skipped test a failed one where CI is set, unless pyproject lists it?"""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.conftest import only_full

SKIPS = """
import pytest

def test_needs_a_moon():
    pytest.skip("the moon is not installed")

@pytest.mark.skipif(True, reason="listed reason")
def test_listed():
    pass

@pytest.mark.xfail(reason="known", strict=True)
def test_expected_failure():
    assert False
"""
MODULE = "import pytest\npytest.importorskip('no_such_module', reason='no such module')\n"
PROJECT = """
[tool.ondie]
allowed-skips = [{ test = "*test_listed", reason = "listed*", why = "because" }]
"""


@pytest.mark.parametrize("ci, code, words", [("", 0, "2 skipped"), ("true", 1, "1 failed")])
def test_skips(ci, code, words, root, tmp_path):
    tests = tmp_path / "tests"
    tests.mkdir()
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    for name in ("conftest.py", "running.py"):
        (tests / name).write_text((root / "tests" / name).read_text())
    (tests / "test_skips.py").write_text(SKIPS)
    env = {"CI": ci, "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code, done.stdout
    assert words in done.stdout and "1 xfailed" in done.stdout
    assert ("skipped under CI: the moon is not installed" in done.stdout) == bool(ci)
    (tests / "test_module.py").write_text(MODULE)
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert ("skipped under CI: no such module" in done.stdout) == bool(ci), done.stdout


def test_every_listed_skip_says_why(root):
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    for entry in project["tool"]["ondie"]["allowed-skips"]:
        assert set(entry) == {"test", "reason", "why"} and all(entry.values())


class Item:
    """A collected test: its name, and its marks by name."""

    def __init__(self, nodeid, start=0, **marks):
        self.nodeid, self.marks, self.words = nodeid, marks, {"start": start} if start else {}

    def get_closest_marker(self, name):
        if name not in self.marks:
            return None
        return SimpleNamespace(args=self.marks[name], kwargs=self.words)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_small_counts_have_one_in_n_parameter_sets(n):
    """Of each test, those marked `soak` apart: spread over all axes, the first one always."""
    for rows, columns in ((1, 1), (1, 7), (4, 9), (22, 6)):
        names = [f"f.py::a[{row}-{column}]" for row in range(rows) for column in range(columns)]
        marked = [Item(name, one_in=[n]) for name in names]
        others = [Item("f.py::b"), Item("f.py::c[0]", one_in=[n])]
        never = [Item("f.py::a[x]", one_in=[n], soak=[]), Item("f.py::d", soak=[])]
        left_out = only_full([*never, *marked, *others])
        assert left_out >= set(never) and not left_out & {marked[0], *others}
        kept = [item.nodeid for item in marked if item not in left_out]
        assert abs(len(kept) - len(names) / n) < 2.5
        if rows * columns > 30:
            for part, most in ((0, rows), (2, columns)):
                assert len({name.partition("-")[part] for name in kept}) > most / 2


def test_another_set_may_be_the_first():
    """The others are as far from it as from the first one."""
    for start in range(7):
        marked = [Item(f"f.py::a[{number}]", start, one_in=[5]) for number in range(7)]
        kept = {item.nodeid for item in set(marked) - only_full(marked)}
        assert kept == {f"f.py::a[{start}]", f"f.py::a[{(start + 5) % 7}]"}
