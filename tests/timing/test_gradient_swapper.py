"""Gradients between backward and NVMe: does the backward pass wait for what DeepSpeed's swapper
waits for, and does the update begin with what is left?

Times by hand: one drive that writes 2 GB/s (969 us + 2 x 39.7 us for 2 MiB), copies at 8 GB/s.
"""

import dataclasses

import numpy as np
import pytest

from ondie.emu.analysis.compare import run_path, run_sampled
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import plan_rows
from ondie.emu.paths.base import BACKWARD, GRADIENTS, Options, Rows
from ondie.emu.paths.offload.aio import GradientSwapper, PinnedBuffers
from ondie.emu.paths.offload.options import Offload
from ondie.emu.validate.synthetic_models import model

PARAMS = 200_000_000
"""0.8 GB of gradient: 0.1 s to copy, 0.4 s to write."""
BACKWARD_S = 0.1


def config(group: int = 20_000_000, **changes):
    settings = {"host.subgroup_params": group, "host.gradient_copy": "8 GB/s", **changes}
    return load_preset("smartssd", tuple(f"{key}={value}" for key, value in settings.items()))


def phases(path: str, buffers: int | None, cfg=None) -> dict[str, float]:
    flat = model("adam", PARAMS)
    step = dataclasses.replace(flat.steps[0], forward_s=0.01, backward_s=BACKWARD_S)
    trace = dataclasses.replace(flat, steps=(step,))
    options = Options(offload=Offload(buffers=buffers))
    found = run_path(path, cfg or config(), trace, options, steps=1, payload=False)
    return found.ledger.phases_s


@pytest.mark.parametrize("path", ["smart_base", "host_offload"])
def test_enough_buffers_leave_the_writes_to_the_update(path):
    """12 buffers of 80 MB: backward is 0.1 s of compute and 0.1 s of copies. In the 0.18 s after
    the first buffer is full, 0.36 of 0.8 GB are written; 0.22 s are left for the first swap-in."""
    found = phases(path, 12)
    assert found["backward"] == pytest.approx(0.2, rel=0.01)
    assert found["gradients"] == pytest.approx(0.4 - 0.18, rel=0.08)


@pytest.mark.parametrize("path", ["smart_base", "host_offload"])
def test_backward_waits_when_no_buffer_is_free(path):
    """4 buffers of 80 MB: full at 0.08 s. Writes begin at 0.02 s and end at 0.18 s, so backward
    waits 0.1 s; after 4 more buffers, 0.08 s later, it waits until 0.36 s, and copies the last
    two until 0.40 s. The first of them was written meanwhile."""
    found = phases(path, 4)
    assert found["backward"] == pytest.approx(0.40, rel=0.05)
    assert found["gradients"] == pytest.approx(0.06, rel=0.35)


def test_one_buffer_is_no_overlap():
    """Every buffer is copied and then written: 0.1 + 0.1 + 0.4 s, of which the last write, 0.04 s,
    is left for the update."""
    found = phases("smart_base", 1)
    assert found["backward"] == pytest.approx(0.2 + 0.36, rel=0.05)
    assert found["gradients"] == pytest.approx(0.04, rel=0.3)


def test_a_model_in_one_sub_group_is_written_only_at_the_first_swap_in():
    found = phases("smart_base", 4, config(1_000_000_000))
    assert found["backward"] == pytest.approx(0.2, rel=0.01)
    assert found["gradients"] == pytest.approx(0.4, rel=0.03)


def test_the_step_is_no_shorter_with_fewer_buffers():
    steps = [phases("smart_base", buffers)["step"] for buffers in (1, 2, 4, 10)]
    assert steps == sorted(steps, reverse=True) and steps[0] > steps[-1] + 0.1


def test_both_paths_of_the_baseline_agree():
    """One drive, the same swapper, serial sub-groups: RAID 0 of one, and a file of DeepSpeed's."""
    base, offload = phases("smart_base", 4), phases("host_offload", 4)
    assert offload["step"] == pytest.approx(base["step"], rel=0.02)


def test_without_a_rate_copies_take_no_time():
    found = phases("smart_base", 10, config(**{"host.gradient_copy": 0}))
    assert found["backward"] == pytest.approx(0.1, rel=0.01)


def test_blocks_go_to_buffers_in_the_order_in_which_they_are_ready():
    sent = []

    def send(out, blocks, after):
        sent.append((blocks.tolist(), after))
        out.add(len(blocks), resource=plan_rows.NVME, phase=GRADIENTS, after0=after)

    size, ready = np.full(10, 100), np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 2])
    out = Rows()
    swapper = GradientSwapper(PinnedBuffers(2, 250, 0), size, ready, send)
    row = out.one(resource=plan_rows.ACCELERATOR, phase=BACKWARD)
    for segment in range(3):
        row = swapper.after_segment(out, segment, row)
        row = out.one(resource=plan_rows.ACCELERATOR, phase=BACKWARD, after0=row)
    swapper.flush(out, row)
    assert [blocks for blocks, _ in sent] == [[0, 1, 2], [3, 4], [5, 6, 7], [8, 9]]
    rows = out.take()
    fences = rows[rows["resource"] == plan_rows.FENCE]["id"].tolist()
    # two buffers: backward waits before the third, and not before the second or the fourth
    assert len(fences) == 1 and fences[0] in rows["after0"]
    assert sent[1][1] < fences[0] < sent[2][1]


def test_a_piece_of_a_model_has_pieces_of_its_buffers(counts):
    """Sampling: the same share of the gradient fits in the buffers of a piece."""
    billions = counts(1, 2)
    flat = model("adam", billions * 1_000_000_000)
    step = dataclasses.replace(flat.steps[0], forward_s=0.05 * billions, backward_s=0.5 * billions)
    trace = dataclasses.replace(flat, steps=(step,))
    options = Options(offload=Offload(buffers=6))
    cfg = config(100_000_000)
    whole = run_path("host_offload", cfg, trace, options, steps=1, payload=False).ledger.phases_s
    sampled = run_sampled("host_offload", cfg, trace, options).ledger.phases_s
    for name in ("backward", "gradients", "step"):
        assert sampled[name] == pytest.approx(whole[name], rel=0.05), name


def test_writes_of_the_fpga_have_a_rate_of_their_own():
    """Peer to peer: 1 GB/s of writes next to 2.78 GB/s of reads; without a rate they share one."""
    times = {}
    for rate in (0, "1.63 GB/s", "1 GB/s"):
        cfg = config(**{"isp.flash_write": rate})
        times[rate] = run_path(
            "smart_update", cfg, model("adam", PARAMS), Options(), steps=1, payload=False
        ).ledger.update_s
    assert times["1 GB/s"] - times["1.63 GB/s"] == pytest.approx(2.4 - 2.4 / 1.63, rel=0.05)
