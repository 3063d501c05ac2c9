"""Record results of the `ondie` command line, and compare new runs with the recordings.

    python -m tests.net.run record|compare|coverage [--only PATTERN] [--jobs N]

Owns the run of a case, the stored form of its output and the comparison. Does not own the cases
(cases.py) or the reasons for accepted differences (exempt.toml). It imports the package only in
`entry` and `known_choices`; both are below, and a move of these modules changes nothing else.
Source: none.

A recording is canonical JSON in one gzip file per case. Numbers are compared exactly: integers by
value, floats by repr. A string with a space is free text: it is stored as TEXT and not compared.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.net.cases import CASES, NOT_COVERED, Case, configuration_of, write_inputs


def entry() -> Callable[[list[str]], None]:
    """The function that runs the command line."""
    from ondie.emu.cli.main import main

    return main


def known_choices() -> dict[str, tuple[str, ...]]:
    """Every configuration key with a closed set of values, and the sets of paths, presets and
    formats."""
    from ondie.emu.analysis.path_choice import PATHS
    from ondie.emu.config.config import preset_names
    from ondie.emu.config.schema.keys import KEYS
    from ondie.emu.ftl.policies import STREAMS, VICTIMS
    from ondie.kernels import FORMATS

    choices = {name: key.spec.choices for name, key in KEYS.items() if key.spec.choices}
    choices |= {name: ("true", "false") for name, key in KEYS.items() if key.type is bool}
    choices["ftl.gc_policy"] = tuple(VICTIMS)
    choices["ftl.stream_policy"] = tuple(STREAMS)
    choices["--paths"] = tuple(PATHS)
    choices["--device"] = tuple(preset_names())
    choices["--format"] = tuple(FORMATS)
    return choices


HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
EXEMPT = HERE / "exempt.toml"

DROPPED = {
    "wall_s": "the run time depends on the host",
    "peak_rss_bytes": "the memory of the process depends on the host",
    "ondie_version": "the version is not a result",
    "version": "the version is not a result",
    "code_version": "the version that recorded a trace is not a result",
    "configuration_sha256": "the hash covers texts of sources and references",
}
"""Keys that a recording leaves out, and the reason."""

TEXT = "<text>"
"""Stands for a string of free text, or for a list of strings that has free text in it."""
LONGEST = 48
"""Scalars of a list that are stored one by one; a longer list is stored as a digest."""
MOST_RECORDS = 1500
"""Objects of a list that are stored one by one."""
FIRST = 5
"""Elements that a digest shows."""
MISSING = "<missing>"
CONSTANT = re.compile(r"[a-z]\w*(\.[a-z]\w*)+")
"""A configuration key."""


def main() -> int:
    """Parse the arguments and run; the exit code is 1 on a difference that is not exempt."""
    parser = argparse.ArgumentParser(prog="python -m tests.net.run", description=__doc__)
    parser.add_argument("action", choices=("record", "compare", "coverage"))
    parser.add_argument("--only", default="*", metavar="PATTERN", help="Run only these cases.")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="Number of processes.")
    parser.add_argument("--show", type=int, default=5, metavar="N",
                        help="Print the first N differences of each case.")  # fmt: skip
    given = parser.parse_args()
    if given.action == "coverage":
        return coverage()
    names = [name for name in CASES if fnmatch.fnmatch(name, given.only)]
    if not names:
        print(f"--only {given.only}: no case has such a name", file=sys.stderr)
        return 2
    began = time.monotonic()
    if given.action == "record":
        bad = record(names, given.jobs)
    else:
        bad = compare(names, given.jobs, given.show)
    print(f"{len(names)} cases, {bad} bad, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


def record(names: list[str], jobs: int) -> int:
    """Run the cases and store their output. Returns the number of cases that failed."""
    RECORDED.mkdir(exist_ok=True)
    bad = 0
    for name, found, seconds in outcomes(names, jobs):
        if "failed" in found:
            bad += 1
            print(f"{name}: failed: {found['failed']}", flush=True)
            continue
        data = gzip.compress(dumped(found).encode(), 9, mtime=0)
        file_of(name).write_bytes(data)
        print(f"{name}: {len(data):,} B, {seconds:.1f} s", flush=True)
    for file in RECORDED.glob("*.json.gz"):
        if file.name.removesuffix(".json.gz") not in CASES:
            file.unlink()
            print(f"{file.name}: removed, since no case has this name")
    return bad


def compare(names: list[str], jobs: int, most: int) -> int:
    """Run the cases and compare them with the recordings; print at most ``most`` differences of a
    case. Returns the number of cases that differ."""
    exempt = tomllib.loads(EXEMPT.read_text())
    accepted, renamed = exempt.get("difference", []), exempt.get("renamed", [])
    rounded = exempt.get("rounded", [])
    bad = 0
    for name, found, seconds in outcomes(names, jobs):
        if "failed" in found:
            bad += 1
            print(f"{name}: failed: {found['failed']}", flush=True)
            continue
        if not file_of(name).exists():
            bad += 1
            print(f"{name}: no recording; run `record --only {name}`", flush=True)
            continue
        old = json.loads(gzip.decompress(file_of(name).read_bytes()))
        old = with_new_keys(old, name, renamed)
        new = json.loads(dumped(found))
        every = list(differences(old, new, ""))
        left = [
            d
            for d in every
            if not is_exempt(name, d, accepted) and not is_rounding(name, d, rounded)
        ]
        more = f", {len(every) - len(left)} exempt" if len(every) > len(left) else ""
        if not left:
            print(f"{name}: equal{more} ({seconds:.1f} s)", flush=True)
            continue
        bad += 1
        print(f"{name}: {len(left)} differences{more} ({seconds:.1f} s)")
        for path, a, b in left[:most]:
            print(f"    {path}: {a} -> {b}")
        sys.stdout.flush()
    return bad


def file_of(name: str) -> Path:
    return RECORDED / f"{name}.json.gz"


def dumped(value: Any) -> str:
    """Canonical JSON: sorted keys, floats by repr."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


# --- running


def outcomes(names: list[str], jobs: int) -> Iterator[tuple[str, dict[str, Any], float]]:
    """(name, output, seconds) of every case, in the order of ``names``. The worker processes are
    reused, since the engine takes seconds to load."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=jobs, mp_context=context) as pool:
        for name, (found, seconds) in zip(names, pool.map(run_case, names), strict=True):
            yield name, found, seconds


def run_case(name: str) -> tuple[dict[str, Any], float]:
    """Run a case in a folder with its input files; what it keeps, or {"failed": reason}."""
    case, began = CASES[name], time.monotonic()
    back = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            write_inputs(Path(folder), case, HERE.parent)
            code, out, err = run(list(case.argv))
            found = kept(case, code, out, err, Path(folder))
        except Exception as error:  # noqa: BLE001 - the report names the case; the other cases run
            found = {"failed": f"{type(error).__name__}: {error}"}
        finally:
            os.chdir(back)
    return found, time.monotonic() - began


def run(argv: list[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `ondie ARGV`, run in this process."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.StringIO()
    os.environ["COLUMNS"] = "200"
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            entry()(argv)
        except SystemExit as end:
            code = end.code or 0
    return int(code), out.buffer.getvalue().decode(), err.getvalue()


def kept(case: Case, code: int, out: str, err: str, folder: Path) -> dict[str, Any]:
    """The parts of the output that ``case`` keeps, in canonical form."""
    if code not in case.codes:
        return {"failed": f"exit code {code}: {err.strip()[-300:]}"}
    found: dict[str, Any] = {"exit": code}
    for part in case.keep:
        kind, _, file = part.partition(":")
        if kind == "json":
            found[part] = json.loads((folder / file).read_text())
        elif kind == "stdout":
            found[part] = json.loads(out)
        elif kind == "table":
            found[part] = cells(out)
        elif kind == "hash":
            data = (folder / file).read_bytes()
            found[part] = {
                "sha256": hashlib.sha256(data).hexdigest(),
                "bytes": len(data),
                "lines": data.count(b"\n"),
            }
        else:
            raise ValueError(f"{part}: unknown kind of output; use json, stdout, table or hash")
    return canonical(found, folder)


def cells(text: str) -> list[dict[str, str]]:
    """Cells of the rows of a table as the terminal shows it; the head has other rules."""
    rows = (
        line.strip("│|").split("│" if "│" in line else "|")
        for line in text.splitlines()
        if line.startswith(("│", "|"))
    )
    return [{str(i): cell.strip() for i, cell in enumerate(row)} for row in rows]


# --- the stored form


def canonical(value: Any, folder: Path) -> Any:
    """``value`` without dropped keys and free text; long lists as digests."""
    if isinstance(value, dict):
        return {key: canonical(item, folder) for key, item in value.items() if key not in DROPPED}
    if isinstance(value, str):
        return TEXT if " " in value or str(folder) in value else value
    if not isinstance(value, list):
        return value
    if value and all(isinstance(item, str) for item in value) and any(" " in s for s in value):
        return TEXT
    items = [canonical(item, folder) for item in value]
    scalars = not any(isinstance(item, dict | list) for item in items)
    if len(items) > (LONGEST if scalars else MOST_RECORDS):
        return {
            "digest": hashlib.sha256(dumped(items).encode()).hexdigest(),
            "length": len(items),
            "first": items[:FIRST],
        }
    return items


def differences(old: Any, new: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """(path, old, new) wherever two canonical values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            here = f"{path}/{key}"
            if key not in old or key not in new:
                yield here, shown(old.get(key, MISSING)), shown(new.get(key, MISSING))
            else:
                yield from differences(old[key], new[key], here)
    elif (before := by_key(old)) and (after := by_key(new)):
        yield from differences(before, after, path)
        orders = [[key for key in one if key in other]
                  for one, other in ((before, after), (after, before))]  # fmt: skip
        if orders[0] != orders[1]:
            yield f"{path}/order", shown(orders[0]), shown(orders[1])
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{path}/length", str(len(old)), str(len(new))
        for i, (a, b) in enumerate(zip(old, new, strict=False)):
            yield from differences(a, b, f"{path}/{i}")
    elif old == TEXT and (isinstance(new, str) or is_texts(new)):
        return
    elif type(old) is not type(new) or repr(old) != repr(new):
        yield path, shown(old), shown(new)


def by_key(value: Any) -> dict[str, Any]:
    """The objects of a list by the configuration keys that they belong to, and such keys; or none:
    a new constant then moves no others."""
    if not isinstance(value, list):
        return {}
    keys = [item.get("key") if isinstance(item, dict) else item for item in value]
    named = all(isinstance(key, str) and CONSTANT.fullmatch(key) for key in keys)
    return dict(zip(keys, value, strict=True)) if named and len(set(keys)) == len(keys) else {}


def is_texts(value: Any) -> bool:
    """Whether ``value`` is a list of strings, which may be free text."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def shown(value: Any) -> str:
    text = value if value is MISSING else dumped(value)
    return text if len(text) <= 100 else text[:97] + "..."


# --- accepted differences


def is_exempt(name: str, difference: tuple[str, str, str], accepted: list[dict[str, Any]]) -> bool:
    """Whether an entry of exempt.toml accepts this difference."""
    path, old, new = difference
    return any(
        fnmatch.fnmatch(name, entry["case"])
        and fnmatch.fnmatch(path, entry["path"])
        and fnmatch.fnmatch(old, str(entry["old"]))
        and fnmatch.fnmatch(new, str(entry["new"]))
        for entry in accepted
    )


def is_rounding(name: str, difference: tuple[str, str, str], rounded: list[dict[str, Any]]) -> bool:
    """Whether both values are floating-point numbers that differ by less than an entry of
    exempt.toml allows for this case, relative to the larger one, or to 1 if both are smaller."""
    _, old, new = difference
    try:
        a, b = float(old), float(new)
    except ValueError:
        return False
    if "." not in old + new and "e" not in old + new:  # whole numbers are exact
        return False
    return any(
        fnmatch.fnmatch(name, entry["case"])
        and abs(a - b) <= float(entry["tolerance"]) * max(1.0, abs(a), abs(b))
        for entry in rounded
    )


def with_new_keys(old: Any, name: str, renamed: list[dict[str, Any]], path: str = "") -> Any:
    """A recording under the new names of keys that exempt.toml lists as renamed."""
    if isinstance(old, list):
        return [with_new_keys(x, name, renamed, f"{path}/{i}") for i, x in enumerate(old)]
    if not isinstance(old, dict):
        return old
    mine = [
        entry
        for entry in renamed
        if fnmatch.fnmatch(name, entry["case"]) and fnmatch.fnmatch(path, entry["path"])
    ]
    names = {entry["old"]: entry["new"] for entry in mine}
    return {
        names.get(key, key): with_new_keys(item, name, renamed, f"{path}/{key}")
        for key, item in old.items()
    }


# --- coverage


def coverage() -> int:
    """Print the choices that no case uses. Returns 1 if one of them has no reason in
    NOT_COVERED."""
    used: dict[str, set[str]] = {}
    resolved = {preset: configuration(preset) for preset in known_choices()["--device"]}
    for case in CASES.values():
        for device, settings, options in configuration_of(case, resolved):
            tree = resolved.get(device, {})
            for key, value in (tree | settings).items():
                used.setdefault(key, set()).add(value)
            for option, values in options.items():
                used.setdefault(option, set()).update(values)
            used.setdefault("--device", set()).add(device)
    unexplained = 0
    for key, choices in known_choices().items():
        left = [choice for choice in choices if choice not in used.get(key, set())]
        if not left:
            continue
        reason = NOT_COVERED.get(key)
        unexplained += reason is None
        print(f"{key}: {', '.join(left)}: {reason or 'no case and no reason'}")
    print(f"{len(known_choices())} sets of choices, {unexplained} with an unexplained gap")
    return 1 if unexplained else 0


def configuration(preset: str) -> dict[str, str]:
    """The values of a preset by key, as --set spells them, from `ondie preset show --json -`."""
    _, out, _ = run(["preset", "show", preset, "--json", "-"])
    values = {}
    for section, leaves in json.loads(out).items():
        if not isinstance(leaves, dict):
            continue
        for key, leaf in leaves.items():
            value = leaf["value"] if isinstance(leaf, dict) and "value" in leaf else leaf
            text = str(value).lower() if isinstance(value, bool) else str(value)
            values[f"{section}.{key}"] = text
    return values


if __name__ == "__main__":
    sys.exit(main())
