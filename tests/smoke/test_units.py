"""Are the files of csrc/ compiled side by side, and is a file that does not compile named?"""

import importlib.util
import threading
from pathlib import Path
from subprocess import CalledProcessError
from types import ModuleType

import pytest
from setuptools.errors import CompileError

FILES = ["csrc/bch.c", "csrc/crc.c", "csrc/isa_base.c", "csrc/isa_avx2.c", "csrc/topk.c"]
LIMIT_S = 20


@pytest.fixture(scope="module")
def units(root: Path) -> ModuleType:
    """csrc/units.py, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("units", root / "csrc" / "units.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_so_many_at_a_time_the_slowest_first(units: ModuleType, jobs: int) -> None:
    """Each waits until `jobs` have begun; more than that at a time would be counted."""
    begun: list[str] = []
    running, most = 0, 0
    change = threading.Condition()

    def compile_files(sources: list[str], folder: str, macros: object = None) -> list[str]:
        nonlocal running, most
        assert len(sources) == 1 and macros == ["M"]
        with change:
            begun.append(sources[0])
            running += 1
            most = max(most, running)
            change.notify_all()
            assert change.wait_for(lambda: len(begun) >= jobs, LIMIT_S)
            running -= 1
        return [f"{folder}/{sources[0]}.o"]

    objects = units.in_parallel(compile_files, jobs)(FILES, "made", macros=["M"])
    assert objects == [f"made/{name}.o" for name in FILES]
    assert most == jobs
    assert sorted(begun) == sorted(FILES)
    assert set(begun[: max(2, jobs)]) >= {"csrc/isa_base.c", "csrc/isa_avx2.c"}


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (CalledProcessError(4, ["/usr/bin/gcc", "-c"]), "/usr/bin/gcc ended with exit code 4"),
        (FileNotFoundError("no gcc"), "no compiler was found"),
    ],
)
def test_a_failure_names_its_file_and_begins_no_other(
    units: ModuleType, cause: Exception, why: str
) -> None:
    begun: list[str] = []

    def compile_files(sources: list[str]) -> list[str]:
        begun.extend(sources)
        if sources == ["csrc/isa_avx2.c"]:
            raise CompileError("no compiler was found") from cause
        return [f"{sources[0]}.o"]

    with pytest.raises(CompileError) as failure:
        units.in_parallel(compile_files, 1)(FILES)
    assert str(failure.value) == f"csrc/isa_avx2.c was not compiled: {why}"
    assert begun == ["csrc/isa_base.c", "csrc/isa_avx2.c"]


def test_every_processor_that_is_allowed(units: ModuleType, monkeypatch) -> None:
    monkeypatch.setattr(units.os, "sched_getaffinity", lambda _: {3, 5, 9}, raising=False)
    assert units.processors() == 3
    monkeypatch.delattr(units.os, "sched_getaffinity")
    monkeypatch.setattr(units.os, "cpu_count", lambda: 4)
    assert units.processors() == 4
