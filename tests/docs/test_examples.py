"""Do the examples and notebooks run as printed, from an installed wheel, in another folder?"""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.docs.generate import ROOT
from tests.smoke.test_packaging import run

PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
FOLDER = ROOT / "docs" / "examples"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
COMMANDS = [
    line.split(" #")[0].strip()
    for line in re.findall(r"^\$ ((?:ondie|fio) .*)$", PAGE.split("## Examples")[1], re.MULTILINE)
]


def test_every_example_is_listed():
    files = {path.name for path in FOLDER.iterdir() if path.is_file()}
    section = PAGE.split("## Examples")[1]
    assert set(re.findall(r"^\| `([\w.-]+)` \|", section, re.MULTILINE)) == files
    used = {name for name in files if any(name in command for command in COMMANDS)}
    assert used | set(NOTEBOOKS) == files


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_the_code_of_the_page(block):
    exec(compile(block, "python.md", "exec"), {})


def test_the_code_of_the_page_on_stores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "store.md").read_text("utf-8")
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "store.md", "exec"), {})
    assert (tmp_path / "my-drive" / "checkpoint").exists()


def test_the_comparison_takes_five_lines():
    block = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    assert len([line for line in block.splitlines() if line]) == 5 and "to_pandas()" in block


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory, built):
    """(folder with the examples, environment in which ondie is the installed wheel)."""
    folder = tmp_path_factory.mktemp("elsewhere") / "examples"
    shutil.copytree(FOLDER, folder)
    site = tmp_path_factory.mktemp("site")
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index")
    run(*pip, "--target", site, built[1])
    env = os.environ | {"PYTHONPATH": str(site), "PATH": f"{site / 'bin'}:{os.environ['PATH']}"}
    found = run(sys.executable, "-P", "-c", "import ondie; print(ondie.__file__)", env=env)
    assert found.startswith(str(site))
    return folder, env


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_commands_run_as_printed(elsewhere):
    folder, env = elsewhere
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    assert len(COMMANDS) == 7
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0] == "ondie":
            words[:1] = [sys.executable, "-P", "-m", "ondie.emu.cli"]
        words = [sys.executable if word == "python" else word for word in words]
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert (folder / "run.h5").exists() and (folder / "mixed.log").exists()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(elsewhere, name):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    folder, env = elsewhere
    book = nbformat.read(folder / name, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "is committed with outputs"
    client = nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": folder}})
    client.execute(env=env, cwd=str(folder))
    errors = [o for cell in book.cells for o in cell.get("outputs", []) if o.output_type == "error"]
    shown = [o for cell in book.cells for o in cell.get("outputs", []) if "data" in o]
    assert not errors and any("text/html" in output.data for output in shown)
