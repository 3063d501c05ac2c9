"""Do sdist and wheel hold what git holds, and does the wheel work somewhere else?"""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOMS = ("kernels", "traces", "emu")
GENERATED = re.compile(r"(PKG-INFO|setup\.cfg|ondie\.egg-info/.*)$")
# What a user of the installed package does first, far from the checkout.
SCRIPT = """
import sys
import numpy as np
import ondie, ondie.emu, ondie.kernels, ondie.traces
from ondie.kernels import backends, get, isas
for room in (ondie, ondie.emu, ondie.kernels, ondie.traces):
    assert room.__file__.startswith(sys.argv[1]), room.__file__
assert "c" in backends() and isas()[0] == "base"
bits = set()
for backend in backends():
    k = get("adamw", backend=backend)
    w, g, m, v = (np.linspace(a, 2, 1000, dtype=np.float32) for a in (1, -1, 0, 1))
    k(w, g, (m, v), k.coefficients({"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}, 1))
    bits.add(w.tobytes())
assert len(bits) == 1
print(ondie.traces.names())
"""


def run(*command: object, **options) -> str:
    """Standard output; the command's own words where it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def installed_names(tracked: list[str]) -> set[str]:
    """Files of the wheel: those of the rooms, of which emu/api is the package ondie itself."""
    found = {f"ondie/{name}" for name in tracked if name.split("/")[0] in ROOMS}
    return {name.replace("ondie/emu/api/", "ondie/") for name in found}


def test_package_list_is_the_folders(root, tracked):
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    setuptools = project["tool"]["setuptools"]
    folders = {
        name.rsplit("/", 1)[0].replace("/", ".")
        for name in installed_names(tracked)
        if name.endswith(".py")
    }
    assert set(setuptools["packages"]) == folders, "[tool.setuptools] packages in pyproject.toml"


def test_sources_are_the_c_files(root, tracked):
    """Every C file is compiled, or included by one that is and listed as a dependency."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    modules = project["tool"]["setuptools"]["ext-modules"]
    files = {name for module in modules for name in module["sources"] + module["depends"]}
    listed = {name for name in files if name.startswith("csrc/")}
    there = {n for n in tracked if n.startswith("csrc/") and n.endswith((".c", ".h"))}
    assert there - listed == {"csrc/count.c"}  # a program of its own
    assert listed <= there


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_sdist_is_the_checkout(built, tracked):
    with tarfile.open(built[0]) as archive:
        names = {m.name.split("/", 1)[1] for m in archive.getmembers() if m.isfile()}
    assert {n for n in names if not GENERATED.fullmatch(n)} == set(tracked)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_wheel_is_the_rooms_and_two_extensions(built, tracked):
    with zipfile.ZipFile(built[1]) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n and not n.endswith("/")}
        entry_points = next(n for n in archive.namelist() if n.endswith("entry_points.txt"))
        assert "ondie = ondie.emu.cli:start" in archive.read(entry_points).decode()
    extensions = {
        n for n in names if n.startswith(("ondie/kernels/_native.", "ondie/kernels/_call."))
    }
    assert len(extensions) == 2
    assert names - extensions == installed_names(tracked)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_wheel_works_from_another_folder(built, tmp_path):
    place, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index")
    run(*pip, "--target", place, built[1])
    env = os.environ | {"PYTHONPATH": str(place), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    run(sys.executable, "-P", "-c", SCRIPT, place, cwd=elsewhere, env=env)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_wheel_works_in_an_empty_environment(built, tmp_path):
    """With its dependencies from the package index."""
    place, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    elsewhere.mkdir()
    venv.create(place)
    # Without bytecode of what is not imported, which would take as long as the downloads.
    pip = (sys.executable, "-m", "pip", "--python", place / "bin" / "python")
    run(*pip, "install", "-q", "--no-compile", built[1])
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    run(place / "bin" / "python", "-c", SCRIPT, place, cwd=elsewhere, env=env)
    assert "Usage" in run(place / "bin" / "ondie", "--help", cwd=elsewhere, env=env)


def test_editable_install_finds_new_files(root):
    """Lenient: modules are found in the checkout, not in a list made at install time."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    assert "editable-mode" not in str(project["tool"]["setuptools"])
    where = "import ondie.kernels as k; print(k.__path__[0])"
    found = Path(run(sys.executable, "-P", "-c", where, cwd="/").strip())
    assert found.resolve() == (root / "kernels").resolve()
