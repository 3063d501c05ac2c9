"""Change one operation of the program at a time and report whether the tests notice.

    python -m tests.mutants list [--only-room ROOM]
    python -m tests.mutants run [--only-room ROOM] [--index N] [--tests REVISION] [--json FILE]

Owns the draw of the mutants, the table of which tests belong to which room, and the run of these
tests on a copy of the tree. Does not own the tests, and does not judge whether a mutant that
survives computes the same as the program.
Source: DeMillo, Lipton and Sayward, "Hints on Test Data Selection", IEEE Computer 11(4), 1978.

A mutant is killed if a test fails, hangs or cannot be collected. It survives if all tests pass, and
it is "unfinished" if no test fails within the time limit; that counts as survived. The draw depends
on the seed and on the sources of the room. With --json, a run that was stopped continues: mutants
that the file has are not run again.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SEED = 14
LIMIT_S = 240.0
"""Time that the tests of a room have for one mutant, s."""
HANG_S = 100
"""Time that one test has, s: a mutant may loop for ever."""

NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
"""A mutant of the same length within a second would not be seen in stored bytecode."""


@dataclass(frozen=True)
class Room:
    """Folders in which mutants are drawn, how many, and the tests that are to kill them, those that
    take least time first."""

    sources: tuple[str, ...]
    count: int
    tests: tuple[str, ...]


ROOMS = {
    "flash": Room(
        ("emu/nand", "emu/ftl"),
        20,
        ("tests/timing", "tests/numerics/test_rber.py", "tests/numerics/test_ecc.py",
         "tests/state", "tests/faults/test_media_errors.py", "tests/faults/test_injection.py",
         "tests/faults/test_power_cut.py", "tests/faults/test_recovery.py",
         "tests/faults/test_store.py"),
    ),
    "nvme": Room(
        ("emu/nvme",),
        10,
        ("tests/timing/test_cache_timing.py", "tests/timing/test_tunnel_cost.py",
         "tests/timing/test_order.py", "tests/timing/test_slots.py",
         "tests/protocol/test_tunnel.py", "tests/protocol/test_fetch_limit.py",
         "tests/state/test_cache.py", "tests/state/test_device.py",
         "tests/state/test_dictionary.py", "tests/fidelity/test_mqsim_cache.py",
         "tests/fidelity/test_mqsim_host.py", "tests/fidelity/test_mqsim_sata.py",
         "tests/fidelity/test_validate_tunnel.py"),
    ),
    "paths": Room(
        ("emu/paths",),
        10,
        ("tests/fidelity/test_validate_arithmetic.py", "tests/numerics/test_smart_infinity.py",
         "tests/numerics/test_in_storage_plan.py", "tests/numerics/test_energy_quantities.py",
         "tests/protocol/test_deepspeed.py", "tests/timing/test_die_bus.py",
         "tests/timing/test_moved.py", "tests/timing/test_offload_knobs.py",
         "tests/state/test_arithmetic.py", "tests/state/test_checkpoint.py",
         "tests/state/test_levelling.py", "tests/state/test_offload_volume.py",
         "tests/state/test_reservoir.py", "tests/smoke/test_compare_books.py",
         "tests/smoke/test_compare_phases.py", "tests/smoke/test_compare_weights.py",
         "tests/smoke/test_compare_result.py", "tests/faults/test_parity.py",
         "tests/faults/test_offload_bits.py", "tests/faults/test_flipped_byte.py",
         "tests/faults/test_helped_cut.py", "tests/faults/test_on_die_cut.py",
         "tests/fidelity/test_validate_zero.py",
         "tests/fidelity/test_validate_smart_infinity.py", "tests/fidelity/test_ablation.py"),
    ),
    "cluster": Room(
        ("emu/cluster",),
        10,
        ("tests/config/test_stannis_tables.py", "tests/numerics/test_allreduce.py",
         "tests/numerics/test_fleet_load.py", "tests/numerics/test_hypertune.py",
         "tests/numerics/test_hypertune_parts.py", "tests/numerics/test_stannis_allocation.py",
         "tests/numerics/test_stannis_benchmark.py", "tests/numerics/test_stannis_optimal.py",
         "tests/numerics/test_stannis_tuner.py",
         "tests/state/test_stannis_epoch.py", "tests/smoke/test_cli_stannis.py",
         "tests/smoke/test_cli_stannis_options.py", "tests/fidelity/test_fleet.py",
         "tests/fidelity/test_stannis_path.py", "tests/fidelity/test_validate_stannis.py",
         "tests/fidelity/test_validate_hypertune.py"),
    ),
    "kernels": Room(
        ("kernels",),
        10,
        ("tests/numerics/test_bch.py", "tests/numerics/test_ldpc.py",
         "tests/numerics/test_cast.py", "tests/numerics/test_codes.py",
         "tests/numerics/test_grad.py",
         "tests/numerics/test_on_die.py", "tests/numerics/test_topk.py",
         "tests/numerics/test_threads.py", "tests/numerics/test_native_threads.py",
         "tests/numerics/test_batch.py", "tests/numerics/test_exact.py",
         "tests/numerics/test_draws.py", "tests/numerics/test_jit.py",
         "tests/numerics/test_parts.py", "tests/numerics/test_updates.py",
         "tests/numerics/test_formats.py", "tests/numerics/test_optimizer.py",
         "tests/numerics/test_torch.py", "tests/bench/test_run_kernels.py"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: bytes first to last of a file are replaced by ``text``."""

    room: str
    index: int
    file: str
    line: int
    kind: str
    old: str
    text: str
    first: int
    last: int

    def title(self) -> str:
        """The mutant in one line."""
        old, new = " ".join(self.old.split()), " ".join(self.text.split())
        return f"{self.room} {self.index:2d} {self.file}:{self.line} {self.kind}: {old} -> {new}"


# --- the draw

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def changed(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(kind, new text) of every change that can be made to a node itself."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=right):
            for place, operation in enumerate(ops):
                flipped = [*ops]
                flipped[place] = COMPARISONS[type(operation)]()
                yield "comparison", f"({ast.unparse(ast.Compare(left, flipped, right))})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            other = OPERATORS[type(op)]()
            yield "operator", f"({ast.unparse(ast.BinOp(left, other, right))})"
        case ast.BoolOp(op=op, values=values):
            other_op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "and-or", f"({ast.unparse(ast.BoolOp(other_op, values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", f"({ast.unparse(operand)})"
        case ast.Constant(value=bool() as value):
            yield "constant", str(not value)
        case ast.Constant(value=int() as value):
            yield "constant", str(value + 1)
        case ast.AugAssign(op=ast.Add() | ast.Sub() as op, target=target, value=value_node):
            turned = ast.AugAssign(target, OPERATORS[type(op)](), value_node)
            yield "operator", ast.unparse(turned)
            yield "dropped", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            yield "dropped", "pass"
        case ast.Expr(value=ast.Call()):
            yield "dropped", "pass"


def mutable(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below a node that may be changed: no annotations, texts of errors, f-strings,
    defaults or decorators, as these are no behaviour or are tested where they are used."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(
            node, ast.Call
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from mutable(child)


def sites(path: Path, content: bytes) -> Iterator[tuple[int, int, int, str, str, str]]:
    """(first byte, last byte, line, kind, old text, new text) of each mutant of a file."""
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(content, filename=str(path))
    seen: set[int] = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for statement in function.body:
            for node in mutable(statement):
                if id(node) in seen:
                    continue
                seen.add(id(node))
                for kind, text in changed(node):
                    at: Any = node
                    first = starts[at.lineno - 1] + at.col_offset
                    last = starts[at.end_lineno - 1] + at.end_col_offset
                    yield first, last, at.lineno, kind, content[first:last].decode(), text


def draw(name: str) -> list[Mutant]:
    """The mutants of a room, drawn by SEED: the kind of change first, then the place."""
    room = ROOMS[name]
    by_kind: dict[str, list[tuple[str, tuple[int, int, int, str, str, str]]]] = {}
    for folder in room.sources:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "bench" in path.relative_to(ROOT).parts:
                continue
            for site in sites(path, path.read_bytes()):
                entry = (path.relative_to(ROOT).as_posix(), site)
                by_kind.setdefault(site[3], []).append(entry)
    rng = random.Random(f"{SEED} {name}")
    kinds = sorted(by_kind)
    drawn: dict[tuple[str, tuple[int, int, int, str, str, str]], None] = {}
    while len(drawn) < room.count:
        drawn[rng.choice(by_kind[rng.choice(kinds)])] = None
    return [
        Mutant(name, index, file, line, kind, old, text, first, last)
        for index, (file, (first, last, line, kind, old, text)) in enumerate(drawn)
    ]


# --- the run


def copy_tree(place: Path, revision: str | None) -> None:
    """Copy what git tracks and the compiled extension; tests/ of another revision if one is
    given."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [Path(name) for name in listed.stdout.split("\0") if name]
    files += [path.relative_to(ROOT) for path in (ROOT / "kernels").glob("_*.so")]
    for file in files:
        if (ROOT / file).is_file():
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, place / file)
    if revision is not None:
        shutil.rmtree(place / "tests")
        packed = subprocess.run(
            ["git", "archive", revision, "tests"], cwd=ROOT, capture_output=True, check=True
        )
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(place, filter="data")
    links = place / "import" / "ondie"
    links.mkdir(parents=True)
    for name in ("emu", "kernels", "traces"):
        (links / name).symlink_to(place / name)


def run_tests(place: Path, room: Room, jobs: int, limit: float) -> tuple[str, str]:
    """(outcome, last lines) of a room's tests in a copy of the tree."""
    files = [name for name in room.tests if (place / name).exists()]
    assert files, "the copy has none of the room's tests"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["--benchmark-disable", "--timeout", str(HANG_S), *files]
    if jobs > 1:
        command += ["-n", str(jobs), "--dist", "loadfile"]
    # A namespace folder on the path comes before the finder of an editable installation.
    environment = {**os.environ, "PYTHONPATH": str(place / "import"), **NO_BYTECODE}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, cwd=place, env=environment, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # Workers and commands that tests started end with their process group.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        output.seek(0)
        lines = output.read().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))] or lines[-3:]
    outcome = {None: "unfinished", 0: "survived"}.get(code, "killed")
    if code in (4, 5):
        raise RuntimeError("pytest found no tests: " + " / ".join(lines[-3:]))
    return outcome, " / ".join(failed)[:300]


def resolves(place: Path) -> None:
    """Raise unless Python in the copy imports the copy's modules."""
    show = "import ondie.emu, ondie.kernels, ondie.traces as t; "
    show += "print(ondie.emu.__file__, ondie.kernels.__file__, t.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(place / "import"), **NO_BYTECODE}
    done = subprocess.run(
        [sys.executable, "-c", show], cwd=place, env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    if not all(Path(name).resolve().is_relative_to(place) for name in done.stdout.split()):
        raise RuntimeError(f"the copy in {place} imports {done.stdout.strip()}")


def run(mutants: list[Mutant], given: argparse.Namespace, store: Callable[..., None]) -> None:
    """Run the tests of each mutant, and of each room without one first: those must pass."""
    place = Path(tempfile.mkdtemp(prefix="ondie-mutants-")).resolve()
    try:
        copy_tree(place, given.tests)
        resolves(place)
        for name in dict.fromkeys(mutant.room for mutant in mutants):
            if not given.no_baseline:
                began = time.monotonic()
                outcome, last = run_tests(place, ROOMS[name], given.jobs, 3600)
                print(f"{name} without a mutant: {outcome} in {time.monotonic() - began:.0f} s")
                if outcome != "survived":
                    raise RuntimeError(f"tests of {name} fail without a mutant: {last}")
            for mutant in (each for each in mutants if each.room == name):
                path = place / mutant.file
                content = path.read_bytes()
                new = content[: mutant.first] + mutant.text.encode() + content[mutant.last :]
                began = time.monotonic()
                path.write_bytes(new)
                try:
                    outcome, last = run_tests(place, ROOMS[name], given.jobs, given.limit)
                finally:
                    path.write_bytes(content)
                seconds = round(time.monotonic() - began, 1)
                print(f"{outcome:10s} {seconds:6.1f} s  {mutant.title()}\n    {last}", flush=True)
                store(mutant, outcome, seconds, last)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def main() -> int:
    """Parse the arguments and list or run the mutants."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("action", choices=("list", "run"))
    parser.add_argument("--only-room", choices=tuple(ROOMS), help="Only the mutants of this room.")
    parser.add_argument("--index", type=int, action="append", help="Only this mutant of each room.")
    parser.add_argument("--tests", metavar="REVISION", help="Take tests/ of this git revision.")
    parser.add_argument("--jobs", type=int, default=2, help="Number of test processes.")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="Seconds per mutant.")
    parser.add_argument("--no-baseline", action="store_true", help="Skip the run without a mutant.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Add the outcomes to this file.")
    given = parser.parse_args()
    rooms = [given.only_room] if given.only_room else list(ROOMS)
    mutants = [mutant for name in rooms for mutant in draw(name)]
    if given.index is not None:
        mutants = [mutant for mutant in mutants if mutant.index in given.index]
    if given.action == "list":
        for mutant in mutants:
            print(mutant.title())
        return 0
    results: list[dict[str, Any]] = []
    if given.json is not None and given.json.exists():
        results = json.loads(given.json.read_text(encoding="utf-8"))
    known = [{key: entry[key] for key in ("file", "first", "last", "text")} for entry in results]

    def is_known(mutant: Mutant) -> bool:
        fields = dataclasses.asdict(mutant)
        return {key: fields[key] for key in ("file", "first", "last", "text")} in known

    def store(mutant: Mutant, outcome: str, seconds: float, last: str) -> None:
        entry = {"outcome": outcome, "seconds": seconds, "last": last, "tests": given.tests}
        results.append(dataclasses.asdict(mutant) | entry)
        if given.json is not None:
            given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    run([mutant for mutant in mutants if not is_known(mutant)], given, store)
    killed = sum(entry["outcome"] == "killed" for entry in results)
    print(f"{killed} of {len(results)} killed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
