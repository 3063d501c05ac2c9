"""Does the engine follow the stage table? Dispatch, branches, and completeness of the steps."""

import ast
import inspect
import itertools
from types import SimpleNamespace

import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import stages
from ondie.emu.engine.run import datapath, stage_handlers, stage_table
from ondie.emu.engine.run.stage_table import CONDITIONS, STAGES
from ondie.emu.engine.run.system import System
from ondie.emu.nvme import mqsim_cache

NAMES = stage_table.names()
ELSEWHERE = {"ARRIVED", "PASSED"}
"""Steps that do not travel: loop.on_station_left submits the command; word_line_buffer keeps
the page."""


def plain(function):
    return getattr(function, "py_func", function)


def configuration(*conditions):
    """The fields that conditions read, for a drive with ``conditions`` only."""
    held = set(conditions)
    return SimpleNamespace(
        shared_uplink=int("shared uplink" in held),
        adapter=32 * ("SATA adapter" in held),
        entries=64 * bool(held & {"queue limit", "delay, queue limit"}),
        read_delay=0,
        write_delay=int(bool(held & {"firmware delay", "delay, queue limit"})),
        fetch_limit=8 * ("fetch limit" in held),
        cache_writes=int("write cache" in held),
        isp_writes_apart=int("separate ISP writes" in held),
        cache=mqsim_cache.BUFFER if "destage buffer" in held else 0,
        command=1, doorbell=2, request=3, entry=4, completion=5,
    )  # fmt: skip


def test_steps_and_branches_are_named_in_order():
    assert sorted(NAMES) == list(range(stages.STEPS))
    assert NAMES[stages.ARRIVED] == "ARRIVED"
    assert all(getattr(stages, name) == step for step, name in NAMES.items())


@pytest.mark.parametrize(
    "conditions",
    [held for n in range(3) for held in itertools.combinations(list(CONDITIONS)[1:], n)],
)
def test_every_step_has_one_stage_and_leads_to_one(conditions):
    drive = list(stage_table.of_drive(configuration(*conditions)))
    steps = [stage.step for stage in drive]
    assert len(steps) == len(set(steps))
    assert {NAMES[step] for step in range(stages.STEPS)} - {NAMES[s] for s in steps} == ELSEWHERE
    for stage in drive:
        reached = {stage.next, *stage.branches, *stage.leads} - {-1}
        assert reached <= set(steps), NAMES[stage.step]
        assert (stage.next >= 0) == bool(stage.over.name), NAMES[stage.step]
        assert stage.decides is None or stage.takes is None


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: f"{NAMES[stage.step]} {stage.when}")
def test_a_handler_is_called_as_the_table_says(stage, monkeypatch):
    called = []

    def stub(handler):
        return lambda st, tid: called.append(plain(handler))

    handlers = [each.decides or each.takes for each in STAGES if each.decides or each.takes]
    for module in (datapath, datapath.read_retry, datapath.mqsim_cache):
        for name, value in vars(module).copy().items():
            for handler in handlers:
                if value is handler:
                    monkeypatch.setattr(module, name, stub(handler))
    state = SimpleNamespace(cfg=[configuration(stage.when)])
    if stage.decides is not None:
        plain(datapath.decide)(state, 0, stage.step)
        assert called == [plain(stage.decides)]
    elif stage.takes is not None:
        plain(datapath.hand_over)(state, 0, stage.step)
        assert called == [plain(stage.takes)]


@pytest.mark.parametrize("name", sorted({x.decides.__name__ for x in STAGES if x.decides}))
def test_a_handler_returns_only_what_the_table_lists(name):
    function = plain(getattr(stage_handlers, name))
    tree = ast.parse(inspect.getsource(function))
    returned = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Return):
            found = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
            returned |= {each.attr for each in found if ast.unparse(each.value) == "stages"}
    assert returned
    returned -= {"WAITS", "FINISHED"}
    for stage in STAGES:
        if stage.decides is not None and plain(stage.decides) is function:
            selected = {NAMES[step] for step in stage.branches}
            own = {NAMES[stage.step]} if stage.next >= 0 else set()
            assert returned == selected | own


def test_records_hold_the_sizes_and_counters_of_the_configuration():
    cfg = load_preset("newport", ("system.devices=1",))
    arrays = System(cfg, ("phase",)).arrays
    ring = arrays.stage[stages.SUBMITTED]
    assert (ring["bytes"], ring["next"]) == (cfg.frontend.doorbell_bytes, stages.RUNG)
    assert ring["counter"] == stage_table.LINK_EXTRA_DOWN_BYTES
    fetch = arrays.stage[stages.RUNG]
    assert (fetch["bytes"], fetch["counter"]) == (
        cfg.frontend.request_bytes,
        stage_table.LINK_EXTRA_UP_BYTES,
    )
    front = arrays.stage[stages.ENTRY_IN]
    assert (front["bytes"], front["time"]) == (0, cfg.frontend.command_ps)
    data = arrays.stage[stages.WRITE_FETCHED]
    assert (data["bytes"], data["time"], data["counter"]) == (-1, -1, -1)
