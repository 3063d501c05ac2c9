"""Who imports whom? The rooms, from the top down; an import may only go down."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

# One tier per line, highest first. A module may import from lower tiers, from itself, and from
# names beside it with a comma between; `|` separates neighbours that must not know each other.
EMU = """
    cli
    commands
    live
    serve | validate, bench, bench_figure, bench_host, bench_engine, sweep, sweep_figure
    report, printed
    odds, target, figure, tornado, stannis_figure
    bench_cases, bench_others, bench_peak
    interference
    compare, mqsim, block_replay, replay
    precondition, occupation
    interruption, power, revival, settling, weights
    paths
    stannis, ndpipe
    volume
    system, sensitivity, uncertainty, lifetime
    sampling
    device, books, build, dispatch, errors, flows, rows
    landing
    padding
    gathering
    placing
    collection, passages
    frontend | isp
    backend | host
    clock, console, drawing, stats, energy, ledger, timeline, state, events, stations
    intrinsics, places
    config, constraints, loading, nominal, provenance, schema
    units
"""
ROOMS = ("kernels", "traces", "emu")
EXTRAS = {"torch", "sklearn", "dask", "distributed"}  # imported where used, not when loaded
SOCKETS = {"socket", "socketserver", "asyncio", "selectors", "ssl"}  # emu/serve only


def order() -> dict[str, tuple[int, int]]:
    """name -> (tier, group within it); tier 0 is the lowest."""
    places = {}
    for tier, line in enumerate(reversed(EMU.split("\n")[1:-1])):
        for group, names in enumerate(line.split("|")):
            places |= {name.strip(): (tier, group) for name in names.split(",")}
    return places


def allowed(importer: str, imported: str, places: dict[str, tuple[int, int]]) -> bool:
    """Whether one name of emu may import another."""
    here, there = places[importer], places[imported]
    return importer == imported or there[0] < here[0] or there == here


def modules(root: Path) -> list[tuple[str, Path]]:
    """(dotted name below ondie, file) of every module of the three rooms."""
    found = []
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found.append((".".join(parts), path))
    return found


@functools.cache
def imports(name: str, path: Path) -> list[tuple[str, bool]]:
    """(what is imported, whether when the module is loaded), ours without the leading `ondie.`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name.removesuffix(".__init__").split(".")
    if not name.endswith(".__init__"):
        package = package[:-1]
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if lazy or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            inside |= set(ast.walk(node)) - {node}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package[: len(package) - node.level + 1]
                base = ".".join(["ondie", *up, *([base] if base else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [(n.removeprefix("ondie."), node not in inside) for n in names]
    return found


def test_the_rooms_are_all_there(root):
    assert {name.split(".")[0] for name, _ in modules(root)} == set(ROOMS)


def test_kernels_and_traces_know_neither_emu_nor_each_other(root):
    for name, path in modules(root):
        room = name.split(".")[0]
        others = {"kernels": {"traces", "emu"}, "traces": {"kernels", "emu"}}.get(room, set())
        bad = [i for i, _ in imports(name, path) if i.split(".")[0] in others]
        assert not bad, f"{path.relative_to(root)} imports {bad}"


def test_inside_emu_imports_go_down(root):
    places = order()
    for name, path in modules(root):
        if not name.startswith("emu.") or name == "emu.__init__":
            continue
        importer = name.split(".")[1]
        assert importer in places, (
            f"{path.relative_to(root)}: give {importer!r} a tier in EMU above"
        )
        for imported, _ in imports(name, path):
            parts = imported.split(".")
            if parts[0] != "emu" or len(parts) < 2:
                continue
            assert parts[1] in places, f"{path.relative_to(root)} imports {imported}: no such name"
            assert allowed(importer, parts[1], places), (
                f"{path.relative_to(root)} imports ondie.{imported}: "
                f"{importer} must not know {parts[1]}"
            )


def test_the_order_is_the_designs():
    places = order()
    up_is_refused = [("backend", "device"), ("paths", "cli"), ("units", "config")]
    up_is_refused += [("frontend", "isp"), ("isp", "frontend"), ("backend", "host")]
    up_is_refused += [("stannis", "paths"), ("compare", "serve"), ("report", "serve")]
    for importer, imported in up_is_refused:
        assert not allowed(importer, imported, places)
    for importer, imported in [("cli", "serve"), ("live", "serve"), ("device", "frontend")]:
        assert allowed(importer, imported, places)
    assert [name for name in places if allowed(name, "cli", places)] == ["cli"]
    above = {name for name in places if allowed(name, "serve", places)}
    assert above == {"cli", "commands", "live", "serve"}


def test_extras_are_imported_where_they_are_used(root):
    for name, path in modules(root):
        if name.startswith(("traces.scripts.", "emu.live.")):
            continue  # they train
        bad = [i for i, loaded in imports(name, path) if loaded and i.split(".")[0] in EXTRAS]
        assert not bad, f"{path.relative_to(root)} imports {bad} when loaded"


def test_sockets_are_opened_in_serve_only(root):
    for name, path in modules(root):
        if not name.startswith("emu.serve"):
            bad = [i for i, _ in imports(name, path) if i.split(".")[0] in SOCKETS]
            assert not bad, f"{path.relative_to(root)} imports {bad}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_refuses_its_bare_name(room, root):
    done = subprocess.run(
        [sys.executable, "-c", f"import {room}"], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "ImportError" in done.stderr and f"ondie.{room}" in done.stderr


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_typed_and_says_what_it_owns(room, root):
    assert (root / room / "py.typed").exists()
    doc = ast.get_docstring(ast.parse((root / room / "__init__.py").read_text(encoding="utf-8")))
    assert doc is not None and "own" in doc.lower()
