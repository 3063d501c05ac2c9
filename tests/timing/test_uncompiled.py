"""Does the engine give the same times uncompiled (NUMBA_DISABLE_JIT=1), with NumPy's numbers?

The suite of timing rules runs compiled with the other tests, and here uncompiled, with the tests of
MQSim's order, whose functions are compiled alone at full counts only. NumPy computes in the type of
its operands, which differs from the 64 bits of compiled code; the second test has the operations
that this changes.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from ondie.emu.engine.core.state import Elements, Numbers, record_type

ORDERED = ("mqsim_collection", "mqsim_order")
"""Tests of single functions, each of which would be compiled as a program of its own."""


def test_every_timing_rule_holds_uncompiled(root):
    words = ["-q", "-p", "no:cacheprovider", "--benchmark-disable"]
    words += [f"tests/timing/test_{name}.py" for name in ("rules", *ORDERED)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout
    assert "deselected" not in done.stdout


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "i4", "u4", "i8"])
def test_short_integers_become_64_bits_wide(kind):
    record = np.zeros(2, record_type(field=kind)).view(Elements)[1]
    table = np.zeros((2, 3), kind).view(Numbers)
    record.field = table[1, 2] = 40
    for value in (record.field, record["field"], table[1, 2]):
        assert 1 << value == 1 << 40  # 0 in 8 and in 32 bits
        assert value << 40 == 40 << 40
        assert ~(1 << value) & -1 == ~(1 << 40)
    record["field"] += 1
    assert record.field == 41


def test_floats_and_long_words_keep_their_type():
    numbers = np.zeros(1, record_type(half="f4", word="u8")).view(Elements)[0]
    assert type(numbers.half) is np.float32 and type(numbers.word) is np.uint64
