"""Weights flow through the emulated pages and nowhere else: each updating path ends bit for bit on
its kernel's result, and one byte flipped on flash between two steps changes it.
"""

import numpy as np
import pytest

from ondie.emu.analysis.path_choice import PATHS
from ondie.emu.engine.core.counters import GC_PROGRAM_PAGES
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nvme.moved_bytes import POISON
from ondie.emu.paths.optimizer_step import Arithmetic
from ondie.emu.paths.payload import Conventional
from ondie.emu.units import InputError
from tests.state.models import model
from tests.timing.harness import preset

UPDATING = ("host_offload", "host_offload_pipelined", "in_storage", "on_die")
LEAVES = {
    "flash.channels": "2",
    "flash.dies_per_channel": "2",
    "flash.planes_per_die": "4",
    "flash.blocks_per_plane": "24",
    "flash.pages_per_block": "8",
    "flash.page": "1 KiB",
    "host.io_block": "4 KiB",
    "frontend.max_transfer": "8 KiB",
    "ftl.over_provisioning": "0.3",
    "host.subgroup_params": "4000",
}
STEPS = 3


def bits(x):
    return x.view(np.uint32)


def start(name, op="adamw", trace=None, **changes):
    """(path, system, arithmetic) with the states on flash."""
    trace = trace or model(op, STEPS)
    path = PATHS[name](preset(LEAVES, **changes), trace)
    system = path.system(True, 0)
    arithmetic = Arithmetic(trace)
    path.prepare(system, arithmetic)
    return path, system, arithmetic


def one_step(path, system, i):
    if not path.trace.steps[i].skipped:
        path.begin_step(i)
    system.run(path.plan(i))


def run(name, op="adamw", flip=None, **changes):
    """Final weights and reference; ``flip(path)`` is called between the first and second step."""
    path, system, arithmetic = start(name, op, **changes)
    for i in range(STEPS):
        if i == 1 and flip is not None:
            flip(path)
        one_step(path, system, i)
    return path, path.finish(), arithmetic.reference(STEPS)


@pytest.mark.parametrize("op", ["sgd", "momentum", "nesterov", "adam", "adamw", "adagrad"])
@pytest.mark.parametrize("name", UPDATING)
def test_paths_end_on_the_reference(name, op):
    """16,881 parameters in three tensors of odd sizes and two groups, states that are not zero."""
    path, weights, reference = run(name, op)
    assert (bits(weights) == bits(reference)).all()
    assert (bits(reference) != bits(path.trace.weights("initial"))).mean() > 0.9
    sent = path.delivered()
    assert (sent is None) == name.startswith("host_offload")
    assert sent is None or (bits(sent) == bits(reference)).all()


CHANGES = {
    "two devices": {"system__devices": 2},
    "free": {"pe__dispatch": "free"},
    "double buffered": {"pe__dispatch": "double_buffered"},
    "single plane": {"flash__multi_plane": "false"},
    "no cache registers": {"flash__cache_read": "false", "flash__cache_program": "false"},
    "slow link": {"link__up": "20 MB/s", "link__down": "20 MB/s"},
    "slow flash": {"flash__t_program": "5 ms", "flash__t_read": "1 ms"},
    "little room": {"flash__blocks_per_plane": 14, "ftl__gc_low_blocks": 1},
    "cores": {"isp__kind": "cores", "isp__cores": 2, "isp__frequency": "1 GHz", "isp__ipc": 1},
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", UPDATING)
def test_bits_do_not_depend_on_the_device(name, change):
    path, weights, reference = run(name, **change)
    assert (bits(weights) == bits(reference)).all()
    sent = path.delivered()
    assert sent is None or (bits(sent) == bits(reference)).all()


@pytest.mark.parametrize("name", UPDATING)
def test_a_skipped_step_changes_nothing(name):
    path, system, arithmetic = start(name, trace=model("adamw", STEPS, skipped=(1,)))
    for i in range(STEPS):
        before = path.finish()
        one_step(path, system, i)
        assert (bits(path.finish()) == bits(before)).all() == (i == 1)
    assert (bits(path.finish()) == bits(arithmetic.reference(STEPS))).all()


@pytest.mark.parametrize("name", UPDATING)
def test_collection_moves_weights_and_loses_none(name):
    """Little over-provisioning and many steps, and collection that starts early, so that pages are
    moved while they are in use; the reservoir needs no moves."""
    trace = model("adamw", 10)
    path, system, arithmetic = start(
        name, trace=trace, flash__blocks_per_plane=14, ftl__gc_low_blocks=4
    )
    for i in range(10):
        one_step(path, system, i)
    moved = system.arrays.count[0, GC_PROGRAM_PAGES]
    assert (moved > 0) == (name != "on_die")
    assert (bits(path.finish()) == bits(arithmetic.reference(10))).all()


def flip(path, vector, parameter, byte=2, device=0):
    """Flip the stored bits of one byte of one parameter's value of one vector."""
    payload = path.payload
    if isinstance(payload, Conventional):
        r = payload.regions[device]
        page, at = divmod((parameter - r.shard.start) * 4, r.page_bytes)
        lpn = r.first(vector) + page
        payload.stores[device].flip(payload.ppn(device, lpn), at + byte)
        return
    s = payload.stripes[device]
    super_page, rest = divmod(parameter - s.shard.start, s.params)
    group, at = divmod(rest, s.values)
    ppn = payload.page(payload.at(device, super_page), s.plane(vector, group))
    payload.stores[device].flip(ppn, 4 * at + byte)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("vector", ["w", "m", "v"])
@pytest.mark.parametrize("parameter", [0, 5001, 16880])
@pytest.mark.parametrize("name", UPDATING)
def test_a_flipped_byte_changes_its_weight(name, parameter, vector):
    """One byte of one page between steps 1 and 2: that parameter's weight differs at the end,
    and no other, and the weights that reached the host differ there as well."""
    path, weights, reference = run(name, flip=lambda p: flip(p, vector, parameter))
    different = np.flatnonzero(bits(weights) != bits(reference))
    assert different.tolist() == [parameter]
    sent = path.delivered()
    assert sent is None or np.flatnonzero(bits(sent) != bits(reference)).tolist() == [parameter]


def test_collection_does_not_hide_a_flipped_byte():
    """The checksum moves with the page."""
    store = PageStore(512)
    store.write(3, 77, np.arange(512).astype(np.uint8))
    store.flip(3, 5)
    assert not store.intact(3)
    store.move(3, 40, 77)
    assert not store.intact(40) and store.read(40)[5] == 5 ^ 0xFF
    store.flip(40, 5)
    assert store.intact(40)


def test_a_page_is_programmed_once_per_erase():
    store = PageStore(512)
    store.write(3, 77, np.zeros(512, np.uint8))
    with pytest.raises(InputError, match="page 3 is programmed twice"):
        store.write(3, 78, np.zeros(512, np.uint8))
    store.erase(0, 8)
    with pytest.raises(InputError, match="before it was programmed"):
        store.read(3)
    store.write(3, 78, np.ones(512, np.uint8))
    assert list(store.programmed()) == [(3, 78, 2)] and store.owner(3) == 78


@pytest.mark.parametrize("name", UPDATING)
def test_a_page_that_is_lost_is_noticed(name):
    """An erased page cannot be read: the run stops, it does not go on with zeros."""
    path, system, _ = start(name)
    one_step(path, system, 0)
    payload = path.payload
    if isinstance(payload, Conventional):
        payload.stores[0].erase(payload.ppn(0, 3), 1)
    else:
        payload.stores[0].erase(payload.page(payload.at(0, 3), 0), 1)
    with pytest.raises(InputError, match="before it was programmed"):
        one_step(path, system, 1)


def test_memory_is_poisoned_when_its_page_is_programmed():
    """Poison is a NaN, and after a step nothing but poison is left in the memory of the host or
    ISP: a value that is not read back from flash cannot be used."""
    assert np.isnan(np.full(4, POISON, np.uint8).view(np.float32)[0])
    for name in UPDATING[:3]:
        path, system, _ = start(name)
        for w in ("w", "m", "v"):
            assert np.isnan(path.payload.vector(0, w)).all()
        one_step(path, system, 0)
        for w in ("w", "m", "v"):
            assert np.isnan(path.payload.vector(0, w)).all()


def test_registers_are_empty_after_a_step():
    path, system, _ = start("on_die")
    one_step(path, system, 0)
    assert path.payload.registers == {}
    assert all(not waiting for waiting in path.payload.gradients.values())


def test_a_value_that_is_not_read_back_is_a_nan():
    """Computing on memory whose page has been programmed gives NaN, not a stale value."""
    path, system, arithmetic = start("host_offload")
    one_step(path, system, 0)
    memory = {name: path.payload.vector(0, name)[:100].copy() for name in ("w", "m", "v")}
    arithmetic.apply(arithmetic.coefficients(1), 0, 100, memory, path.trace.gradient(1)[:100])
    assert np.isnan(memory["w"]).all()


@pytest.mark.parametrize("name", UPDATING)
def test_the_initial_weights_come_from_flash_too(name):
    """Flipped before the first step: the change is there at the end."""
    path, system, arithmetic = start(name)
    flip(path, "w", 77)
    for i in range(STEPS):
        one_step(path, system, i)
    different = np.flatnonzero(bits(path.finish()) != bits(arithmetic.reference(STEPS)))
    assert different.tolist() == [77]
