"""Does the C code that accesses a guest's memory stay in its regions, for random commands, pointers
and queues? AddressSanitizer and UndefinedBehaviorSanitizer watch it (guest_sanitized.c); coverage
of C does not guide fuzz.py."""

import os
import shutil
import subprocess

import pytest

COMPILER = shutil.which("gcc")
SECONDS = 120


@pytest.fixture(scope="module")
def program(root, tmp_path_factory):
    if COMPILER is None:
        pytest.skip("gcc is not installed")
    out = tmp_path_factory.mktemp("sanitized") / "guest"
    files = [
        root / "tests/serve/guest_sanitized.c",
        root / "csrc/guest.c",
        root / "csrc/doorbell.c",
    ]
    words = ["-std=c11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    done = subprocess.run([COMPILER, *words, f"-I{root / 'csrc'}", *map(str, files), "-lpthread",
                           "-o", str(out)], capture_output=True, text=True, timeout=SECONDS,
                          check=False)  # fmt: skip
    if "cannot find" in done.stderr and "san" in done.stderr:
        pytest.skip("gcc has no sanitizers here")
    assert done.returncode == 0, done.stderr
    return out


def test_accesses_stay_in_the_regions(program, counts):
    """All kinds of commands occur, and none is an access outside."""
    for seed in range(counts(2, 10)):
        done = subprocess.run([str(program), str(seed), "3000"], capture_output=True, text=True,
                              timeout=SECONDS, check=False,
                              env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"})  # fmt: skip
        assert done.returncode == 0, f"seed {seed}: {done.returncode}\n{done.stderr[-3000:]}"
        assert min(map(int, done.stdout.split())) > 100, done.stdout
