"""Check of a configuration against all rules.

Owns the order of the rules and the text of the error message. Does not own the rules (other files
of this folder).
Source: this project.
"""

from __future__ import annotations

from collections.abc import Mapping

from ondie.emu.config.leaf import Leaf
from ondie.emu.config.rules import code_words, ecc_and_cache, flash, ftl, processors, pslc, tunnel
from ondie.emu.config.rules.absent import check_absent
from ondie.emu.config.rules.rule import Rule
from ondie.emu.config.schema.tree import Tree
from ondie.emu.units import InputError, quoted

LONGEST_PS = 10**15
"""Maximum of every time in a configuration (ps); the clock of the engine ends after 53 days."""
BACKGROUND = ("ftl.refresh_age", "ftl.scrub_interval")
"""Configuration keys of the intervals of background work. LONGEST_PS does not limit these
intervals; they may be as long as the range of the clock (ecc_and_cache.py)."""

RULES: tuple[Rule, ...] = (
    *ftl.RULES,
    *flash.RULES,
    *pslc.RULES,
    *ecc_and_cache.RULES,
    *code_words.RULES,
)
PROCESSOR_RULES: tuple[Rule, ...] = (*processors.RULES, *tunnel.RULES)
"""Rules that are checked after check_absent has found all constants of the processors."""


def _check_rules(
    rules: tuple[Rule, ...], config: Tree, leaves: Mapping[str, Leaf], where: str
) -> None:
    for rule in rules:
        if not rule.holds(config):
            right = rule.right if isinstance(rule.right, str) else rule.right(config)
            values = ", ".join(f"{key} = {quoted(leaves[key].text)}" for key in rule.keys)
            raise InputError(f"{where}: {values}: {right}")


def check(config: Tree, leaves: Mapping[str, Leaf], where: str) -> None:
    """Raise InputError if `config` breaks a rule. The message states the keys of the first broken
    rule and their values.

    Also raises InputError if an enabled processor lacks constants (the message names all of them),
    or if a time is above LONGEST_PS. `leaves`: record of each key, with the value as text for the
    message. `where`: name of the configuration.
    """
    _check_rules(RULES, config, leaves, where)
    check_absent(config, leaves, where)
    _check_rules(PROCESSOR_RULES, config, leaves, where)
    for key, leaf in leaves.items():
        if key in BACKGROUND:
            continue
        if leaf.unit == "ps" and isinstance(leaf.value, int) and leaf.value > LONGEST_PS:
            raise InputError(f"{where}: {key} = {quoted(leaf.text)}: must be at most 1000 s")
