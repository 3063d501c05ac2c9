"""Do weights end bit for bit on the reference however host offload is told to move them?"""

import numpy as np
import pytest

from ondie.emu.analysis.path_choice import PATHS
from ondie.emu.analysis.weight_check import bits
from ondie.emu.engine.core.totals import StepClock
from ondie.emu.paths.base import Options
from ondie.emu.paths.layout.formats import FORMATS
from ondie.emu.paths.offload.options import Offload
from ondie.emu.paths.optimizer_step import Arithmetic
from ondie.kernels.cast import narrow
from tests.faults.test_flipped_byte import LEAVES, one_step
from tests.state.models import model
from tests.timing.harness import preset

STEPS = 3
KNOBS = {
    "threads": Offload(threads=3),
    "batches": Offload(threads=2, overlap_events=False),
    "read ahead": Offload(pipeline_read=True),
    "write behind": Offload(pipeline_write=True),
    "few buffers": Offload(buffers=4),
    "half in DRAM": Offload(ratio=0.5),
    "all in DRAM": Offload(ratio=0.0),
    "small tensors in DRAM": Offload(in_dram_below=9_000, align=1024),
    "parameters": Offload(parameters=True, checkpointing=True),
    "parameters in files": Offload(parameters=True, in_dram_below=4_000, parameter_buffers=2),
    "parameters, threads": Offload(parameters=True, threads=2, pipeline_read=True),
    "half in DRAM, small tensors too": Offload(ratio=0.5, in_dram_below=4_000),
    "some parameters in DRAM": Offload(parameters=True, parameters_in_dram=9_000),
}


def start(offload, devices, path="host_offload", format="fp32", **changes):
    trace = model("adamw", STEPS)
    cfg = preset(LEAVES, system__devices=devices, **changes)
    made = PATHS[path](cfg, trace, Options(offload=offload, format=format))
    system, arithmetic = made.system(True, 0), Arithmetic(trace, format=format)
    made.prepare(system, arithmetic)
    return made, system, arithmetic


@pytest.mark.one_in(5)
@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("offload", KNOBS.values(), ids=KNOBS)
def test_bits_do_not_depend_on_the_knobs(offload, devices):
    ends_on_the_reference(offload, devices, "fp32")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("format", [f for f in FORMATS if f != "fp32"])
@pytest.mark.parametrize("knobs", ["parameters, threads", "half in DRAM, small tensors too"])
def test_bits_do_not_depend_on_the_knobs_in_any_format(format, knobs):
    """On three drives; sub-groups of 3,072 parameters (in codes 65,536: a page of scales, so that
    there is but one)."""
    ends_on_the_reference(KNOBS[knobs], 3, format)


def ends_on_the_reference(offload, devices, format):
    path, system, arithmetic = start(offload, devices, format=format)
    for i in range(STEPS):
        one_step(path, system, i)
    assert (bits(path.finish()) == bits(arithmetic.reference(STEPS))).all()


def test_what_stays_in_dram_is_not_on_flash():
    """Sub-groups of 3,072 parameters: six of them, so three with their states on NVMe. 16,881
    parameters; 7,665 stay, and nothing of them is in any page."""
    path, system, _ = start(Offload(ratio=0.5), 1)
    assert path.on_nvme == [(0, 3072), (3072, 6144), (6144, 9216)]
    one_step(path, system, 0)
    kept = path.payload.kept
    for name in ("w", "m", "v"):
        assert np.isnan(kept[name][:9216]).all() and not np.isnan(kept[name][9216:]).any()
    assert path.notes() == ["3 of 6 sub-groups stay in the host's DRAM."]


def test_small_tensors_and_sub_groups_stay():
    """Below 9,000 B: the last sub-group (1,521 x 4 B), and of the gradients whatever piece of
    tensors a (4,101), b (5,003) and c (7,777) in a sub-group of 3,072 is below 2,250."""
    path, _, _ = start(KNOBS["small tensors in DRAM"], 1)
    assert [e.stop for e in path.volume.regions["w"].extents] == [3072, 6144, 9216, 12288, 15360]
    cuts = [0, 3072, 4101, 6144, 9104, 9216, 12288, 15360]
    large = [(a, b) for a, b in zip(cuts, cuts[1:], strict=False) if 4 * (b - a) >= 9000]
    assert [(e.start, e.stop) for e in path.volume.regions["g"].extents] == large
    assert large == [(0, 3072), (6144, 9104), (9216, 12288), (12288, 15360)]
    path, _, _ = start(KNOBS["parameters in files"], 1)
    held = path.volume.regions["p"].extents
    assert 0 < sum(e.stop - e.start for e in held) < 16_881


def test_a_flipped_byte_on_the_second_drive_changes_its_weight():
    """Chunks of 1,024 parameters on three drives: parameter 1,500 is on drive 1."""
    path, system, arithmetic = start(Offload(), 3)
    one_step(path, system, 0)
    payload, region = path.payload, path.volume.regions["w"]
    payload.stores[1].flip(payload.ppn(1, region.lpn + (1500 - 1024) * 4 // 1024), 476 * 4 % 1024)
    for i in range(1, STEPS):
        one_step(path, system, i)
    wrong = np.flatnonzero(bits(path.finish()) != bits(arithmetic.reference(STEPS)))
    assert wrong.tolist() == [1500]


def test_the_models_parameters_are_the_weights_in_bf16():
    """In their pages after a step: the upper half of the FP32 weight, rounded to nearest even."""
    path, system, _ = start(Offload(parameters=True), 2)
    one_step(path, system, 0)
    weights = path.finish()
    word = bits(weights).astype(np.uint64)
    expected = ((word + 0x7FFF + (word >> 16 & 1)) >> 16).astype(np.uint16)
    for first, last, dev, at in path.volume.pieces("p", 0, len(weights)):
        page = path.volume.page
        lpns = range(at // page, -(-(at + 2 * (last - first)) // page))
        found = path.payload.moved.newest(dev, lpns).reshape(-1)
        assert (found.view(np.uint16)[: last - first] == expected[first:last]).all()


def test_bf16_weights_are_those_of_the_kernel_and_no_others():
    """16 bits a weight; nearly all differ from the FP32 run's, rounded."""
    path, system, arithmetic = start(Offload(), 1, format="bf16_all")
    assert path.finish().dtype == np.uint16
    for i in range(STEPS):
        one_step(path, system, i)
    c = system.totals(StepClock(system.phases, system.arrays.phase)).counters
    assert c["host_read_bytes"] == 8 * 16_881 * STEPS == c["host_write_bytes"]
    final = path.finish()
    wide = Arithmetic(path.trace).reference(STEPS)
    near = (final.astype(np.uint32) << 16).view(np.float32)
    assert (final != narrow(wide, "bfloat16")).any()
    assert np.abs(near - wide).max() < 0.05 * np.abs(wide).max()
    assert (final == arithmetic.reference(STEPS)).all()
