"""JSON Schema of result.json, generated from the table of its keys.

Owns the translation of the table (analysis/result_keys.py) to a schema. The generated schema is
stored in result.schema.json in this folder. `python -m ondie.emu.results.schema` prints it, and a
test compares the two.
Source: JSON Schema, draft 2020-12.
"""

from __future__ import annotations

import json
import sys
from importlib import resources
from typing import Any

from ondie.emu.analysis.result_json import SCHEMA_VERSION
from ondie.emu.analysis.result_keys import METRICS, RESULT_KEYS, expand

NAME = "result.schema.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
OF_UNIT: dict[str, list[str]] = {"bool": ["boolean"], "resource": ["string"]}
"""JSON types of a value by its unit. A value with any other unit is a number; a value with unit ""
may have any type."""
Schema = dict[str, Any]


def schema() -> Schema:
    """Return the JSON Schema of result.json. It allows only the documented keys, and describes each
    with its unit and meaning."""
    root = _object()
    for key, (unit, meaning) in RESULT_KEYS.items():
        for name in expand(key):
            _add(root, name, _value(unit, meaning))
    metrics = _object()
    for key, (unit, meaning) in METRICS.items():
        for name in expand(key):
            metrics["properties"][name] = {
                "description": meaning,
                "type": "object",
                "properties": {"value": _value(unit, meaning), "unit": {"const": unit}},
                "required": ["value", "unit"],
                "additionalProperties": False,
            }
    root["properties"]["paths"]["items"]["properties"]["metrics"] = metrics
    root["properties"]["schema_version"]["const"] = SCHEMA_VERSION
    root["required"] = ["schema_version", "ondie_version", "answer", "paths"]
    return {"$schema": DIALECT, "title": "Result of `ondie compare`"} | root


def _object() -> Schema:
    return {"type": ["object", "null"], "properties": {}, "additionalProperties": False}


def _value(unit: str, meaning: str) -> Schema:
    """Return the schema of a value of result.json with unit ``unit`` and description ``meaning``,
    or of a list of such values."""
    words = meaning if not unit else f"{meaning} ({unit})"
    if not unit:
        return {"description": words}
    kinds = OF_UNIT.get(unit, ["number"])
    return {
        "description": words,
        "type": [*kinds, "array", "null"],
        "items": {"type": [*kinds, "array", "null"], "items": {"type": [*kinds, "null"]}},
    }


def _add(node: Schema, key: str, value: Schema) -> None:
    """Add schema ``value`` below ``node`` for a key such as "paths[].arithmetic.seconds" or
    "paths[].counters.*"."""
    first, _, rest = key.partition(".")
    name = first.removesuffix("[]")
    if first == "*":
        node["additionalProperties"] = value if not rest else {}
        return
    if not rest and name == first:
        node["properties"][name] = value
        return
    below = node["properties"].setdefault(name, _object())
    if first != name:  # a list of objects
        if "items" not in below:
            below.clear()
            below |= {"type": ["array", "null"], "items": _object()}
        below = below["items"]
    if rest == "*":
        below["additionalProperties"] = {} if not value.get("type") else _nested(value)
        return
    _add(below, rest, value)


def _nested(value: Schema) -> Schema:
    """Return schema ``value`` extended to objects, for a key below which values may be nested."""
    return value | {"type": [*value["type"], "object"]}


def text() -> str:
    """Return the schema as the text of result.schema.json."""
    return json.dumps(schema(), indent=1) + "\n"


def load_schema() -> Schema:
    """Return the schema in result.schema.json, which the package contains."""
    found: Schema = json.loads(resources.files(__package__).joinpath(NAME).read_text("utf-8"))
    return found


if __name__ == "__main__":
    sys.stdout.write(text())
