"""Is stored code found, noticed to be old, kept small, and done without? Broken files are in
tests/faults/test_compiled_code.py.
"""

import gc
import os
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ondie.kernels import KernelError, code_cache, jit

USER = """
from ondie.emu.helper import helper
from ondie.kernels.jit import njit

@njit
def user(x):
    return helper(x)
"""
HELPER = """
from ondie.kernels.jit import njit

ONE = 1.0

@njit
def helper(x):
    return x + {addend} * ONE
"""
RUN = """
import sys
from pathlib import Path
from ondie.emu.user import user
from ondie.kernels import code_cache, get
import numpy as np

assert user.py_func.__code__.co_filename.startswith(sys.argv[1]), "not the copied tree"
w = np.ones(3, np.float32)
k = get("sgd", backend="numba")
k(w, w.copy(), (), k.coefficients({"lr": 0.5}, 1))
print(user(1.0), w[0], sum(user.stats.cache_hits.values()),
      *sorted(p.name for p in (code_cache.folder() or Path("/nowhere")).glob("user-*")))
"""

KILLED = """
import os, signal, sys

def kill(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith(".code"):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
"""


class Tree:
    """A copy of ondie.kernels next to a small ondie.emu, with a cache folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.stored = folder / "cache" / "ondie" / "compiled"
        self.helper = folder / "ondie" / "emu" / "helper.py"
        self.warnings = ""

    def run(self, code=RUN, **env):
        """The words that a program prints; its warnings are kept."""
        ours = {"PYTHONPATH": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache")}
        command = [sys.executable, "-P", "-W", "always", "-c", code, str(self.folder)]
        done = subprocess.run(
            command, env=os.environ | ours | env, cwd="/", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        self.warnings = done.stderr
        return done.stdout.split()

    def edit(self, path, text):
        """Write a source. Python takes its stored bytecode as old, also within one second."""
        path.write_text(text)
        os.utime(path, (1000, 1000))


@pytest.fixture(scope="module")
def filled(root, tmp_path_factory):
    """A tree that has run once, with an empty cache: its code is stored."""
    folder = tmp_path_factory.mktemp("tree")
    shutil.copytree(root / "kernels", folder / "ondie" / "kernels")
    emu = folder / "ondie" / "emu"
    emu.mkdir()
    (emu / "__init__.py").touch()
    (emu / "user.py").write_text(USER)
    (emu / "helper.py").write_text(HELPER.format(addend=1))
    tree = Tree(folder)
    result, weight, hits, name = tree.run()
    assert (result, weight, hits) == ("2.0", "0.5", "0")
    assert (tree.stored / name).is_file()
    return tree


@pytest.fixture
def tree(filled, tmp_path):
    """A copy of the filled tree."""
    shutil.copytree(filled.folder, tmp_path / "tree")
    return Tree(tmp_path / "tree")


@pytest.fixture
def name(tree):
    """The file of `user`."""
    (path,) = tree.stored.glob("user-*")
    return path.name


def test_stored_code_is_found(tree, name):
    assert tree.run() == ["2.0", "0.5", "1", name]


def test_an_edited_helper_is_seen(tree):
    """numba alone looks at the file of `user` only and would answer 2.0 again."""
    tree.edit(tree.helper, HELPER.format(addend=10))
    result, weight, hits, *names = tree.run()
    assert (result, weight, hits) == ("11.0", "0.5", "0") and len(names) == 2


@pytest.mark.soak
def test_an_edited_constant_is_seen(tree):
    tree.edit(tree.helper, HELPER.format(addend=1).replace("ONE = 1.0", "ONE = 2.0"))
    result, _, hits, *_ = tree.run()
    assert (result, hits) == ("3.0", "0")


def test_what_is_not_compiled_does_not_matter(tree, name):
    """Comments, docstrings, and functions that `user` does not lead to."""
    text = HELPER.format(addend=1).replace(
        "def helper(x):", 'def helper(x):\n    """Doc."""  # why'
    )
    assert text != HELPER.format(addend=1)
    tree.edit(tree.helper, text + "\n\ndef other():\n    pass\n")
    assert tree.run() == ["2.0", "0.5", "1", name]


def test_an_edited_helper_in_kernels_is_seen(tree):
    path = tree.folder / "ondie" / "kernels" / "exact.py"
    text = path.read_text()
    assert text.count("else a * b + c") == 1
    tree.edit(path, text.replace("else a * b + c", "else a * b + c + c"))
    _, weight, *_ = tree.run()
    assert weight == "1.5"


def test_code_that_was_not_used_for_longest_goes(tree, name):
    """Old code beyond the folder's size, and what a killed process left there."""
    third = code_cache.KEEP_BYTES // 3
    names = [f"old-{i}.code" for i in range(5)] + [".killed"]
    for i, old in enumerate(names):
        with open(tree.stored / old, "wb") as file:
            file.truncate(third if old.startswith("old") else 10)
        os.utime(tree.stored / old, (1000 + i, 1000 + i))
    (tree.stored / name).unlink()
    tree.run()
    assert {path.name for path in tree.stored.iterdir() if path.name in names} == {
        "old-3.code",
        "old-4.code",
    }


def test_without_a_writable_folder_it_compiles_all_the_same(tree):
    (tree.folder / "file").touch()
    result, weight, hits = tree.run(XDG_CACHE_HOME=str(tree.folder / "file"))
    assert (result, weight, hits) == ("2.0", "0.5", "0")
    assert tree.warnings.count("RuntimeWarning: compiled code is not stored") == 1


def test_without_room_it_compiles_all_the_same(tree):
    """A limit of the size of files stands for a full disk: both fail in the middle of a write."""
    limit = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
"""
    shutil.rmtree(tree.stored)
    assert tree.run(limit + RUN) == ["2.0", "0.5", "0"]
    assert tree.warnings.count("RuntimeWarning: compiled code is not stored") == 1
    assert not list(tree.stored.iterdir())


def test_killed_while_it_writes(tree, name):
    """SIGKILL when a file has its content and not yet its name: the next run compiles it again."""
    shutil.rmtree(tree.stored)
    with pytest.raises(AssertionError):
        tree.run(KILLED + RUN)
    assert [path.name[0] for path in tree.stored.iterdir()] == ["."]
    assert tree.run() == ["2.0", "0.5", "0", name]
    assert tree.run() == ["2.0", "0.5", "1", name]


def test_two_processes_may_compile_at_once(tree, name):
    shutil.rmtree(tree.stored)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: tree.run(), range(2))
    assert first[:2] == second[:2] == ["2.0", "0.5"]
    assert tree.run() == ["2.0", "0.5", "1", name]


def test_a_large_program_says_how_far_its_compiling_is(monkeypatch):
    told = []
    monkeypatch.setattr(jit, "LARGE", 2)
    monkeypatch.setattr(jit, "on_compile", lambda done, total: told.append((done, total)))
    monkeypatch.setattr(code_cache, "folder", lambda: None)
    inner = jit.njit(lambda x: x + 1)
    outer = jit.njit(lambda x: inner(x) * 2)
    assert outer(1) == 4
    assert told[0] == (0, 2) and told[-1] == (2, 2) and len(told) == 3
    assert told[1][0] < 2  # the end is said once
    assert gc.isenabled()


def test_only_what_says_so_is_inlined(monkeypatch):
    """Numba hands the option on to every function first compiled inside an inlined one."""
    monkeypatch.setattr(code_cache, "folder", lambda: None)
    seldom = jit.cold(lambda x: x + 1)
    large = jit.apart(lambda x: x + 2)
    plain = jit.njit(lambda x: x + 3)
    small = jit.inline(lambda x: seldom(x) + large(x) + plain(x))
    outer = jit.njit(lambda x: small(x))
    assert outer(1) == 9
    inlined = [
        [each.fndesc.inline for each in function.overloads.values()]
        for function in (seldom, large, plain, small)
    ]
    assert inlined == [[False], [False], [False], [True]]


def test_interpreted_mode_gives_the_same_bits(tree):
    """NUMBA_DISABLE_JIT=1: the same source, as plain Python."""
    code = """
import sys
import numpy as np
from ondie.kernels import FORMS, OPS, get
from ondie.kernels.jit import njit
assert type(njit(lambda x: x)).__name__ == type(njit("f8(f8)")(lambda x: x)).__name__
h = dict(lr=.1, weight_decay=.01, eps=1e-8)
extra = {"adam": dict(beta1=.9, beta2=.99), "momentum": dict(momentum=.9)}
extra |= {"adamw": extra["adam"], "nesterov": extra["momentum"]}
rng = np.random.default_rng(1)
for op in OPS:
    for form in FORMS:
        start = [rng.standard_normal(33).astype("f4") ** 2 for _ in range(4)]
        bits = set()
        for backend in ("numpy", "numba"):
            k = get(op, backend=backend, form=form)
            hyper = {n: v for n, v in (h | extra.get(op, {})).items() if n != "eps" or op[0] == "a"}
            a = [x.copy() for x in start[: 2 + len(k.states)]]
            k(a[0], a[1], a[2:], k.coefficients(hyper, 3))
            bits.add(b"".join(x.tobytes() for x in a))
        assert len(bits) == 1, (op, form)
print(type(__import__("ondie.kernels.sgd").kernels.sgd.numba_sgd_torch).__name__)
"""
    assert tree.run(code, NUMBA_DISABLE_JIT="1") == ["function"]


def test_division_by_zero_is_ieee():
    @jit.njit(cache=False)
    def divide(a, b):
        return a / b

    assert divide(1.0, 0.0) == np.inf


def test_every_way_to_decorate():
    def double(x):
        return 2 * x

    for function in (
        jit.njit(double),
        jit.njit()(double),
        jit.njit(cache=False)(double),
        jit.njit("float64(float64)")(double),
        jit.njit(["float64(float64)", "int64(int64)"], inline="always")(double),
    ):
        assert function(3.0) == 6.0
        assert function.targetoptions["error_model"] == "numpy"
        assert function.targetoptions["nogil"]


def test_relaxed_arithmetic_is_refused():
    for option in ("fastmath", "parallel"):
        with pytest.raises(KernelError, match=option):
            jit.njit(**{option: True})


def test_the_digest_follows_functions_of_the_package_only():
    """Compiled functions and plain ones of this package; others belong to a version."""
    found = code_cache._function
    assert found(jit.njit(_adds)).__code__ is _adds.__code__
    assert found(code_cache._source) is code_cache._source
    assert found(textwrap.dedent) is found(3) is None


def _adds(a, b):
    return a + b
