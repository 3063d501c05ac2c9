"""Text of a new preset: a TOML file that is based on another preset, with every key explained.

Owns the text. Does not own the reading of presets (loader.py) or the file (cli/commands/preset.py).
Source: this project.
"""

from __future__ import annotations

import json
from itertools import groupby
from textwrap import wrap

from ondie.emu.config.config import Config, shown
from ondie.emu.config.leaf import SOURCES, Leaf, Value
from ondie.emu.config.loader import key_of
from ondie.emu.units import KINDS, exact

WIDTH = 100
HEAD = """\
A key in a line that begins with "# " has the value of {base}. To change it, remove "# ", and state
value, source and ref of your drive. source is datasheet, paper, measured, derived or assumed; an
assumed value also has low and high.
"""
EXAMPLE = """\
[datasheet]
source = "name and date of the data sheet"
capacity = "{capacity}"
state = "{state}"
figures = [
  {{ what = "sequential_read", value = "6500 MB/s", block = "128 KiB", queue_depth = 32 }},
  {{ what = "sequential_write", value = "3500 MB/s", block = "128 KiB", queue_depth = 32 }},
  {{ what = "random_read", value = "900 kIOPS", block = "4 KiB", queue_depth = 256 }},
  {{ what = "random_write", value = "130 kIOPS", block = "4 KiB", queue_depth = 256 }},
  {{ what = "read_latency", value = "80 us", block = "4 KiB" }},
  {{ what = "write_latency", value = "15 us", block = "4 KiB" }},
  {{ what = "read_power", value = "11 W", block = "128 KiB", queue_depth = 32 }},
  {{ what = "write_power", value = "13 W", block = "128 KiB", queue_depth = 32 }},
  {{ what = "bytes_written", value = "7 PB", workload = "random" }},
]
"""


def preset_text(cfg: Config, base: str, name: str) -> str:
    """Return a TOML file for a drive called ``name`` that is based on the preset ``base``. ``cfg``:
    configuration of ``base``.

    Every key of ``cfg`` is in a comment, with its meaning, so that the file describes the drive
    ``base`` until a line is changed. The file also has an example of a data sheet in a comment.
    """
    lines = [f"# {name}: a drive based on {base}.", "#"]
    lines += _comment(HEAD.format(base=base))
    lines += ["", f"base = {json.dumps(base)}"]
    leaves = (leaf for leaf in cfg.leaves() if leaf.key != "system.name")
    for section, group in groupby(leaves, key=lambda leaf: leaf.key.split(".")[0]):
        lines += ["", f"[{section}]"]
        if section == "system":
            lines += [f'name = {{ value = {json.dumps(name)}, source = "derived", ref = "new" }}']
        for leaf in group:
            lines += [f"## {line}" for line in wrap(_meaning(leaf), WIDTH - 3)]
            lines += [f"# {_line(leaf)}"]
    lines += ["", "# Figures of the data sheet, for `ondie preset check`; state the known ones."]
    capacity = exact(cfg.system.capacity_bytes, KINDS["bytes"])
    lines += _comment(EXAMPLE.format(capacity=capacity, state=cfg.ftl.initial))
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return [f"# {line}".rstrip() for line in text.splitlines()]


def _meaning(leaf: Leaf) -> str:
    """Return the meaning of a leaf's key as text, with its choices."""
    spec = key_of(leaf.key)[0].spec
    choices = f" ({', '.join(spec.choices)})" if spec.choices else ""
    return f"{spec.doc}{choices}"


def _line(leaf: Leaf) -> str:
    """Return the line that states a leaf in a TOML file: value, range, source and ref."""
    fields = [f"value = {_spelled(leaf, leaf.value)}"]
    if leaf.low is not None and leaf.high is not None:
        fields += [f"low = {_spelled(leaf, leaf.low)}", f"high = {_spelled(leaf, leaf.high)}"]
    source = leaf.source if leaf.source in SOURCES else "derived"
    fields += [f'source = "{source}"', f"ref = {json.dumps(leaf.ref)}"]
    return f"{leaf.key.split('.', 1)[1]} = {{ {', '.join(fields)} }}"


def _spelled(leaf: Leaf, value: Value) -> str:
    """Return ``value`` as TOML text."""
    if leaf.unit is not None and isinstance(value, int):
        return json.dumps(shown(value, leaf.unit)) if value else "0"
    return json.dumps(value)
