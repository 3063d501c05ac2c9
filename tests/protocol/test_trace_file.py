"""What is written to a trace file is what is read from it."""

import dataclasses

import h5py
import numpy as np
import pytest

from ondie.traces import Memory, Step, Tensor, TraceError, info, read, write
from tests.traces.samples import sample, sample_file


def same_step(one: Step, other: Step) -> None:
    for field in dataclasses.fields(Step):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right)
        else:
            assert left == right, field.name
            assert type(left) is type(right), field.name


def test_everything_survives_the_file(tmp_path):
    before = sample(steps=4, skipped=(2,))
    write(tmp_path / "t.h5", before)
    after = read(tmp_path / "t.h5")
    for field in dataclasses.fields(before):
        if field.name not in ("steps", "source", "digest", "origin"):
            assert getattr(before, field.name) == getattr(after, field.name), field.name
    for one, other in zip(before.steps, after.steps, strict=True):
        same_step(one, other)
    for i in (0, 1, 3):
        np.testing.assert_array_equal(before.gradient(i), after.gradient(i))
        assert after.gradient(i).dtype == np.float32
    for which in ("initial", "final"):
        np.testing.assert_array_equal(before.weights(which), after.weights(which))
    np.testing.assert_array_equal(before.states()["m"], after.states()["m"])
    assert not after.states()["v"].any()  # not recorded: zeros
    assert {k: v.tolist() for k, v in after.buffers().items()} == {"mean": [0, 1, 2], "count": 7}


def test_loss_and_norm_may_be_unknown_and_ready_times_absent(tmp_path):
    bare = dataclasses.replace(
        sample().steps[0], loss=None, gradient_norm=None, ready_s=None, order=None, fused=()
    )
    trace = sample(steps=1)
    write(tmp_path / "t.h5", dataclasses.replace(trace, steps=(bare,)))
    after = read(tmp_path / "t.h5").steps[0]
    assert (after.loss, after.gradient_norm, after.ready_s, after.order) == (None,) * 4


def test_a_skipped_step_has_no_gradient(tmp_path):
    trace = read(sample_file(tmp_path, skipped=(1,)))
    with pytest.raises(TraceError, match=r"sample.h5: step 1: no gradient is recorded"):
        trace.gradient(1)


def test_steps_outside_are_named(tmp_path):
    with pytest.raises(TraceError, match="step 3: this trace has steps 0 to 2"):
        read(sample_file(tmp_path)).gradient(3)


def test_without_payload_gradients_are_refused_and_states_are_zero(tmp_path):
    write(tmp_path / "t.h5", sample(payload="none", source=Memory()))
    trace = read(tmp_path / "t.h5")
    with pytest.raises(TraceError, match="payload is 'none'"):
        trace.gradient(0)
    assert trace.weights("initial") is None
    assert trace.states()["v"].shape == (317,)


def test_group_ranges_cover_the_flat_vector():
    # a is group 0, b and c are group 1: 12 | 5 + 300
    assert sample().group_ranges() == [(0, 12, 0), (12, 317, 1)]


def test_locate_names_the_tensor_of_an_element():
    assert sample().locate(11) == ("a", 11)
    assert sample().locate(12) == ("b", 0)
    assert sample().locate(316) == ("c", 299)


def test_scalar_and_empty_tensors_keep_their_shapes(tmp_path):
    shapes = (
        Tensor("scalar", (), "float32", 0, 1, True, 0, 0),
        Tensor("empty", (0, 3), "float32", 1, 0, True, 0, 1),
        Tensor("row", (316,), "float32", 1, 316, True, 1, 2),
        Tensor("frozen", (1, 1), "float32", -1, 1, False, -1, -1),
    )
    write(tmp_path / "t.h5", sample(tensors=shapes))
    assert read(tmp_path / "t.h5").tensors == shapes
    assert read(tmp_path / "t.h5").group_ranges() == [(0, 1, 0), (1, 317, 1)]


def test_the_same_trace_gives_the_same_bytes(tmp_path):
    one, other = sample_file(tmp_path, "one.h5"), sample_file(tmp_path, "two.h5")
    assert one.read_bytes() == other.read_bytes()
    assert read(one).sha256 == read(other).sha256


def test_raw_sixteen_bit_gradients_travel_too(tmp_path):
    raw = {1: np.arange(317, dtype=np.float16)}
    trace = sample()
    memory = dataclasses.replace(trace.source, raw_gradients=raw)
    write(tmp_path / "t.h5", dataclasses.replace(trace, source=memory))
    after = read(tmp_path / "t.h5")
    assert after.raw_gradient(0) is None
    np.testing.assert_array_equal(after.raw_gradient(1), raw[1])


def test_a_scaled_fp16_gradient_is_stored_as_the_accelerators_bytes(tmp_path):
    # loss scale 2**10: FP16 values divided by 1024 are stored as the FP16 values themselves
    half = np.random.default_rng(1).normal(size=317).astype(np.float16)
    gradient = half.astype(np.float32) / 1024
    trace = sample(steps=1, gradient=gradient)
    step = dataclasses.replace(trace.steps[0], scale=1024.0)
    write(tmp_path / "t.h5", dataclasses.replace(trace, steps=(step,)))
    with h5py.File(tmp_path / "t.h5") as file:
        stored = file["gradients/0/values"]
        assert stored.dtype == np.float16
        assert stored.attrs["shift"].tolist() == [10]
        assert stored[()].tobytes() == half.tobytes()
    np.testing.assert_array_equal(read(tmp_path / "t.h5").gradient(0), gradient)


def test_info_is_plain_and_complete(tmp_path):
    import json

    told = info(read(sample_file(tmp_path, skipped=(1,))))
    assert json.loads(json.dumps(told)) == told
    assert (told["params"], told["tensors"], told["trainable_tensors"]) == (317, 4, 3)
    assert (told["steps"], told["skipped_steps"]) == (3, 1)
    assert told["gradient_storage"] == {"float32": 2}
    assert told["file_bytes"] == (tmp_path / "sample.h5").stat().st_size
    assert told["sha256"] == read(tmp_path / "sample.h5").sha256
