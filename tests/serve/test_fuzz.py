"""Parsers and sessions of all protocols on the kept corpus, on changed members of it, and, at full
counts, guided by coverage for two minutes for each protocol."""

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serve.fuzz import TARGETS, function_of

SECONDS = 55
"""Time of a coverage-guided run; two of them take two minutes with their start."""


def corpus(root, target: str) -> list[bytes]:
    """Inputs that cover different branches; one found by a longer run is added as a line."""
    text = (root / "tests" / "serve" / "corpus" / f"{target}.txt").read_text()
    return [bytes.fromhex(line) for line in text.split()]


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus(root, target):
    members, function = corpus(root, target), function_of(target)
    assert len(members) >= 20
    for data in members:
        function(data)


@pytest.mark.parametrize("target", TARGETS)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_changed_members(root, target, data):
    """Bytes of a member changed, cut out, or followed by those of another one."""
    members = corpus(root, target)
    one = bytearray(data.draw(st.sampled_from(members)))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)),
                                        max_size=4)):  # fmt: skip
        if one:
            one[at % len(one)] = value
    cut = data.draw(st.integers(0, len(one)))
    function_of(target)(bytes(one[:cut] + data.draw(st.sampled_from(members))[1:] + one[cut:]))


@pytest.mark.soak
@pytest.mark.parametrize("target", TARGETS)
def test_guided_by_coverage(root, target, tmp_path):
    """No crash, hang or growth: one input takes at most 10 s, and all of them 1 GiB."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number, data in enumerate(corpus(root, target)):
        (folder / str(number)).write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-m", "tests.serve.fuzz", target, str(folder), "-max_len=6000",
         f"-max_total_time={SECONDS}", "-timeout=10", "-seed=1",
         f"-artifact_prefix={tmp_path}/"],
        cwd=root, capture_output=True, text=True, timeout=4 * SECONDS, check=False,
    )  # fmt: skip
    found = [each.read_bytes().hex() for each in tmp_path.iterdir() if each.is_file()]
    assert done.returncode == 0 and not found, f"{found}\n{done.stderr[-3000:]}"
    last = [line for line in done.stderr.splitlines() if "DONE" in line][-1].split()
    assert int(last[last.index("cov:") + 1]) > 50, "nothing was covered"
