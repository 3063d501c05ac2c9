"""Do the stored instruction counts still describe the kernels?"""

import importlib.util
import re
import shutil
import subprocess

import pytest

from ondie.kernels import OPS


@pytest.fixture(scope="module")
def tool(root):
    """csrc/instructions.py, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("instructions", root / "csrc" / "instructions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Where the counting programs are compiled once."""
    return tmp_path_factory.mktemp("programs")


@pytest.mark.soak
def test_remeasured(tool, programs, counts):
    """One entry, or every third; callgrind counts exactly, so 2 % is for the compiler.
    `python csrc/instructions.py --check` measures all."""
    for program in ("gcc", "valgrind"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    version = r"\) (\d+)\."
    here = re.search(version, tool.first_line("gcc", "--version"))
    then = re.search(version, tool.stored(("measured",))["compiler"])
    if not here or here.group(1) != then.group(1):
        pytest.skip("counted with another gcc")
    every = list(tool.entries())
    one = ("fma128", "adam", "page")
    wanted = counts([entry for entry in every if (*entry.table, entry.key) == one], every[::3])
    assert {entry.target for entry in wanted} == counts({"fma128"}, set(tool.TARGETS))
    for table, values in tool.measure(iter(wanted), programs).items():
        for key, value in values.items():
            assert value == pytest.approx(tool.stored(table)[key], rel=0.02), (table, key)


def test_the_file_is_complete_and_plausible(tool):
    for entry in tool.entries():
        value = tool.stored(entry.table)[entry.key]
        assert 0.3 < value < (120 if entry.codes else 50)
    for target in tool.TARGETS:
        for op in OPS:
            table = tool.stored((target, op))
            # a page costs the same loop plus one call of at most 600 instructions, most of them to
            # see that no two arrays overlap
            assert 0 <= table["page"] - table["bulk"] < 600 / 4096
            assert table["bulk_l2"] >= table["bulk"]
    # four lanes: at least a load each of w, g, m, v, three stores and Adam's 12 operations, over 4
    assert tool.stored(("base", "adam"))["bulk"] >= (4 + 3 + 12) / 4
    # twice the width halves the work, but for SSE2's extra register moves
    assert tool.stored(("fma128", "adam"))["bulk"] == pytest.approx(
        2 * tool.stored(("avx2", "adam"))["bulk"], rel=0.02
    )


@pytest.mark.soak
def test_the_measuring_program_refuses_nonsense(tool, programs, tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    program = tool.build("base", programs)
    assert subprocess.run([program], capture_output=True).returncode == 2
    for more, code in (
        (["adamax", "0", "0", "8", "-"], 2), (["adam", "9", "0", "8", "-"], 4),
        (["adam", "6", "0", "8", tmp_path / "none"], 3),
    ):  # fmt: skip
        assert subprocess.run([program, *more], capture_output=True).returncode == code
