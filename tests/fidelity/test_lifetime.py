"""Do lifetime and capacity follow from what is programmed, and does the published lifetime?"""

import dataclasses

import pytest

from ondie import traces
from ondie.emu.compare import compare
from ondie.emu.config import load_preset
from ondie.emu.lifetime import YEAR_S, lifetime
from ondie.emu.report import metrics
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
    """30 K cycles, and fifty times as many where three days of retention are enough."""
    low, typical, high = of(c, "on_die").steps
    assert (typical / low, high / typical) == (50.0, 1.0)
    leaf = c.cfg.leaf("flash.endurance_cycles")
    assert "30 K, x50 at a retention of 3 days" in leaf.ref


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
    asked = counters["program_pages"] * r.ledger.totals.page_bytes / 6
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
    words = ["compare", "mlp-fp16", "--steps", "1", "--no-swing", "--out", tmp_path]
    out = here(capsys, *words).out
    table = out[out.index("Lifetime and capacity: 1.00 TB of pSLC, rated for 1,500,000 cycles") :]
    assert "30,000 .." in table
    assert "In pSLC, as the states are, they take three times" in " ".join(table.split())
    assert "on_die writes its reservoir alone (50% of the drive)" in " ".join(table.split())
    # 15 stripes of Momentum on 64 dies.
    words = "(the fullest die 327% above the mean), 1.64 T as super-pages move between dies that"
    assert words in " ".join(table.split())
    words = ["compare", "gpt2-124m", "--steps", "1", "--no-swing", "--paths", "on_die"]
    out = " ".join(here(capsys, *words, "--out", tmp_path / "b").out.split())
    assert "(1 of 4 planes idle, the fullest die 0.0625% above the mean)" in out
    assert "as planes change roles every 100 cycles and super-pages move between dies that" in out
    assert "; a change of roles takes 29.2 ms, once in 27 k steps" in out
    assert "Erased in the run, least .. mean .. most: 0 .. 3 .. 4 a plane, 12 .. 12 .. 12 a" in out
