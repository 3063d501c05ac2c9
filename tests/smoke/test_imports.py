"""Who imports whom? The rule is read from docs/architecture.md."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOMS = ("kernels", "traces", "emu")
EXTRAS = {"torch", "sklearn", "PIL", "dask", "distributed"}  # imported where used, not when loaded
SOCKETS = {"socket", "socketserver", "asyncio", "selectors", "ssl"}  # emu/serve and emu/live only


REMAINING: list[tuple[str, str]] = []
"""Imports that break the rule today: (module, room). The list only gets shorter."""

Place = tuple[int, int, int]  # line from the bottom, group within the line, rank within the group


def rule(text: str) -> dict[str, Place]:
    """Room -> place. `|` separates groups of a line; in a group, `a > b` gives a the higher rank,
    and `a, b` the same one."""
    places = {}
    lines = text.strip().split("\n")
    for line, rooms in enumerate(reversed(lines)):
        for group, names in enumerate(rooms.split("|")):
            for rank, name in enumerate(reversed(names.split(">"))):
                places |= {room.strip(): (line, group, rank) for room in name.split(",")}
    return places


@pytest.fixture(scope="module")
def places(root) -> dict[str, Place]:
    page = (root / "docs" / "architecture.md").read_text("utf-8")
    (block,) = re.findall(r"<!-- imports -->\n```text\n(.*?)```", page, re.DOTALL)
    assert len(block.strip().split("\n")) == 9
    return rule(block)


def room_of(name: str, places: dict[str, Place]) -> str | None:
    """The room of a dotted name `emu.….module`, the longest that the rule knows."""
    parts = name.split(".")[1:]
    for length in range(len(parts), 0, -1):
        if (room := ".".join(parts[:length])) in places:
            return room
    return None


def allowed(importer: str, imported: str, places: dict[str, Place]) -> bool:
    """Whether a room may import another: one in a lower line, or of its own group and not above."""
    here, there = places[importer], places[imported]
    if here[0] == there[0]:
        return here[1] == there[1] and there[2] <= here[2]
    return there[0] < here[0]


def modules(root: Path) -> list[tuple[str, Path]]:
    """(dotted name below ondie, file) of every module of the three rooms."""
    found = []
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found.append((".".join(parts), path))
    return found


BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
"""Where nodes have statements. Imports are statements: no expression is looked through."""


TYPING, NAMES = "TYPE_CHECKING", ("id", "attr")
"""The condition of imports for annotations only, as a name or as an attribute of `typing`."""


@functools.cache
def imports(name: str, path: Path) -> list[tuple[str, bool]]:
    """(what is imported, whether when the module is loaded), ours without the leading `ondie.`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name.removesuffix(".__init__").split(".")
    if not name.endswith(".__init__"):
        package = package[:-1]
    found = []
    todo: list[tuple[ast.AST, bool]] = [(tree, True)]
    while todo:
        node, loaded = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and TYPING in (getattr(node.test, x, "") for x in NAMES)
        ):
            loaded = False
        todo += [(below, loaded) for block in BLOCKS for below in getattr(node, block, ())]
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
        found += [(n.removeprefix("ondie."), loaded) for n in names]
    return found


def test_the_rooms_are_all_there(root):
    assert {name.split(".")[0] for name, _ in modules(root)} == set(ROOMS)


def test_kernels_and_traces_know_neither_emu_nor_each_other(root):
    for name, path in modules(root):
        room = name.split(".")[0]
        others = {"kernels": {"traces", "emu"}, "traces": {"kernels", "emu"}}.get(room, set())
        bad = [i for i, _ in imports(name, path) if i.split(".")[0] in others]
        assert not bad, f"{path.relative_to(root)} imports {bad}"


def test_inside_emu_imports_follow_the_rule(root, places):
    broken = []
    for name, path in modules(root):
        importer = room_of(name, places) if name.startswith("emu.") else None
        if importer is None:
            assert (
                not name.startswith("emu.") or name.count(".") == 1 or name.endswith("__init__")
            ), f"{path.relative_to(root)} lies in no room of docs/architecture.md"
            continue
        for imported, _ in imports(name, path):
            room = room_of(imported, places) if imported.startswith("emu.") else None
            if room is not None and not allowed(importer, room, places):
                broken.append((name, room))
    assert sorted(set(broken)) == sorted(REMAINING), "REMAINING must shrink, and nothing be added"


def import_graph(root: Path, lazy: bool) -> dict[str, set[str]]:
    """Module -> our own modules that it imports when loaded; with ``lazy`` also those that it
    imports inside functions or for type annotations only."""
    known = {name.removesuffix(".__init__"): (name, path) for name, path in modules(root)}
    graph = {}
    for plain, (name, path) in known.items():
        found = set()
        for imported, loaded in imports(name, path):
            parts = imported.removesuffix("._native").removesuffix("._call").split(".")
            if {"_native", "_call"} & set(parts):  # the compiled extensions
                continue
            while parts and ".".join(parts) not in known:
                parts.pop()
            if (loaded or lazy) and parts and ".".join(parts) != plain:
                found.add(".".join(parts))
        graph[plain] = found
    return graph


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of modules that import each other, directly or through others."""
    reached = {}
    for start in graph:
        seen: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            if (name := waiting.pop()) not in seen:
                seen.add(name)
                waiting += graph[name]
        reached[start] = seen
    looped = [name for name in graph if name in reached[name]]
    return {
        frozenset(other for other in looped if other in reached[name] and name in reached[other])
        for name in looped
    }


def test_imports_have_no_circles(root):
    """Imports when a module is loaded, among our own modules."""
    assert circles(import_graph(root, lazy=False)) == set()


def test_no_circle_hides_inside_functions(root):
    """Imports inside functions and for annotations count as well."""
    assert circles(import_graph(root, lazy=True)) == set()


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"f"}, "f": {"e"}}
    assert circles(graph) == {frozenset("bc"), frozenset("ef")}


def test_the_rule_forbids_what_it_is_for(places):
    refused = [("ftl", "nvme"), ("nand", "ftl"), ("compute", "nand"), ("engine.core", "nand")]
    refused += [
        ("paths", "replay"),
        ("cluster", "paths"),
        ("analysis", "cli"),
        ("paths", "analysis"),
    ]
    refused += [("live", "validate"), ("serve", "live"), ("validate", "live")]
    refused += [("validate", "studies"), ("config", "ftl"), ("units", "config")]
    for importer, imported in refused:
        assert not allowed(importer, imported, places), (importer, imported)
    for importer, imported in [
        ("live", "serve"),
        ("nvme", "ftl"),
        ("ftl", "nand"),
        ("cli", "serve"),
    ]:
        assert allowed(importer, imported, places), (importer, imported)
    assert [room for room in places if allowed(room, "cli", places)] == ["cli"]


def test_extras_are_imported_where_they_are_used(root):
    trained = ("traces.scripts.", "emu.studies.", "emu.csd_optimizer", "kernels.torch_optimizer")
    for name, path in modules(root):
        if name.startswith(trained):
            continue
        bad = [i for i, loaded in imports(name, path) if loaded and i.split(".")[0] in EXTRAS]
        assert not bad, f"{path.relative_to(root)} imports {bad} when loaded"


FAILS, SKIPS, LOADS = "fails", "skips", "loads"
"""What becomes of a module where the EXTRAS are missing."""


def statements(tree: ast.Module) -> list[ast.stmt]:
    """What a module does when it is loaded, in order: not what is in its functions."""
    found: list[ast.stmt] = []
    todo = tree.body[::-1]
    while todo:
        node = todo.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for block in reversed(BLOCKS[:-1]):
                todo += [
                    below
                    for part in reversed(getattr(node, block, ()))
                    for below in (part.body[::-1] if block == "handlers" else [part])
                ]
    return found


def is_skip(node: ast.stmt) -> bool:
    """Whether a statement is `importorskip` of one of the EXTRAS."""
    match node:
        case ast.Expr(value=call) | ast.Assign(value=call):
            pass
        case _:
            return False
    match call:
        case ast.Call(func=ast.Attribute(attr="importorskip"), args=[ast.Constant(value=name), *_]):
            return str(name).split(".")[0] in EXTRAS
    return False


class WithoutExtras:
    """Follows the imports of test files, and of our own modules, as Python would."""

    def __init__(self, root: Path) -> None:
        self.ours = {name.removesuffix(".__init__"): (name, path) for name, path in modules(root)}
        paths = sorted((root / "tests").rglob("*.py"))
        names = (path.relative_to(root).with_suffix("").parts for path in paths)
        self.tests = dict(zip(map(".".join, names), paths, strict=True))
        self._known: dict[str, str] = {}

    def of(self, name: str) -> str:
        """FAILS, SKIPS or LOADS of a dotted name, without `ondie.`; its packages come first."""
        if name.split(".")[0] in EXTRAS:
            return FAILS
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            found = self._of_module(".".join(parts[:length]))
            if found != LOADS:
                return found
        return LOADS

    def _of_module(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = LOADS  # of a circle, until it is known
            if name in self.ours:
                loaded = [imported for imported, now in imports(*self.ours[name]) if now]
                self._known[name] = self._first(loaded)
            elif name in self.tests:
                self._known[name] = self.of_file(self.tests[name].read_text("utf-8"))
        return self._known[name]

    def of_file(self, text: str) -> str:
        """FAILS, SKIPS or LOADS of a test file: an import behind an `importorskip` does nothing."""
        for node in statements(ast.parse(text)):
            names = []
            if is_skip(node):
                return SKIPS
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            found = self._first(name.removeprefix("ondie.") for name in names)
            if found != LOADS:
                return found
        return LOADS

    def _first(self, names: Iterable[str]) -> str:
        """What the first import does that does not load."""
        return next((found for name in names if (found := self.of(name)) != LOADS), LOADS)


def test_every_test_file_can_be_collected_without_torch(root):
    """`make test` needs no torch: a file that does is skipped before it imports it."""
    rule = WithoutExtras(root)
    lines = ("import pytest", 'torch = pytest.importorskip("torch")', "import torch")
    assert rule.of_file("\n".join(lines)) == SKIPS
    assert rule.of_file("\n".join(lines[::2])) == FAILS
    assert rule.of_file("def f():\n    import torch") == LOADS
    assert rule.of_file("try:\n    pass\nfinally:\n    import torch.nn") == FAILS
    assert rule.of_file("from ondie.emu.studies.codes import CODES") == FAILS
    assert rule.of_file("from tests.traces import training") == FAILS
    assert rule.of_file("from tests.faults import test_training_errors") == SKIPS
    assert rule.of("emu.config.config") == LOADS
    files = [name for name in rule.tests if name.split(".")[-1].startswith("test_")]
    bad = [name for name in files if rule.of(name) == FAILS]
    assert len(files) > 300 and not bad, f"without torch, pytest cannot collect {bad}"


def test_sockets_are_opened_in_serve_and_live_only(root):
    for name, path in modules(root):
        if not name.startswith(("emu.serve.", "emu.live.")):
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
