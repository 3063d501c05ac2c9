"""Pairs drawn from seeds with --quirks: mean response times against MQSim's.

`mqsim/seeded_pairs.json` has the mean response times of each flow in us, and the collections, of
MQSim (tests/config/mqsim_pairs.py says which, and draws the files) for the seeds 1 to 120 without
and 1 to 240 with collection; the seeds that are not listed end in a crash, or early, there.
"""

import json
from pathlib import Path

import pytest

from tests.config.mqsim_pairs import draw, run_ondie, write

PAIRS = json.loads((Path(__file__).parent / "mqsim" / "seeded_pairs.json").read_text())
APART = {"gc-132": 0.0034, "gc-154": 0.0027, "nogc-91": 0.0009}
"""How far the means of these pairs are apart, for causes that are open.

All others are equal to 1 in 10,000.
"""


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", PAIRS)
def test_mean_response_times_are_those_of_mqsim(tmp_path, name):
    kind, seed = name.split("-")
    write(tmp_path, *draw(int(seed), kind == "gc"))
    expected = PAIRS[name]["means"]
    within = 1.1 * APART.get(name, 1e-4)
    assert run_ondie(tmp_path) == pytest.approx(expected, rel=within)
