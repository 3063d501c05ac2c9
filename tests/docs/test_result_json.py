"""Does the table of keys describe every key of result.json, and nothing else?

Held against the result.json files of all recorded comparisons (tests/net/recorded), and one that is
made now.
"""

import gzip
import json

import pytest

from ondie import traces
from ondie.emu.analysis.compare import compare
from ondie.emu.analysis.result_json import result_data
from ondie.emu.analysis.result_keys import METRICS, RESULT_KEYS, expand
from ondie.emu.config.config import load_preset
from tests.docs import generate
from tests.smoke.commands import SWUNG, assumed_only

KEYS = {key for pattern in RESULT_KEYS for key in expand(pattern)}
OPEN = {key.removesuffix(".*") for key in KEYS if key.endswith(".*")}
UNITS = {key: unit for pattern, (unit, _) in METRICS.items() for key in expand(pattern)}


@pytest.fixture(scope="module")
def results(root, counts):
    found = []
    for path in sorted((root / "tests/net/recorded").glob("*.json.gz")):
        recorded = json.loads(gzip.decompress(path.read_bytes()))
        found += [value for name, value in recorded.items() if name.endswith("/result.json")]
    assert len(found) > 50
    cfg = load_preset("optimstore-r1")
    cfg = counts(assumed_only(cfg, *SWUNG), cfg)
    now = result_data(compare(traces.load("gpt-small"), cfg, steps=1), 0)
    found.append(json.loads(json.dumps(now)))
    return found


def leaves(value, key=""):
    """The keys of all values below; null also where an object is documented."""
    if key in OPEN:
        yield key + ".*"
    elif isinstance(value, dict):
        for name, below in value.items():
            if f"{key}.{name}" != "paths[].metrics":
                yield from leaves(below, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for element in value:
            yield from leaves(element, key + "[]")
    elif value not in (None, []) or key in KEYS:
        yield key
    else:
        assert any(name.startswith((key + ".", key + "[]")) for name in KEYS), key


def test_every_key_is_described_and_every_description_is_used(results):
    found = {key for result in results for key in leaves(result)}
    found.add("ondie_version")  # the recordings leave it out
    found.add("configuration_sha256")
    assert found == KEYS


def test_every_metric_is_described_with_its_unit(results):
    metrics = [p["metrics"] for r in results for p in r["paths"] if p["status"] == "ok"]
    assert {name: m["unit"] for found in metrics for name, m in found.items()} == UNITS
    assert all(UNITS[name] == m["unit"] for found in metrics for name, m in found.items())


def test_names_in_braces_are_all_combined():
    assert list(expand("a{b,c}_{d,e}")) == ["ab_d", "ab_e", "ac_d", "ac_e"]
    assert list(expand("plain")) == ["plain"]


def test_the_page_is_generated_from_the_table(root):
    page = (root / "docs/result-json.md").read_text("utf-8")
    assert page == generate.rewritten(page)
