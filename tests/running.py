"""Owns: a line every few minutes that says which tests run and how long each has: what a machine
that ends the whole run shows of a test that hangs.
Does not own: the time limits of tests (pyproject.toml).
Source: none.
"""

import sys
import threading
import time
from typing import Any

PERIOD_S = 300.0


class Running:
    """Plugin of the process that starts the workers, which tell it of each start and end."""

    def __init__(self, period_s: float = PERIOD_S) -> None:
        self._begun = time.monotonic()
        self._tests: dict[str, float] = {}
        self._ended = threading.Event()
        self._period_s = period_s
        threading.Thread(target=self._tell, name="running tests", daemon=True).start()

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self._tests[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self._tests.pop(nodeid, None)

    def pytest_unconfigure(self) -> None:
        self._ended.set()

    def line(self) -> str:
        """Minutes since the start, and the tests that run now with their seconds."""
        now = time.monotonic()
        tests = [f"{name} ({now - begun:.0f} s)" for name, begun in list(self._tests.items())]
        return f"\n{(now - self._begun) / 60:.0f} min: {', '.join(tests) or 'no test'}\n"

    def _tell(self) -> None:
        while not self._ended.wait(self._period_s):
            sys.__stderr__.write(self.line())
            sys.__stderr__.flush()
