"""Owns: the folder and processes of a live test. Does not own: what they are (processes.py).
Source: own.
"""

from collections.abc import Iterator

import pytest

from tests.live.processes import Live


@pytest.fixture
def live() -> Iterator[Live]:
    with Live() as found:
        yield found
