"""Do lifetime and capacity follow from what is programmed, and does the published lifetime?"""

import dataclasses

import pytest

from ondie import traces
from ondie.emu.analysis.compare import compare
from ondie.emu.analysis.lifetime import YEAR_S, cycles, cycles_as_written, lifetime
from ondie.emu.analysis.result_json import metrics, result_data
from ondie.emu.config.config import load_preset
from ondie.emu.config.rules.rule import raw_bytes
from ondie.emu.validate import model
from tests.smoke.commands import SMALL, here

STRIPES = 256  # super-pages: 4 on each of R1's 64 dies, so that no page is half empty
N = STRIPES * 2048
PATHS = ("host_offload", "in_storage", "on_die")


@pytest.fixture(scope="module")
def c():
    return compare(model("adam", N), load_preset("optimstore-r1"), paths=PATHS, swing=False)


def of(c, name):
    r = c.result(name)
    return lifetime(c.cfg, r.ledger, r.updates_weights)


def test_the_published_lifetime(counts):
    """10.3 B parameters: 1.5 M TB written, 12.136 M iterations by arithmetic (published: 12.4 M).
    1 TB x 1.5 M cycles = 1.5e18 B; Adam on the die programs 12 B/param: 123.6 GB each. At full
    counts every page of a model of 10.28 B."""
    trace = counts(model("adam", N), traces.load("gpt-10b"))
    c = compare(trace, load_preset("optimstore-r1"), paths=["on_die"], swing=False)
    x, n = of(c, "on_die"), trace.n_params
    assert x.rated_bytes[1] == 1.5e18
    assert x.written_bytes / n * 10.3e9 == pytest.approx(123.6e9, rel=1e-4)
    steps = x.steps[1] * n / 10.3e9
    assert steps == pytest.approx(12.136e6, rel=1e-4)
    assert steps == pytest.approx(12.4e6, rel=0.03)
    assert x.state_bytes / n == pytest.approx(16, rel=1e-4)


def test_bytes_written_per_parameter(c):
    """w, m, v: 12 B; host offload writes the gradient too, 16 B."""
    found = {name: of(c, name).written_bytes / N for name in PATHS}
    assert found == {"host_offload": 16.0, "in_storage": 12.0, "on_die": 12.0}


def test_years_are_steps_at_the_simulated_time(c):
    for name in PATHS:
        x, step_s = of(c, name), c.result(name).ledger.step_s
        for i in range(3):
            assert x.years[i] == pytest.approx(x.steps[i] * step_s / (365 * 24 * 3600))
        assert YEAR_S == 8760 * 60 * 60


def test_the_class_of_retention_is_the_range(c):
    """30 K cycles as rated, and fifty times as many where three days of retention are enough."""
    low, typical, high = of(c, "on_die").steps
    assert (typical / low, high / typical) == (50.0, 1.0)
    assert (c.cfg.flash.endurance_cycles, c.cfg.flash.cycles_3_days) == (30_000, 50)
    assert (c.cfg.flash.rated_retention, c.cfg.ftl.reservoir_retention) == ("1 year", "3 days")


def with_cfg(c, name, changes):
    """The lifetime of a path's run under a configuration that differs in what wear is counted by
    alone."""
    r = c.result(name)
    return lifetime(c.cfg.replace(changes), r.ledger, r.updates_weights, r.share)


def test_the_retention_that_is_required_is_a_choice(c):
    """On the die all is programmed in the reservoir; host offload and the controller write behind
    the map. Each feels the retention of its own blocks alone."""
    for name in PATHS:
        mine, other = "flash.retention", "ftl.reservoir_retention"
        if name == "on_die":
            mine, other = other, mine
        as_is = with_cfg(c, name, {})
        assert with_cfg(c, name, {other: "1 year"}) == (
            as_is if name == "on_die" else dataclasses.replace(as_is, reservoir_steps=None)
        )
        for need, factor in (("rated", 1), ("1 year", 1), ("3 months", 2.1), ("3 days", 50)):
            x = with_cfg(c, name, {mine: need})
            assert x.rated_bytes[1] == pytest.approx(30_000 * factor * 1e12)
            for field in ("steps", "years"):
                found, plain = getattr(x, field)[1], getattr(as_is, field)[1]
                assert found == pytest.approx(plain * factor / 50)
            assert x.wear_out_steps == pytest.approx(as_is.wear_out_steps * factor / 50)
            assert x.written_bytes == as_is.written_bytes and x.share == as_is.share
            if as_is.reservoir_steps is not None:
                pair = [n * factor / 50 for n in as_is.reservoir_steps]
                assert x.reservoir_steps == pytest.approx(pair)


def test_cycles_rated_for_less_retention_are_fewer_for_more():
    """Newport's are taken as rated for 3 months: a year leaves 3000 / 2.1, three days 50 / 2.1
    times as many; ends over the ranges of rating, class and factors, 1 .. 3.1 and 13 .. 50."""
    cfg = load_preset("newport")
    assert cycles(cfg) == (1000, 3000, 5000)
    for need, expected in (
        ("3 months", (1000, 3000, 5000 * 3.1)),  # the class may be 1 year: then x 3.1 at most
        ("1 year", (1000 / 3.1, 3000 / 2.1, 5000)),
        ("3 days", (1000 * 13 / 3.1, 3000 * 50 / 2.1, 5000 * 50)),
    ):
        found = cycles(cfg.replace({"flash.retention": need}))
        assert found == pytest.approx(expected), need


def test_bytes_of_two_retentions_use_up_shares_of_one_life(c):
    """A quarter of the bytes at 50 times the cycles: life is used up 1 / (3/4 + 1/4 / 50) times as
    fast as if all cost as much as behind the map."""
    t = c.result("on_die").ledger.totals
    counters = dict(t.counters)
    counters["program_pages"] += 3 * counters["bpp_pages"]
    mixed = dataclasses.replace(t, counters=counters)
    cfg = c.cfg.replace({"flash.retention": "rated"})
    found = cycles_as_written(cfg, mixed)[1]
    assert found == pytest.approx(30_000 / (3 / 4 + 1 / 4 / 50), rel=1e-12)


SHAPES = (
    {}, {"flash.channels": 4, "flash.dies_per_channel": 4}, {"flash.channels": 16},
    {"flash.planes_per_die": 8, "flash.pages_per_block": 128}, {"flash.page": "16 KiB"},
    {"flash.blocks_per_plane": 1003},
)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_numbers_of_a_result_are_of_one_drive(shape):
    """Whatever the geometry: capacity is the preset's share of the flash; rated bytes, steps and
    years are of that capacity, the states' share too; steps to wear out are of all flash, spare
    blocks included, so that they are longer by flash over capacity: 1.0759 for R1, everywhere."""
    plain = load_preset("optimstore-r1")
    cfg = plain.replace(shape)
    c = compare(model("adam", 50_000), cfg, paths=["in_storage", "on_die"], swing=False)
    flash, nominal = raw_bytes(cfg), cfg.system.capacity_bytes
    assert nominal / flash == pytest.approx(1e12 / raw_bytes(plain), rel=1e-9)
    for r in c.results:
        m = {name: entry["value"] for name, entry in metrics(c, r).items()}
        written = m["flash_written_bytes"]
        assert m["rated_write_typical_bytes"] == pytest.approx(1.5e6 * nominal)
        assert m["lifetime_steps_typical"] == pytest.approx(1.5e6 * nominal / written)
        years = m["lifetime_steps_typical"] * m["step_s"] / YEAR_S
        assert m["lifetime_years_typical"] == pytest.approx(years)
        assert m["steps_to_wear_out"] == pytest.approx(1.5e6 * flash / written)
        ratio = m["steps_to_wear_out"] / m["lifetime_steps_typical"]
        assert ratio == pytest.approx(1.07589, rel=1e-4)
        assert m["state_share_of_capacity"] == pytest.approx(m["state_bytes"] / nominal)
    said = [note for note in result_data(c, 0)["notes"] if note.startswith("system.capacity = ")]
    assert len(said) == (flash != raw_bytes(plain))


def test_more_drives_last_longer(c):
    two = compare(
        model("adam", N), load_preset("optimstore-r1", ["system.devices=2"]), paths=["on_die"],
        swing=False,
    )  # fmt: skip
    one, both = of(c, "on_die"), of(two, "on_die")
    assert both.rated_bytes[1] == 2 * one.rated_bytes[1]
    assert both.steps[1] == pytest.approx(2 * one.steps[1], rel=1e-12)
    assert both.share == pytest.approx(one.share / 2)


def test_what_is_programmed_besides_counts():
    """A drive so full that collection moves pages: WAF above 1 shortens its life by as much."""
    full = ["system.capacity=115 MB", "ftl.reservoir_fraction=0.0", "ftl.over_provisioning=0.03"]
    cfg = load_preset("optimstore-r1", [*SMALL, *full])
    trace = model("adam", 6_500_000)
    steps = tuple(dataclasses.replace(trace.steps[0], index=i) for i in range(6))
    trace = dataclasses.replace(trace, steps=steps)
    c = compare(trace, cfg, paths=["in_storage"], steps=6, swing=False)
    r = c.result("in_storage")
    x = of(c, "in_storage")
    counters = r.ledger.totals.counters
    asked = (counters["host_write_bytes"] + counters["isp_write_bytes"]) / 6
    assert counters["gc_program_pages"] > 0 and r.ledger.waf > 1
    assert x.written_bytes == pytest.approx(asked * r.ledger.waf, rel=1e-12)
    assert x.steps[1] == pytest.approx(x.rated_bytes[1] / (asked * r.ledger.waf), rel=1e-12)


def test_capacity_of_the_states(c):
    """On the die one plane of four idles: 16 B/param; through the controller w, m, v take 12, and
    the gradient on flash 4 more. In pSLC three times as much TLC."""
    for name, size in (("host_offload", 16), ("in_storage", 12), ("on_die", 16)):
        x = of(c, name)
        assert x.state_bytes == size * N
        assert x.tlc_bytes == x.pslc_bytes == 3 * size * N
        assert x.share == size * N / 1e12


def test_capacity_on_tlc():
    """Newport's cells hold three bits: in pSLC the states would take three times as many."""
    c = compare(model("adam", N), load_preset("newport"), swing=False)
    x = of(c, "in_storage")
    assert x.tlc_bytes == x.state_bytes >= 12 * N
    assert x.pslc_bytes == 3 * x.state_bytes


def test_states_that_are_not_on_flash():
    """Stannis keeps them in the nodes' DRAM, and writes nothing."""
    c = compare(traces.load("gpt2-124m"), load_preset("newport"), paths=["stannis"], steps=1)
    x = of(c, "stannis")
    assert (x.state_bytes, x.share, x.steps, x.years) == (0, 0, None, None)


def test_the_reservoir_alone_lasts_as_long_as_its_planes(c):
    """4 super-pages a die and step, in 1,002 blocks of 256: 1.5 M cycles of each plane in use are
    96 G steps as laid out. With roles that change, the idle plane of four takes its part: 4/3 of
    that. Roles change every 100 times that the places are filled, and then the 4 stripes' three
    pages take 10.24 us each."""
    r = c.result("on_die")
    x = lifetime(c.cfg, r.ledger, share=r.share)
    plain = 1.5e6 * 1002 * 256 / 4
    assert x.reservoir_steps == pytest.approx((plain * 4 / 3, plain), rel=1e-12)
    assert r.share.turn_steps == pytest.approx(100 * 1002 * 256 / 4, rel=1e-12)
    assert r.share.turn_s == pytest.approx(4 * 3 * 10.24e-6, rel=1e-12)
    assert lifetime(c.cfg, r.ledger).reservoir_steps is None
    assert c.result("host_offload").share is None


def test_dies_that_have_more_to_do_wear_first():
    """257 super-pages: 5 on one die of 64, 4 on the others. Not levelled, that die is worn by then;
    with Momentum no plane is idle."""
    trace, cfg = model("adam", N + 2048), load_preset("optimstore-r1")
    for changes, levelled, plain in (
        ({}, 3 / 4 * 257 / 64, 5),
        ({"ftl.reservoir_migrate": 0}, 3 / 4 * 5, 5),
        ({"ftl.reservoir_rotate": 0}, 257 / 64, 5),
        ({"ftl.reservoir_rotate": 0, "ftl.reservoir_migrate": 0}, 5, 5),
        ({"pe.rain": 16}, None, None),
    ):
        r = compare(trace, cfg.replace(changes), paths=["on_die"], swing=False).result("on_die")
        found = lifetime(cfg, r.ledger, share=r.share).reservoir_steps
        cycles = [1.5e6 * 1002 * 256 / n for n in found]
        if levelled is None:  # 18 super-pages of parity more, and stripes that stay where they are
            assert sum(r.share.programs) == 257 + 18 and r.share.migrate == 0
            continue
        assert cycles == pytest.approx([levelled, plain], rel=1e-9)
    momentum = compare(model("momentum", 2 * N), cfg, paths=["on_die"], swing=False)
    r = momentum.result("on_die")
    assert (r.share.used, r.share.rotate) == (4, 0)
    found = lifetime(cfg, r.ledger, share=r.share).reservoir_steps
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_what_a_change_of_roles_takes_is_what_the_simulation_has():
    """Blocks of four pages, 8 a die, 5 stripes each: with roles that change at every cycle, all
    places are turned once in 32 / 5 steps. Longer by the closed form, in lockstep, where nothing
    hides it."""
    from tests.state.test_levelling import run

    params, steps = 5 * 4 * 128, 64
    plain, turned = (
        run(params=params, steps=steps, payload=False, ftl__reservoir_rotate=n) for n in (0, 1)
    )
    pages = turned.account()[0].counters["turned_pages"]
    share = turned.path.share(steps)
    changes = pages / (3 * 20)
    assert changes == pytest.approx(steps / share.turn_steps, abs=1)
    longer = (turned.account()[1].update_s - plain.account()[1].update_s) * steps
    assert longer == pytest.approx(changes * share.turn_s, rel=1e-9)


def test_pieces_know_the_wear_of_the_whole():
    """Extended from pieces: erases by die and plane are those of the whole step, and what a step
    does to the reservoir follows from the whole model."""
    trace, cfg = traces.load("gpt-10b"), load_preset("optimstore-r1")
    r = compare(trace, cfg, paths=["on_die"], swing=False, sampled=True).result("on_die")
    t = r.ledger.totals
    assert r.sampled is not None and len(t.worn) == 64
    assert sum(map(sum, t.worn)) == pytest.approx(t.counters["erased_blocks"], rel=1e-6)
    assert all(die[3] == 0 for die in t.worn)
    assert sum(r.share.programs) == -(-trace.n_params // 2048)
    levelled, plain = lifetime(cfg, r.ledger, share=r.share).reservoir_steps
    assert levelled / plain == pytest.approx(4 / 3, rel=1e-4)


def test_metrics_and_table(c, capsys, tmp_path):
    x, m = of(c, "on_die"), metrics(c, c.result("on_die"))
    assert m["lifetime_steps_typical"] == {"value": x.steps[1], "unit": "steps"}
    assert m["lifetime_years_low"] == {"value": x.years[0], "unit": "years"}
    assert m["state_in_pslc_as_tlc_bytes"] == {"value": x.pslc_bytes, "unit": "B"}
    assert m["flash_written_bytes"]["value"] == x.written_bytes
    words = ["compare", "mlp-fp16", "--steps", "1", "--no-swing", "--verbose", "--out", tmp_path]
    out = here(capsys, *words).out
    table = out[out.index("Lifetime and capacity: 1.00 TB of pSLC, rated for 1,500,000 cycles") :]
    assert "30,000 .." in table
    assert "states stored in pSLC mode take three times" in " ".join(table.split())
    assert "on_die only writes its reservoir (50% of the drive)" in " ".join(table.split())
    # 15 stripes of Momentum on 64 dies.
    words = "(the fullest die is 326.667% above the mean), 1.64 T if super-pages move between dies"
    assert words in " ".join(table.split())
    words = ["compare", "gpt2-124m", "--steps", "1", "--no-swing", "--verbose"]
    words += ["--paths", "on_die"]
    out = " ".join(here(capsys, *words, "--out", tmp_path / "b").out.split())
    assert "(1 of 4 planes are idle, the fullest die is 0.063% above the mean)" in out
    assert "if planes rotate roles every 100 cycles and super-pages move between dies that" in out
    assert "; a rotation takes 29.2 ms, once in 27.0 k steps" in out
    assert "Erases in the run, min .. mean .. max: 0 .. 3 .. 4 per plane, 12 .. 12 .. 12 per" in out
