"""Do packages of others run as what they stand for, and does a bench go on without those that fail?

The packages are stand-ins on the path: what they are asked for, and what they do with it, is seen.
"""

import subprocess
import sys

import pytest

from ondie.kernels.bench import others as bench_others
from ondie.kernels.bench import run as bench
from ondie.kernels.bench.contenders import Case, torch_module

STAND_IN = """
import torch

class Codes:
    codes = torch.zeros(1, dtype=torch.uint8)

class Optimizer:
    asked = []

    def __init__(self, parameters, **asked):
        self.asked.append((type(self).__name__, asked))
        self.parameter, self.state = parameters[0], {}

    def step(self):
        STEP
        x = torch.ones_like(self.parameter)
        self.state[self.parameter] = {"step": 1, "qmap": x.float(), **STATES}
"""
UINT8 = '{"state1": x.to(torch.uint8), "state2": x.to(torch.uint8)}'
WIDE = '{"state1": x, "state2": x}'
MIXED = '{"state1": x.to(torch.uint8), "state2": x}'
CODES = '{"exp_avg": Codes(), "exp_avg_sq": Codes()}'
SAME = '{"exp_avg": x, "exp_avg_sq": x}'
KINDS = "\n".join(
    f"class {name}(Optimizer): pass"
    for name in ("Adam8bit", "AdamW8bit", "_AdamW", "DeepSpeedCPUAdam")
)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Puts a package there: its name, the module in it that has the optimizers, their states, and
    what a step begins with. Returns what its optimizers were asked for."""
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.syspath_prepend(tmp_path)

    def put(name, inside, states, step="pass", head=""):
        path = tmp_path.joinpath(*name.split("."), *inside.split("."))
        path.parent.mkdir(parents=True)
        for folder in path.parents:
            if folder == tmp_path:
                break
            (folder / "__init__.py").write_text(
                f"from . import {inside}" if inside == "optim" else ""
            )
        text = STAND_IN.replace("STEP", step).replace("STATES", states) + KINDS
        path.with_suffix(".py").write_text(head + text)

    yield put
    names = {other.name.lower() for other in bench_others.OTHERS}
    for module in [name for name in sys.modules if name.split(".")[0] in names]:
        del sys.modules[module]


def made(case):
    """Names of the contenders, and remarks."""
    remarks = []
    return set(case.contenders(remarks.append)), remarks


def asked(module):
    return sys.modules[module].Optimizer.asked


@pytest.mark.parametrize(("op", "kind"), [("adam", "Adam8bit"), ("adamw", "AdamW8bit")])
def test_bitsandbytes_is_asked_for_8_bits_of_any_size(package, op, kind):
    package("bitsandbytes", "optim", UINT8)
    found, remarks = made(Case(op, 256, "int8_dynamic"))
    assert "bitsandbytes" in found and remarks == []
    h = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "min_8bit_size": 0}
    h |= {"weight_decay": 0.01} if op == "adamw" else {}
    assert asked("bitsandbytes.optim") == [(kind, h)]
    assert "bitsandbytes" in Case(op, 256, "int8_dynamic").names()
    for other in (
        Case("momentum", 256, "int8_dynamic"),
        Case(op, 256),
        Case(op, 4096, "int8_dynamic", "page"),
    ):
        assert "bitsandbytes" not in other.names()


def test_torchao_is_asked_for_the_same(package):
    package("torchao", "optim", CODES)
    found, remarks = made(Case("adam", 4096, "int8_dynamic"))
    assert "torchao" in found and remarks == []
    assert asked("torchao.optim")[-1] == (
        "Adam8bit", {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}
    )  # fmt: skip
    for n in (1024, 4097):  # its states would be FP32
        assert "torchao" not in Case("adam", n, "int8_dynamic").names()


@pytest.mark.parametrize(("op", "decay"), [("adam", 0.0), ("adamw", 0.01)])
def test_torchao_rounds_at_random_in_adamw_alone(package, op, decay):
    package("torchao", "optim", SAME)
    found, remarks = made(Case(op, 100, "bf16_stochastic"))
    assert "torchao" in found and remarks == []
    h = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "bf16_stochastic_round": True}
    assert asked("torchao.optim") == [("_AdamW", h | {"weight_decay": decay})]


@pytest.mark.parametrize("op", ["adam", pytest.param("adamw", marks=pytest.mark.soak)])
def test_deepspeeds_mode_is_the_operation(package, op):
    package("deepspeed", "ops.adam", SAME)
    found, remarks = made(Case(op, 100))
    assert "DeepSpeed" in found and remarks == []
    ((_, h),) = asked("deepspeed.ops.adam")
    assert h["adamw_mode"] is (op == "adamw")


@pytest.mark.parametrize(
    ("states", "step", "head", "says"),
    [
        (WIDE, "pass", "", "its states are torch.float32"),
        (MIXED, "pass", "", "its states are torch.float32 and torch.uint8"),
        ("{}", "pass", "", "its states are None"),
        (UINT8, "raise OSError('no\\nlibrary')", "", "OSError: no"),
        (UINT8, "raise RuntimeError", "", "RuntimeError: "),
        (UINT8, "pass", "raise ImportError('libmissing.so')\n", "ImportError: libmissing.so"),
        (UINT8, "pass", "class Odd(Exception): pass\nraise Odd('odd')\n", "Odd: odd"),
        (UINT8, "pass", "import absent_from_here\n", "No module named 'absent_from_here'"),
    ],
)  # fmt: skip
def test_what_fails_or_does_something_else_is_left_out(package, states, step, head, says):
    package("bitsandbytes", "optim", states, step, head)
    rows = bench.run_kernels((256,), ops=("adam",), formats=("int8_dynamic",), repeat=1)
    names = {row.name.split(" ", 2)[2] for row in rows.rows}
    assert "c" in names or "numba" in names
    assert "bitsandbytes" not in names
    (words,) = [words for words in rows.remarks if words.startswith("bitsandbytes ")]
    assert words.startswith("bitsandbytes is excluded from adam, int8_dynamic: ")
    assert says in words and "\n" not in words


def test_an_interrupt_is_not_swallowed(package):
    package("bitsandbytes", "optim", UINT8, "raise KeyboardInterrupt")
    threads = torch_module().get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        bench.run_kernels((256,), 3, ops=("adam",), formats=("int8_dynamic",), repeat=1)
    assert torch_module().get_num_threads() == threads


def test_what_is_not_installed_is_not_spoken_of(monkeypatch):
    monkeypatch.setattr(bench_others, "find_spec", lambda name: None)
    for form in ("fp32", "int8_dynamic", "bf16_stochastic"):
        found, remarks = made(Case("adam", 4096, form))
        assert remarks == [] and not found & {"bitsandbytes", "torchao", "DeepSpeed"}


NOISE = """
import os, sys
from ondie.kernels.bench.others import silence
print("before")
try:
    with silence():
        print("printed")
        print("warned", file=sys.stderr)
        os.write(1, b"by C")
        os.system("echo by a child; echo by a child >&2")
        raise ValueError
except ValueError:
    print("after")
    print("after", file=sys.stderr)
"""


def test_silence_is_for_c_and_children_too_and_ends():
    done = subprocess.run([sys.executable, "-c", NOISE], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "before\nafter\n", "after\n")


@pytest.mark.parametrize(
    ("head", "words"),
    [  # one of the two that end at once at small counts: each imports torch in another process
        ("import time; time.sleep(60)\n", "its code was not compiled within 0.5 s"),
        pytest.param(
            "raise RuntimeError('no compiler')\n",
            "does not compile: RuntimeError: no compiler",
            marks=pytest.mark.soak,
        ),
        ("import sys; sys.exit('ninja is missing')\n", "does not compile: ninja is missing"),
    ],
)
def test_a_contender_that_does_not_build_is_given_up(package, monkeypatch, head, words):
    """One that never ends, as with another build's lock; one that fails; one that exits."""
    if "within" in words:
        monkeypatch.setattr(bench_others, "BUILD_S", 0.5)
    package("deepspeed", "ops.adam", SAME, head=head)
    found, remarks = made(Case("adam", 100))
    assert "DeepSpeed" not in found and {"c", "numpy"} & found
    (remark,) = remarks
    assert remark.startswith("DeepSpeed is excluded from adam, fp32: ") and words in remark
