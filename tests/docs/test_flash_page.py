"""Are the presets of docs/flash.md those that have its mechanisms, and does really nothing but
`--set` turn on the others?"""

import dataclasses
import itertools
import re

import pytest

from ondie.emu.config.config import load_preset, preset_names
from ondie.emu.config.schema.keys import KEYS
from ondie.emu.ftl.policies import STREAMS, VICTIMS
from ondie.emu.replay.mqsim.parameter import parameters
from ondie.emu.replay.mqsim.quirks import QUIRKS
from ondie.emu.replay.mqsim.ssdconfig import Drive, read_drive
from ondie.emu.replay.mqsim.to_engine import configuration
from tests.config.mqsim_files import drive_xml, put
from tests.docs import generate

PAGE = (generate.ROOT / "docs" / "flash.md").read_text("utf-8")
FEW, ONLY_SET = "Mechanisms of few presets", "Mechanisms that only `--set` turns on"
SECTIONS = ("flash", "ftl", "cache", "dram", "errors", "ecc", "frontend", "link")
POLICIES = {"ftl.gc_policy": tuple(VICTIMS), "ftl.stream_policy": tuple(STREAMS)}
RATED = ("flash.rated_retention", "flash.retention", "ftl.reservoir_retention")
"""Choices that are no mechanism: cycles for a retention."""


def rows(title):
    """The cells of the table below a heading."""
    body = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in body.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def settings(cell):
    """(key, value) of each setting; the value of a number is "> 0"."""
    for item in cell.split("; "):
        key, sign, values = re.fullmatch(r"`([\w.]+)` ([=>]) (.+)", item).groups()
        yield from ((key, value if sign == "=" else "> 0") for value in values.split(", "))


@pytest.fixture(scope="module")
def of_presets():
    """Values of each key, by preset."""
    return {
        name: {leaf.key: leaf.value for leaf in load_preset(name).leaves()}
        for name in preset_names()
    }


@pytest.fixture(scope="module")
def of_mqsim(tmp_path_factory):
    """Values of each key for drives of MQSim in which one parameter differs, with and without its
    deviations."""
    drive = read_drive(put(tmp_path_factory.mktemp("mqsim") / "ssdconfig.xml", drive_xml()))
    drives = [drive] + [
        dataclasses.replace(drive, **{parameter.attribute: value})
        for parameter in parameters(Drive)
        for value in parameter.p.choices or ((True, False) if parameter.type is bool else ())
    ]
    assert len(drives) > 50
    found = {}
    for each, quirks in itertools.product(drives, (frozenset(), frozenset(q.name for q in QUIRKS))):
        for leaf in configuration(each, 2, quirks).leaves():
            found.setdefault(leaf.key, set()).add(leaf.value)
    return found


def mechanisms(key, reached):
    """The settings of a key that no value in ``reached`` turns on."""
    choices = POLICIES.get(key) or KEYS[key].spec.choices
    if choices:
        return {(key, choice) for choice in choices if choice not in reached}
    if reached == {False} and all(isinstance(value, bool) for value in reached):
        return {(key, "true")}
    return {(key, "> 0")} if reached == {0} else set()


def test_only_set_turns_on_what_the_page_lists(of_presets, of_mqsim):
    expected = set()
    for key in KEYS:
        if key.split(".")[0] in SECTIONS and key not in RATED:
            reached = {values[key] for values in of_presets.values()} | of_mqsim[key]
            expected |= mechanisms(key, reached)
    listed = [setting for row in rows(ONLY_SET) for setting in settings(row[1])]
    assert len(listed) == len(set(listed)) and set(listed) == expected


def test_the_page_lists_the_presets_of_a_mechanism(of_presets):
    for _, cell, presets in rows(FEW):
        ((key, value),) = settings(cell)
        users = {name for name, values in of_presets.items() if values[key] == value}
        assert set(re.findall(r"`([\w-]+)`", presets)) == users, key


def test_the_page_lists_the_values_of_few_presets(of_presets):
    """Each choice of the flash, or of pSLC, that one or two presets have."""
    listed = {setting for row in rows(FEW) for setting in settings(row[1])}
    for key in ("flash.suspend", "flash.plane_reads", "flash.programming", "flash.page_types",
                "flash.interface", "flash.status", "ftl.pslc", "ftl.pslc_full"):  # fmt: skip
        values = [preset[key] for preset in of_presets.values()]
        few = {(key, value) for value in set(values) if values.count(value) <= 2}
        assert few == {setting for setting in listed if setting[0] == key}


def test_every_key_that_the_page_names_exists():
    names = re.findall(r"`((?:flash|ftl|cache|dram|errors|ecc|frontend|link)\.[\w*]+)`", PAGE)
    for name in names:
        assert any(re.fullmatch(name.replace("*", ".*"), key) for key in KEYS), name
