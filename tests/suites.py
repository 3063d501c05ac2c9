"""Owns: the rows of whole validation suites, run once per test run by the process that needs them
first. Does not own: the suites (emu/validate) or runs with changed constants (fidelity/fitted.py).
Source: none.

The process that starts the workers makes FOLDER and names it in the environment (conftest.py).
Without it, as in `python -m tests.docs.generate`, each process runs what it needs.
"""

import fcntl
import functools
import os
import pickle
from pathlib import Path

from ondie.emu import validate
from ondie.emu.analysis.row import Row

FOLDER = "ONDIE_TEST_SUITES"
"""Environment variable with the folder of the rows that processes share."""


@functools.cache
def _rows(names: tuple[str, ...]) -> tuple[Row, ...]:
    given = names or (None,)
    if FOLDER not in os.environ:
        return tuple(validate.run(*given))
    path = Path(os.environ[FOLDER]) / "-".join(("suite", *names))
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_bytes(pickle.dumps(tuple(validate.run(*given))))
    return pickle.loads(path.read_bytes())


def suite(*names: str) -> list[Row]:
    """The rows of `ondie validate NAMES`, at most one name."""
    return list(_rows(names))
