"""`ondie record` runs a user's own program as Python would, and keeps its word when it fails."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from ondie.traces import TraceError, load
from ondie.traces.launch import split_command
from ondie.traces.record import main
from tests.smoke.commands import NO_COMPILER

pytest.importorskip("torch", reason="torch is not installed")

SCRIPT = '''
"""A user's own script, with a module of its own beside it."""
import pathlib
import sys

import torch

import mynet

print(__name__, pathlib.Path(__file__).name, sys.argv, sys.path[0] == mynet.HERE, flush=True)


def train(steps):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = mynet.Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for step in range(steps):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    loss = train(int(sys.argv[1]))
    exec(sys.argv[2] if len(sys.argv) > 2 else "")
'''
MODULE = """
import os
import torch
HERE = os.path.dirname(os.path.abspath(__file__))
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(4, 6)
        self.two = torch.nn.Linear(6, 2)
    def forward(self, x):
        return self.two(self.one(x).relu())
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(SCRIPT)
    (tmp_path / "project" / "mynet.py").write_text(NO_COMPILER + MODULE)
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(command, **options):
    return main("out/run.h5", [sys.executable, *command], **options)


def leftovers(folder):
    return [p.name for p in (folder / "out").iterdir()]


@pytest.mark.soak
def test_a_script_sees_what_python_would_show_it(folder, capfd):
    (folder / "project" / "mynet.py").write_text(MODULE)
    assert recorded(["-u", "-W", "ignore", "project/train.py", "3"]) == 0
    assert capfd.readouterr().out == "__main__ train.py ['project/train.py', '3'] True\n"
    trace = load(folder / "out" / "run.h5")
    assert [t.name for t in trace.tensors] == ["one.weight", "one.bias", "two.weight", "two.bias"]
    assert (trace.op, trace.form, len(trace.steps)) == ("adamw", "torch", 3)
    assert trace.attrs["script"] == "train.py"
    assert str(folder) not in repr(trace.attrs)
    assert leftovers(folder) == ["run.h5"]


@pytest.mark.soak
def test_a_module_and_code(folder, monkeypatch, capfd):
    monkeypatch.chdir(folder / "project")
    assert main(folder / "out" / "m.h5", [sys.executable, "-m", "train", "2"]) == 0
    assert "__main__ train.py" in capfd.readouterr().out
    assert len(load(folder / "out" / "m.h5").steps) == 2
    code = (
        "import sys, train; assert sys.argv == ['-c', '4'], sys.argv; train.train(int(sys.argv[1]))"
    )
    assert main(folder / "out" / "c.h5", [sys.executable, "-c", code, "4"]) == 0
    assert len(load(folder / "out" / "c.h5").steps) == 4


@pytest.mark.soak
def test_a_script_may_change_its_folder(folder):
    assert recorded(["project/train.py", "2", "import os; os.chdir('/')"]) == 0
    assert leftovers(folder) == ["run.h5"]


def test_a_failing_script_keeps_its_exit_code_and_leaves_nothing(folder, capfd, counts):
    ways = [
        ("raise ValueError('my own')", 1, "ValueError: my own\n"),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('told so')", 1, "told so\n"),
    ]
    for last, code, says in ways[: counts(2, 4)]:
        assert recorded(["project/train.py", "2", last]) == code
        error = capfd.readouterr().err
        assert error.endswith(says)
        assert "bootstrap" not in error and "runpy" not in error
        assert leftovers(folder) == []


def test_a_script_that_ends_well_is_recorded(folder, counts):
    for last in counts(["sys.exit()"], ["sys.exit()", "sys.exit(0)"]):
        assert recorded(["project/train.py", "2", last]) == 0
        assert leftovers(folder) == ["run.h5"]


def test_a_crash_after_the_last_step_asked_for_loses_nothing(folder):
    assert recorded(["project/train.py", "5", "sys.exit(7)"], steps=2) == 7
    assert len(load(folder / "out" / "run.h5").steps) == 2


def test_stop_ends_the_script_early(folder, capfd):
    assert recorded(["project/train.py", "100000"], steps=2, stop=True) == 0
    assert len(load(folder / "out" / "run.h5").steps) == 2


@pytest.mark.soak
def test_a_script_without_a_step_and_one_that_slips_away(folder):
    with pytest.raises(TraceError, match="no step of a torch optimizer was seen"):
        recorded(["-c", "pass"])
    with pytest.raises(TraceError, match="run.h5: the command ended with"):
        recorded(["project/train.py", "2", "import os; os._exit(0)"])
    assert leftovers(folder) == []


@pytest.mark.soak
def test_what_cannot_be_recorded_is_said_by_the_parent(folder, capfd):
    two = "import train, torch; train.train(1); train.train(1)"
    with pytest.raises(TraceError, match="several optimizers take steps in this run: 0 AdamW"):
        recorded(["-c", "import sys; sys.path.insert(0, 'project'); sys.argv[1:] = ['1'];" + two])
    assert "Traceback" not in capfd.readouterr().err
    assert leftovers(folder) == []


@pytest.mark.soak
def test_an_existing_file_survives_a_failed_recording(folder):
    (folder / "out" / "run.h5").write_bytes(b"somebody's")
    assert recorded(["project/train.py", "2", "sys.exit(1)"]) == 1
    assert (folder / "out" / "run.h5").read_bytes() == b"somebody's"
    assert leftovers(folder) == ["run.h5"]


@pytest.mark.soak
def test_workers_of_a_data_loader_do_not_disturb(folder):
    (folder / "project" / "loader.py").write_text(
        "import torch, mynet\n"
        "data = torch.utils.data.TensorDataset(torch.randn(32, 4))\n"
        "model = mynet.Net(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for x, in torch.utils.data.DataLoader(data, 8, num_workers=2):\n"
        "    optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()\n"
    )
    assert recorded(["project/loader.py"]) == 0
    trace = load(folder / "out" / "run.h5")
    assert [s.samples for s in trace.steps] == [8] * 4
    assert trace.steps[0].order is None


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)]
)
def test_an_interrupt_ends_both_and_leaves_nothing(folder, root, number):
    waiting = "print('ready', flush=True); import time; time.sleep(60)"
    code = (
        "import sys; from ondie.traces.record import main;"
        f"sys.exit(main('out/run.h5', [sys.executable, 'project/train.py', '2', {waiting!r}]))"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert any(line == "ready\n" for line in parent.stdout)
    assert any(name.endswith(".partial") for name in leftovers(folder))
    if number == signal.SIGINT:  # as a terminal does: to the whole group
        os.killpg(parent.pid, number)
    else:
        parent.send_signal(number)
    assert parent.wait(timeout=30) == 128 + number
    assert leftovers(folder) == []


@pytest.mark.soak
def test_a_killed_parent_cannot_spoil_the_name(folder):
    """SIGKILL of the parent: whatever stays behind is named .partial."""
    code = (
        "import sys; from ondie.traces.record import main;"
        "main('out/run.h5', [sys.executable, 'project/train.py', '2', "
        "\"print('ready', flush=True); import time; time.sleep(1); sys.exit(1)\"])"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    threading.Timer(20, parent.kill).start()
    assert any(line == "ready\n" for line in parent.stdout)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 30
    while any("status" not in name for name in leftovers(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)  # the orphan tidies up when it ends
    assert all(name.endswith(".partial") for name in leftovers(folder))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([], "no command to record"),
        (["bash", "train.sh"], "'bash'.*must start with a Python interpreter"),
        (["torchrun", "train.py"], "'torchrun'"),
        (["python"], "runs no script"),
        (["python", "-u"], "runs no script"),
        (["python", "-"], "runs no script"),
        (["python", "-m"], "-m at the end"),
        (["python", "no/such.py"], "no/such.py: no such script; give the path"),
        (["./no/python3.11", "-c", "pass"], "no such program; give a Python interpreter"),
    ],
)
def test_a_command_that_is_not_python_training(folder, command, words):
    with pytest.raises(TraceError, match=words) as caught:
        main("out/run.h5", command)
    assert "\n" not in str(caught.value)
    assert leftovers(folder) == []


def test_where_the_interpreters_options_end():
    script = __file__
    assert split_command(["python3.12", "-X", "dev", "-u", script, "-m", "x"]) == (
        ["python3.12", "-X", "dev", "-u"],
        [script, "-m", "x"],
    )
    assert split_command(["python", "-m", "a.b", "--", "c"])[1] == ["-m", "a.b", "--", "c"]
    assert split_command(["python", "-cpass"])[1] == ["-c", "pass"]


def test_a_python_without_ondie_says_so(folder):
    with pytest.raises(TraceError, match="cannot import ondie.traces; install"):
        recorded(["-S", "-c", "pass"])  # without site-packages


def test_a_python_without_torch_says_so(folder, monkeypatch):
    hide = folder / "hide"
    hide.mkdir()
    (hide / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(hide))
    with pytest.raises(TraceError, match="has no PyTorch; run pip install"):
        recorded(["-c", "pass"])


def test_a_target_that_cannot_be_written_is_refused_before_anything_runs(folder, capfd):
    with pytest.raises(TraceError, match="does not exist"):
        main("nowhere/run.h5", [sys.executable, "-c", "print('ran')"])
    assert capfd.readouterr().out == ""
