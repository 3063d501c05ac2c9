"""Conditions on keys, and the rules that are made from them.

Owns the common forms of a rule ("this value requires that one", limits of one key) and their
messages. Does not own the rules (other files of this folder).
Source: this project.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ondie.emu.config.leaf import spelled
from ondie.emu.config.rules.rule import Rule, units_are_dies, whole_pages
from ondie.emu.config.schema.keys import KEYS
from ondie.emu.config.schema.tree import Tree


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a configuration: the keys that it reads, its test, and its text in
    messages.
    """

    keys: tuple[str, ...]
    holds: Callable[[Tree], bool]
    text: str


def value_of(config: Tree, name: str) -> Any:
    """Return the value of key `name`, such as "flash.t_read", in base units."""
    key = KEYS[name]
    return getattr(getattr(config, key.section), key.attribute)


def equal(name: str, *values: str | int | bool) -> Condition:
    """Return the condition that the value of key `name` is one of `values`."""
    shown = [f'"{value}"' if isinstance(value, str) else spelled(value) for value in values]
    text = " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
    return Condition((name,), lambda config: value_of(config, name) in values, f"{name} = {text}")


def other_than(name: str, value: str) -> Condition:
    """Return the condition that the value of key `name` is not `value`."""
    text = f'{name} other than "{value}"'
    return Condition((name,), lambda config: value_of(config, name) != value, text)


def above_zero(name: str, example: str = "") -> Condition:
    """Return the condition that the value of key `name` is above 0. The message includes `example`
    unless it is empty.
    """
    text = f"{name} above 0" + (f", for example {example}" if example else "")
    return Condition((name,), lambda config: value_of(config, name) > 0, text)


def requires(condition: Condition, requirement: Condition, because: str = "") -> Rule:
    """Return the rule that `requirement` must hold if `condition` holds.

    `because`: the reason, at the end of the message.
    """

    def holds(config: Tree) -> bool:
        return not condition.holds(config) or requirement.holds(config)

    text = f"{condition.text} requires {requirement.text}" + (f"; {because}" if because else "")
    return Rule((*condition.keys, *requirement.keys), holds, text)


def only_if(
    condition: Condition,
    keys: tuple[str, ...],
    holds: Callable[[Tree], bool],
    text: Callable[[Tree], str] | str,
) -> Rule:
    """Return the rule that the function `holds` must return True if `condition` is met.

    `text`: the requirement in the message. The message also has the values of the condition's keys
    and of `keys`.
    """
    return Rule(
        (*condition.keys, *keys),
        lambda config: not condition.holds(config) or holds(config),
        text,
    )


def at_most(name: str, limit: float, shown: str = "") -> Rule:
    """Return the rule that key `name` is at most `limit`. `shown`: the limit as text for the
    message.
    """
    text = f"must be at most {shown or limit}"
    return Rule((name,), lambda config: value_of(config, name) <= limit, text)


def below_one(name: str) -> Rule:
    """Return the rule that key `name`, a fraction or a probability, is below 1."""
    text = "must be at least 0 and below 1"
    return Rule((name,), lambda config: value_of(config, name) < 1, text)


ERRORS = other_than("errors.kind", "none")
NO_ERRORS = equal("errors.kind", "none")
MAPPED_BY_PROGRAM = equal("ftl.map_update", "programmed")
WORD_LINES = other_than("flash.programming", "page")
ONE_COMMAND_PER_CHIP = equal("flash.chip_busy", "per_chip")
PSLC = other_than("ftl.pslc", "off")
TRIM_MAPS = equal("ftl.trim_maps", True)
MAP_CHECKPOINTS = above_zero("ftl.map_checkpoint")
PE = other_than("pe.kind", "none")
ISP = other_than("isp.kind", "none")
TUNNEL = above_zero("tunnel.payload")
SUB_PAGES = Condition(
    ("ftl.mapping_unit",),
    lambda config: not whole_pages(config),
    "ftl.mapping_unit below a page",
)
RESERVOIR = above_zero("ftl.reservoir_fraction")
WHOLE_PAGES = Condition(("ftl.mapping_unit",), whole_pages, "ftl.mapping_unit = 0")
UNITS_ARE_DIES = Condition(
    ("ftl.block_unit",), units_are_dies, 'ftl.block_unit = "die" or one plane per die'
)
