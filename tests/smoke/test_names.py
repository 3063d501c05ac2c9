"""Do names say what they mean, and are files, functions and rooms of a size that can be read?

A binding is an assigned name, an argument, an import's or an exception's alias, or a captured name
of a pattern. Loop indices i, j, k of `for` statements and comprehensions do not count.
"""

import ast
import functools
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

LETTERS = 0.08
"""Largest share of one-letter names among the bindings of a room."""
LINES, FUNCTION_LINES, ROOM_FILES, TOP_FILES = 500, 100, 40, 8

MATHEMATICS = {
    "kernels/adagrad.py": ("gvw", "weights, gradient and accumulator of AdaGrad"),
    "kernels/adam.py": ("gmvw", "weights, gradient and moments of Adam, as its paper writes them"),
    "kernels/on_die.py": ("gmvw", "the same of the on-die forms of Adam and AdaGrad"),
    "kernels/sgd.py": ("gmw", "weights, gradient and momentum of SGD"),
}
"""Letters that are symbols of equations: file -> (letters, what they stand for)."""

ABOVE: dict[str, float] = {}
"""Rooms that still have more letters, and their share. The list only gets shorter."""


def files(root: Path) -> Iterator[tuple[str, Path]]:
    """(room, file) of every module; the room of a file at the top of emu/ is `emu`."""
    for top in ("emu", "kernels", "traces"):
        for path in sorted((root / top).rglob("*.py")):
            parts = path.relative_to(root).parts
            yield "/".join(parts[:2]) if top == "emu" and len(parts) > 2 else top, path


LOOPS = (ast.For, ast.comprehension)
BINDING = (ast.Name, ast.arg, ast.alias, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)


def bindings(nodes: list[ast.AST]) -> Iterator[str]:
    """Every bound name except loop indices."""
    indices = set()
    for node in nodes:
        if isinstance(node, LOOPS):
            for target in ast.walk(node.target):
                if isinstance(target, ast.Name) and target.id in ("i", "j", "k"):
                    indices.add(target)
    for node in nodes:
        if not isinstance(node, BINDING):
            continue
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if node not in indices:
                yield name
            case ast.arg(arg=name) | ast.alias(asname=str(name)):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name
            case ast.MatchStar(name=str(name)):
                yield name


def letters(nodes: list[ast.AST], symbols: str = "") -> tuple[int, int]:
    """(one-letter names that are no symbols, all bindings)."""
    names = list(bindings(nodes))
    return sum(len(name) == 1 and name not in "_" + symbols for name in names), len(names)


@functools.cache
def nodes_of(text: str) -> list[ast.AST]:
    """All nodes of the syntax tree of a module, which several tests look through."""
    return list(ast.walk(ast.parse(text)))


@pytest.fixture(scope="module", autouse=True)
def uncollected() -> Iterator[None]:
    """The trees of all modules live to the end of this file: the garbage collector would visit
    them again and again, for half the time that it takes to make them."""
    gc.disable()
    yield
    gc.enable()
    nodes_of.cache_clear()


@pytest.fixture(scope="module")
def modules(root) -> list[tuple[str, str, str]]:
    """(room, name of the file, text)."""
    return [(room, path.relative_to(root).as_posix(), path.read_text("utf-8"))
            for room, path in files(root)]  # fmt: skip


def test_letters_are_counted():
    text = """
import numpy as n
def f(a, name, *, _):
    for i, x in enumerate(a):
        total = [j for j in x]
    i = total
    try:
        return lambda y: (z := y)
    except KeyError as e:
        match a:
            case [q, *rest]:
                pass
"""
    nodes = nodes_of(text)
    assert sorted(bindings(nodes)) == sorted(
        ["n", "a", "name", "_", "x", "total", "i", "y", "z", "e", "q", "rest"]
    )
    assert letters(nodes) == (8, 12)
    assert letters(nodes, "aq") == (6, 12)


def test_names_are_words(modules):
    shares = {}
    for room in {room for room, _, _ in modules}:
        found = [
            letters(nodes_of(text), MATHEMATICS.get(name, ("",))[0])
            for place, name, text in modules
            if place == room
        ]
        shares[room] = sum(few for few, _ in found) / max(sum(every for _, every in found), 1)
    above = {room: share for room, share in shares.items() if share > LETTERS}
    wrong = {room: f"{share:.1%}" for room, share in above.items() if share > ABOVE.get(room, 0)}
    assert not wrong, f"one-letter names: {wrong}"
    assert sorted(ABOVE) == sorted(above), "a room is in order: take it out of the list"


def test_symbols_are_used(modules):
    """Every letter of MATHEMATICS is bound in its file."""
    texts = {name: text for _, name, text in modules}
    for name, (symbols, _) in MATHEMATICS.items():
        assert set(symbols) <= set(bindings(nodes_of(texts[name]))), name


def test_files_are_short(modules):
    long = {name: text.count("\n") for _, name, text in modules if text.count("\n") > LINES}
    assert not long


def test_functions_are_short(modules):
    long = [
        f"{name}: {node.name}, {node.end_lineno - node.lineno + 1} lines"
        for _, name, text in modules
        for node in nodes_of(text)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= FUNCTION_LINES
    ]
    assert not long


def test_rooms_are_small(root, modules):
    rooms = [room for room, _, _ in modules]
    assert not {room: rooms.count(room) for room in rooms if rooms.count(room) > ROOM_FILES}
    top = [path.name for path in (root / "emu").iterdir() if path.is_file()]
    assert len(top) <= TOP_FILES, top
