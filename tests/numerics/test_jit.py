"""Does the compile cache notice an edited helper, stay small, and step aside where it must?"""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from ondie.kernels import KernelError, jit

USER = """
from ondie.emu.helper import helper
from ondie.kernels.jit import njit

@njit
def user(x):
    return helper(x)
"""
HELPER = """
from ondie.kernels.jit import njit

@njit
def helper(x):
    return x + {addend}
"""
RUN = """
import sys
from ondie.emu.user import user
from ondie.kernels import get, jit
import numpy as np

assert user.py_func.__code__.co_filename.startswith(sys.argv[1]), "not the copied tree"
w = np.ones(3, np.float32)
k = get("sgd", backend="numba")
k(w, w.copy(), (), k.coefficients({"lr": 0.5}, 1))
print(user(1.0), w[0], sum(user.stats.cache_hits.values()), jit._place(user.py_func))
"""


@pytest.fixture
def tree(root, tmp_path):
    """A copy of ondie.kernels beside a small ondie.emu, and a way to run code in it."""
    shutil.copytree(root / "kernels", tmp_path / "ondie" / "kernels")
    emu = tmp_path / "ondie" / "emu"
    emu.mkdir()
    (emu / "__init__.py").touch()
    (emu / "user.py").write_text(USER)
    (emu / "helper.py").write_text(HELPER.format(addend=1))

    def run(code=RUN, **env):
        env = os.environ | {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)} | env
        command = [sys.executable, "-P", "-W", "always", "-c", code, str(tmp_path)]
        done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        run.warnings = done.stderr
        return done.stdout.split()

    run.folder = tmp_path
    return run


def test_an_edited_helper_is_seen(tree):
    """numba alone looks at the file of `user` only and would answer 2.0 again."""
    result, weight, hits, folder = tree()
    assert (result, weight, hits) == ("2.0", "0.5", "0")
    assert folder.startswith(str(tree.folder / "ondie" / "numba-"))
    assert tree() == ["2.0", "0.5", "1", folder]  # cached now
    (tree.folder / "ondie" / "emu" / "helper.py").write_text(HELPER.format(addend=10))
    result, weight, hits, other = tree()
    assert (result, weight, hits) == ("11.0", "0.5", "0") and other != folder


def test_an_edited_helper_in_kernels_is_seen(tree):
    _, before, *_ = tree()
    path = tree.folder / "ondie" / "kernels" / "exact.py"
    text = path.read_text()
    assert text.count("else a * b + c") == 1
    path.write_text(text.replace("else a * b + c", "else a * b + c + c"))
    _, after, *_ = tree()
    assert (before, after) == ("0.5", "1.5")


def test_old_folders_go_and_new_ones_stay(tree):
    cache = tree.folder / "ondie"
    old = [cache / f"numba-{i:03}" for i in range(jit.KEEP + 10)]
    for i, folder in enumerate(old):
        folder.mkdir()
        os.utime(folder, (1000 + i, 1000 + i))
    tree()
    left = {p.name for p in cache.glob("numba-???")}
    assert left == {p.name for p in old[-jit.KEEP :]}


def test_what_is_not_imported_does_not_matter(tree):
    """An edit of a file that `user` does not lead to leaves its compiled form as it was."""
    *_, before = tree()
    (tree.folder / "ondie" / "emu" / "other.py").write_text("x = 1\n")
    *_, hits, after = tree()
    assert after == before and hits == "1"


def test_without_a_writable_folder_it_compiles_all_the_same(tree):
    (tree.folder / "file").touch()
    result, weight, hits, folder = tree(XDG_CACHE_HOME=str(tree.folder / "file"))
    assert (result, weight, hits, folder) == ("2.0", "0.5", "0", "None")
    assert "compiled functions are not cached" in tree.warnings


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
    assert tree(code, NUMBA_DISABLE_JIT="1") == ["function"]


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
