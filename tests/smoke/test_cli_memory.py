"""Is refused memory one clear line with exit code 2, while modules load and during a run?"""

import errno
import subprocess
import sys

import pytest

from ondie.emu.cli import REFUSED, is_refused_memory
from tests.smoke.commands import Outcome, files, refused

COMPARE = ("compare", "gpt-small", "--steps", "1", "--no-swing", "--paths", "on_die")


def run_limited(kib: int, *words: str, cwd) -> Outcome:
    """Run a command in an address space of ``kib`` KiB."""
    done = subprocess.run(
        ["bash", "-c", f'ulimit -v {kib}; exec "$@"', "-", sys.executable, "-m", "ondie.emu.cli",
         *words],
        cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v limits nothing elsewhere")
@pytest.mark.parametrize("kib", [2_000_000, 200_000], ids=["run", "modules"])
def test_refused_memory_is_one_line(tmp_path, kib):
    """2 GB do not hold the page maps, 0.2 GB do not hold the libraries."""
    line = refused(run_limited(kib, *COMPARE, cwd=tmp_path))
    assert line == f"ondie: {REFUSED}"
    assert files(tmp_path) == []


def test_what_counts_as_refused_memory():
    library = ImportError("numpy failed")
    library.__cause__ = OSError("libfoo.so: failed to map segment from shared object")
    assert is_refused_memory(library)
    assert is_refused_memory(OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert is_refused_memory(MemoryError())
    assert not is_refused_memory(OSError(errno.ENOSPC, "No space left on device"))
    assert not is_refused_memory(ImportError("No module named 'foo'"))
