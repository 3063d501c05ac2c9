"""Owns: the test of the labels of a validation suite: each fitted constant is scaled by 1.2, its
fit rows must move, and no check row may move by the same factor. Does not own: the suites and
their constants (emu/validate). Source: none.

A part of a suite is a function without arguments that returns rows. `faults(part)` runs it once as
it is and once per constant that its fit rows name:

- A configuration key is scaled in every preset that is loaded; the capacity stays. A value that may
  only be one of a few is scaled to the next one.
- A value of emu/cluster/networks.toml, `networks.NETWORK.DRIVE.KEY`, is scaled where it is read.
- A constant `module.NAME` is scaled in every module that has imported it. `module` is the
  end of the module's name, as long as it must be to be unique. Tables are scaled value by value.

A fit row that moves by at most 1 % is not decided by its constant: the row names a wrong one. A
check row that moves by the same factor as a fit row within 1 %, or by its inverse (a time and a
rate), is decided by the fit: it is an identity.
"""

import contextlib
import copy
import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ondie.emu.analysis.row import CHECK, FIT, Row
from ondie.emu.cluster import networks
from ondie.emu.config import config as configuration
from ondie.emu.config.config import Config
from ondie.emu.config.schema.keys import KEYS

FACTOR = 1.2
SAME = 0.01
"""Relative difference of two factors that are the same, and the move of a row that stays."""
TABLES = [key.name for key in KEYS.values() if key.table]
"""Keys that have a value per model."""
NETWORKS = "networks."
NEXT: dict[str, float] = {"flash.page": 2}
"""Factors of keys whose value is one of a few."""
Part = Callable[[], list[Row]]


def constants(rows: list[Row]) -> list[str]:
    """The constants that the fit rows name, each once."""
    return list(dict.fromkeys(name for row in rows if row.kind == FIT for name in row.constants))


def faults(part: Part, only: Callable[[str], bool] = lambda constant: True) -> list[str]:
    """What is wrong with the labels of a part, one line per row; none if it has no fit row.

    ``only``: whether to scale a constant.
    """
    before = part()
    found = []
    for constant in filter(only, constants(before)):
        with scaled(constant):
            after = part()
        found += [f"{constant} x {FACTOR}: {text}" for text in compared(before, after, constant)]
    return found


def compared(before: list[Row], after: list[Row], constant: str) -> Iterator[str]:
    """The faults of one constant, by the rows before and after it was scaled."""
    assert [row.name for row in before] == [row.name for row in after]
    factors = {
        row.name: now.predicted / row.predicted
        for row, now in zip(before, after, strict=True)
        if row.predicted
    }
    fits = [row.name for row in before if row.kind == FIT and constant in row.constants]
    moved = [name for name in fits if not same(factors[name], 1)]
    for name in fits:
        if name not in moved:
            yield f"fit row {name!r} moves by {factors[name]:.4f} only"
    for row in before:
        factor = factors.get(row.name, 1)
        if row.kind != CHECK or same(factor, 1):
            continue
        for name in moved:
            if same(factor, factors[name]) or same(factor, 1 / factors[name]):
                yield f"check row {row.name!r} moves by {factor:.4f}, as fit row {name!r} does"
                break


def same(a: float, b: float) -> bool:
    """Whether two factors are the same within SAME; NaN and infinity are the same as nothing."""
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= SAME * abs(b)


@contextlib.contextmanager
def scaled(constant: str, factor: float = FACTOR) -> Iterator[None]:
    """Scale a constant: a configuration key, else module.NAME."""
    with pytest.MonkeyPatch.context() as patch:
        if constant in KEYS or constant.rpartition(".")[0] in TABLES:
            _patch_presets(patch, constant, NEXT.get(constant, factor))
        elif constant.startswith(NETWORKS):
            _patch_networks(patch, constant.removeprefix(NETWORKS).split("."), factor)
        else:
            _patch_module(patch, constant, factor)
        forget()
        try:
            yield
        finally:
            patch.undo()
            forget()


def _patch_presets(patch: pytest.MonkeyPatch, key: str, factor: float) -> None:
    original = configuration.load_preset

    @functools.wraps(original)
    def load(*arguments: Any, **options: Any) -> Config:
        cfg = original(*arguments, **options)
        capacity = cfg.leaf("system.capacity").value
        return cfg.replace({"system.capacity": capacity, key: times(cfg.leaf(key).value, factor)})

    for module in _modules():
        for name, value in list(vars(module).items()):
            if value is original:
                patch.setattr(module, name, load)


def _patch_networks(patch: pytest.MonkeyPatch, keys: list[str], factor: float) -> None:
    tables = copy.deepcopy(networks._tables())
    leaf = functools.reduce(lambda table, key: table[key], keys, tables)
    leaf["value"] = times(leaf["value"], factor)
    patch.setattr(networks, "_tables", lambda: tables)


def _patch_module(patch: pytest.MonkeyPatch, constant: str, factor: float) -> None:
    where, _, name = constant.rpartition(".")
    owners = [
        module
        for module in _modules()
        if f".{module.__name__}".endswith(f".{where}") and name in vars(module)
    ]
    assert len(owners) == 1, f"{constant}: {len(owners)} modules have it: {owners}"
    value = getattr(owners[0], name)
    for module in _modules():
        if vars(module).get(name) is value:
            patch.setattr(module, name, times(value, factor))


def _modules() -> list[Any]:
    """The modules of ondie, and the tests, which load presets, too."""
    rooms = ("ondie", "tests")
    return [m for name, m in list(sys.modules.items()) if m and name.partition(".")[0] in rooms]


def times(value: Any, factor: float) -> Any:
    """The value times the factor: a number, integers rounded up, or the values of a table."""
    if isinstance(value, dict):
        return {key: times(each, factor) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(times(each, factor) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        numbers = {k: times(v, factor) for k, v in fields.items() if isinstance(v, int | float)}
        return dataclasses.replace(value, **numbers)
    assert isinstance(value, int | float) and not isinstance(value, bool) and value, value
    return math.ceil(value * factor) if isinstance(value, int) else value * factor


def forget() -> None:
    """Empty the caches of functions, but for those of the compiled engine and of files."""
    for module in _modules():
        if ".engine." in module.__name__ or ".config." in module.__name__:
            continue
        for value in list(vars(module).values()):
            if (
                isinstance(value, functools._lru_cache_wrapper)
                and ".engine." not in value.__module__
            ):
                value.cache_clear()
