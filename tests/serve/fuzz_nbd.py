"""Owns: coverage-guided fuzzing of the parsers of NBD, with atheris, in a process of its own:
`NUMBA_DISABLE_JIT=1 python -m tests.serve.fuzz_nbd TARGET [libFuzzer's arguments]`.
Does not own: what must hold (fuzz_targets.py). Source: atheris's documentation.
"""

import itertools
import resource
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ondie.emu.serve"]):
    from tests.serve.fuzz_targets import TARGETS

RESIDENT = 2**30
"""Bytes that the process may hold."""


def bounded(target):
    """The target, with a look at the process's memory every 256 inputs.

    libFuzzer's own limit takes the peak of getrusage(2), which Linux hands down from the process
    that started this one: a large pytest would fail the first input.
    """
    inputs = itertools.count()
    page = resource.getpagesize()

    def run(data: bytes) -> None:
        target(data)
        if next(inputs) % 256 == 0:
            held = int(Path("/proc/self/statm").read_text().split()[1]) * page
            if held > RESIDENT:
                raise MemoryError(f"{held} bytes are resident, limit {RESIDENT}")

    return run


if __name__ == "__main__":
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup([*sys.argv, "-rss_limit_mb=0"], bounded(target))
    atheris.Fuzz()
