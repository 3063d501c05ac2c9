"""Is a data sheet read as it is stated, and is every fault one line that says what is right?"""

import re

import pytest

from ondie.emu.config.config import load_preset, preset_names
from ondie.emu.config.datasheet import (
    ENDURANCE,
    UNITS,
    contradiction,
    load_datasheet,
    read_datasheet,
)
from ondie.emu.config.rules.rule import raw_bytes
from ondie.emu.validate.drives import DRIVES
from tests.config.test_bad_input import refused


def figure(**changes):
    """A figure whose fields are replaced; None removes one."""
    fields = {"what": "random_read", "value": "900 kIOPS", "block": "4 KiB", "queue_depth": 256}
    return {name: value for name, value in (fields | changes).items() if value is not None}


def sheet(*figures, **changes):
    fields = {"source": "a sheet", "capacity": "7.68 TB", "state": "steady"}
    fields["figures"] = list(figures) or [figure()]
    return {name: value for name, value in (fields | changes).items() if value is not None}


def sequential(value):
    return figure(what="sequential_read", value=value, block="128 KiB", queue_depth=32)


@pytest.mark.parametrize("name", DRIVES)
def test_every_data_sheet_is_of_the_capacity_of_its_preset(name):
    cfg = load_preset(name)
    found = load_datasheet(name, cfg)
    assert found.capacity_bytes == cfg.system.capacity_bytes
    titles = [one.title for one in found.figures]
    assert len(set(titles)) == len(titles) >= 4
    kinds = {one.kind for one in found.figures}
    assert kinds == ({"fit", "check", "identity", "shown"} if name == "970-pro" else {"shown"})


def test_a_figure_is_in_base_units_with_its_conditions():
    read = read_datasheet(
        sheet(
            sequential("6.5 GB/s"),
            figure(),
            figure(value="1.1 MIOPS"),
            figure(value=15_000, queue_depth=1),
            figure(what="read_latency", value="80 us", queue_depth=None),
            figure(what="write_power", value="5.2 W"),
            figure(what="sequential_write", value="1.2 GB/s", block="128 KiB", pslc="full"),
            {"what": ENDURANCE, "value": "14 PB", "workload": "random"},
        ),
        "here",
    )
    assert read.capacity_bytes == 7_680_000_000_000 and read.state == "steady"
    assert [one.value for one in read.figures] == [
        6.5e9, 9e5, 1.1e6, 15_000, 8e7, 5200, 1.2e9, 1.4e16,
    ]  # fmt: skip
    assert [(one.block_bytes, one.depth) for one in read.figures[:5]] == [
        (131072, 32), (4096, 256), (4096, 256), (4096, 1), (4096, 1),
    ]  # fmt: skip
    assert [one.pslc_full for one in read.figures].index(True) == 6
    assert read.figures[1].title == "random read, 4 KiB, QD 256"
    assert read.figures[6].title == "sequential write, 128 KiB, QD 256, pSLC full"
    assert read.figures[7].title == "bytes written, random writes"
    assert {one.what for one in read.figures} < set(UNITS)


MIXED = [
    (sheet(sequential("3500 MB/s"), sequential("3338 MiB/s")), "3.50 GB/s"),
    (sheet(sequential("3338 MiB/s"), capacity="512 GB"), "3.50 GB/s"),
    (sheet(sequential("3500 MB/s"), capacity="512 GiB"), "550 GB"),
    (sheet(figure(), {"what": ENDURANCE, "value": "546 TiB", "workload": "random"}), "600 TB"),
]


@pytest.mark.parametrize(("table", "meant"), MIXED, ids=range(len(MIXED)))
def test_powers_of_1000_and_of_1024_do_not_mix(table, meant):
    refused(
        lambda: read_datasheet(table, "my.toml"),
        ["my.toml: ", "powers of 1000", "powers of 1024", f"is {meant})"],
    )


def test_powers_of_1024_alone_are_right_and_blocks_do_not_count():
    table = sheet(sequential("3338 MiB/s"), capacity="6.98 TiB")
    with pytest.raises(ValueError, match="whole number"):
        read_datasheet(table, "here")  # 6.98 TiB is no whole number of bytes
    table["capacity"] = "7 TiB"
    assert read_datasheet(table, "here").figures[0].value == 3338 << 20


BAD = [
    (sheet(state="new"), ["state", '"new"', "fresh, steady"]),
    (sheet(capacity="7.68"), ["capacity", "has no unit"]),
    (sheet(capacity=7), ["capacity", "must be a nonempty text on one line"]),
    (sheet(source=""), ["source", "must be a nonempty text on one line"]),
    (sheet(source=None), ["source is missing"]),
    (sheet(figures=None), ["figures is missing"]),
    (sheet(figures=[]), ["figures", "must be a nonempty list"]),
    (sheet(figures="many"), ["figures", "must be a nonempty list"]),
    (sheet(speed="fast"), ['unknown key "speed"']),
    (sheet("900 kIOPS"), ["figures[0]", "must state what and value", "random_read"]),
    (sheet(figure(), figure(value=None)), ["figures[1]", "must state what and value"]),
    (sheet(figure(what="random_reads")), ['"random_reads"', "nearest: random_read"]),
    (sheet(figure(block=None)), ["(random_read)", "block is missing"]),
    (sheet(figure(queue_depth=None)), ["queue_depth is missing"]),
    (sheet(figure(depth=4)), ['unknown key "depth"']),
    (sheet(figure(what="read_latency", value="80 us")), ['unknown key "queue_depth"']),
    (sheet(figure(block="4 KB")), ["block", "4000 B", "power of two", '"128 KiB"']),
    (sheet(figure(block="0 B")), ["block", "power of two"]),
    (sheet(figure(block=4096)), ["block", "must be a nonempty text on one line"]),
    (sheet(figure(queue_depth=0)), ["queue_depth", '"0"', "from 1 to 65535"]),
    (sheet(figure(queue_depth="32")), ["queue_depth", "from 1 to 65535"]),
    (sheet(figure(queue_depth=True)), ["queue_depth", "from 1 to 65535"]),
    (sheet(figure(value="900 k")), ["is not a rate", "900 kIOPS"]),
    (sheet(figure(value="0 IOPS")), ["too small", "above 0"]),
    (sheet(figure(value=-5)), ["too small", "above 0"]),
    (sheet(sequential("6500")), ["value", "has no unit"]),
    (sheet(sequential("6500 Mb/s")), ["unknown unit"]),
    (sheet(sequential("6500 MB")), ["is a size, not a rate"]),
    (sheet(sequential(6500)), ["must be a nonempty text on one line"]),
    (sheet(figure(kind="checked")), ["kind", '"checked"', "nearest: check"]),
    (sheet(figure(kind="fit")), ["constants", 'must be a list of keys if kind is "fit"']),
    (
        sheet(figure(constants=["flash.t_read"])),
        ["constants", 'must be a list of keys if kind is "fit"'],
    ),
    (sheet(figure(pslc="half")), ["pslc", '"half"']),
    (sheet({"what": ENDURANCE, "value": "1 PB", "workload": "mixed"}), ["workload", '"mixed"']),
    (sheet({"what": ENDURANCE, "value": "1 PB"}), ["workload is missing"]),
]


@pytest.mark.parametrize(("table", "words"), BAD, ids=range(len(BAD)))
def test_a_fault_is_named_with_its_place(table, words):
    refused(lambda: read_datasheet(table, "my.toml: datasheet"), ["my.toml: datasheet", *words])


# --- files


SHEET = """
[datasheet]
source = "a sheet"
capacity = "{capacity}"
state = "steady"
figures = [{{ what = "read_latency", value = "80 us", block = "4 KiB" }}]
"""


def file(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text('base = "gen4-tlc"\n' + text)
    return path


def test_the_data_sheet_of_a_base_is_not_that_of_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "970-pro"\n')
    refused(
        lambda: load_datasheet(path, load_preset(path)),
        ["mine.toml", "has no [datasheet]", "ondie preset new"],
    )


def test_a_data_sheet_changes_no_constant(tmp_path):
    cfg = load_preset(file(tmp_path, SHEET.format(capacity="3.84 TB")))
    assert load_datasheet(tmp_path / "mine.toml", cfg).capacity_bytes == cfg.system.capacity_bytes
    plain = load_preset(file(tmp_path, ""))
    assert cfg.sha256 == plain.sha256


def test_a_data_sheet_of_another_capacity_is_refused(tmp_path):
    path = file(tmp_path, SHEET.format(capacity="7.68 TB"))
    refused(
        lambda: load_datasheet(path, load_preset(path)),
        ["capacity = 7.68 TB", "system.capacity = 3.84 TB"],
    )


def test_a_data_sheet_is_a_table(tmp_path):
    path = file(tmp_path, "")
    path.write_text('datasheet = "fast"\nbase = "gen4-tlc"\n')
    refused(
        lambda: load_datasheet(path, load_preset("gen4-tlc")),
        ["datasheet", '"fast"', "write [datasheet]"],
    )


# --- capacity and geometry


@pytest.mark.parametrize("name", preset_names())
def test_no_preset_contradicts_itself(name):
    assert contradiction(load_preset(name)) is None


def test_a_capacity_that_contradicts_the_geometry_is_said():
    cfg = load_preset("970-pro")
    half = cfg.replace({"system.capacity": "256 GB"})
    text = contradiction(half)
    assert text is not None
    assert "system.capacity = 256 GB contradicts the geometry" in text
    assert "change flash.blocks_per_plane" in text  # more than half would be over-provisioning
    less = cfg.replace({"system.capacity": "420 GB"})
    share = (raw_bytes(less) - 420 * 10**9) / raw_bytes(less)
    advised = float(re.search(r"over_provisioning = (\S+) would", contradiction(less))[1])
    assert share - 1e-4 < advised <= share
    assert contradiction(less.replace({"ftl.over_provisioning": advised})) is None
    more = cfg.replace({"ftl.over_provisioning": 0.2})  # exports less than it claims
    assert "contradicts the geometry" in str(contradiction(more))


def test_a_fixed_pslc_region_holds_no_part_of_the_nominal_capacity():
    """0.09 is right for 1 TB of the whole flash, and too much for that outside the region."""
    cfg = load_preset("sn750", ["ftl.over_provisioning=0.09"])
    text = str(contradiction(cfg))
    assert "1.06 TB of flash outside the static pSLC region" in text
    assert "ftl.over_provisioning = 0.0599 would give this capacity" in text
    assert contradiction(cfg.replace({"ftl.pslc": "off"})) is None
