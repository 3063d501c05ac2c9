"""Every bad trace is refused with one line that names the file and the key."""

import dataclasses
from pathlib import Path

import h5py
import numpy as np
import pytest

from ondie.traces import TraceError, load, read, write
from ondie.traces.hdf5 import HEADER
from ondie.traces.narrow import pack
from tests.traces.samples import sample, sample_file


def refused(path: Path, *words: str) -> str:
    """The one line with which reading (and then every vector) is refused."""
    with pytest.raises(TraceError) as caught:
        trace = read(path)
        for i, step in enumerate(trace.steps):
            if not step.skipped:
                trace.gradient(i)
        trace.weights("initial"), trace.weights("final"), trace.states(), trace.buffers()
    line = str(caught.value)
    assert "\n" not in line and str(path) in line
    for word in words:
        assert word in line, line
    return line


@pytest.fixture
def path(tmp_path):
    return sample_file(tmp_path)


def edit(path: Path):
    return h5py.File(path, "r+")


def replace(file: h5py.File, key: str, data: object) -> None:
    attrs = dict(file[key].attrs)
    del file[key]
    file[key] = data
    file[key].attrs.update(attrs)


def test_missing_file(tmp_path):
    refused(tmp_path / "no.h5", "no such file")


def test_a_folder(tmp_path):
    (tmp_path / "dir.h5").mkdir()
    refused(tmp_path / "dir.h5", "not a file")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89HDF\r\n\x1a\n", bytes(4096)])
def test_not_hdf5(tmp_path, content):
    (tmp_path / "x.h5").write_bytes(content)
    refused(tmp_path / "x.h5")


def test_another_hdf5_file(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["data"] = np.arange(10)
    refused(tmp_path / "x.h5", "format", "ondie-trace")


@pytest.mark.parametrize("version", [0, 2, "1", 1.5])
def test_another_version(path, version):
    with edit(path) as file:
        file.attrs["schema"] = version
    refused(path, "schema", repr(version), "must be 1, the version")


@pytest.mark.parametrize("key", [*HEADER, "schema", "format"])
def test_a_missing_attribute(path, key):
    with edit(path) as file:
        del file.attrs[key]
    refused(path, key)


@pytest.mark.parametrize("key", HEADER)
def test_an_attribute_of_another_kind(path, key):
    with edit(path) as file:
        file.attrs[key] = 1.5
    refused(path, key, "1.5")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("payload", "some"),
        ("timing_source", "guessed"),
        ("op", "lion"),
        ("form", "x"),
        ("gradient_dtype", "float64"),
        ("groups", 0),
        ("groups", -2),
        ("samples_per_step", 0),
        ("bytes_per_sample", -1),
        ("macs_forward", -1),
        ("dataset_samples", -5),
        ("private_samples", 101),
        ("macs_backward", 2**63),
    ],
)
def test_an_attribute_out_of_range(path, key, value):
    with edit(path) as file:
        file.attrs[key] = np.uint64(value) if value == 2**63 else value
    refused(path, key, str(value))


def test_a_synthetic_trace_cannot_have_payload(path):
    with edit(path) as file:
        file.attrs["timing_source"] = "synthetic"
    refused(path, "payload", "synthetic")


def paths_inside(path: Path) -> list[str]:
    keys: list[str] = []
    with h5py.File(path) as file:
        file.visititems(lambda key, item: keys.append(key))
    return keys


OPTIONAL = {"attributes", "buffers", "states", "weights", "steps/ready_s", "steps/fused",
            "steps/order"}  # fmt: skip


def test_every_key_is_needed_or_known_to_be_optional(tmp_path):
    keys = paths_inside(sample_file(tmp_path, "all.h5"))
    assert len(keys) > 30
    for number, key in enumerate(keys):
        path = sample_file(tmp_path, f"{number}.h5")
        with edit(path) as file:
            del file[key]
        if key in OPTIONAL or key.split("/")[0] in ("buffers", "states", "weights"):
            read(path)
        elif key.startswith("steps/hyper/"):
            assert key.split("/")[-1] not in read(path).steps[0].hyper[0]
        else:
            refused(path, key.split("/")[0])


@pytest.mark.parametrize("key", ["steps/loss", "steps/count", "tensors/offset", "steps/ready_s",
                                 "steps/hyper/lr", "steps/fused"])  # fmt: skip
@pytest.mark.parametrize("how", ["short", "kind", "flat"])
def test_a_column_of_another_size_or_kind(path, key, how):
    with edit(path) as file:
        data = file[key][()]
        if how == "flat":
            data = data.reshape(-1)[:1].reshape((1,) * (data.ndim + 1))
        replace(file, key, data[:-1] if how == "short" else data.astype("S4")
                if how == "kind" else data)  # fmt: skip
    refused(path, key)


@pytest.mark.parametrize(
    ("key", "at", "value", "word"),
    [
        ("tensors/size", 0, -12, "'a'"),
        ("tensors/size", 0, 2**61, "'a'"),
        ("tensors/offset", 1, 11, "'b'"),
        ("tensors/offset", 1, -1, "'b'"),
        ("tensors/group", 1, 2, "'b'"),
        ("tensors/group", 1, -1, "'b'"),
        ("tensors/ready_order", 1, 9, "'b'"),
        ("tensors/trainable", 1, False, "'b'"),
        ("tensors/name", 1, "a", "'a'"),
        ("tensors/dtype", 1, "float64", "float64"),
        ("steps/index", 1, 7, "step 1"),
        ("steps/samples", 1, 0, "step 1"),
        ("steps/samples", 1, -4, "step 1"),
        ("steps/count", 1, 0, "step 1"),
        ("steps/forward_s", 1, -0.5, "step 1"),
        ("steps/backward_s", 1, np.nan, "step 1"),
        ("steps/optimizer_s", 1, np.inf, "step 1"),
        ("steps/scale", 1, 0.0, "step 1"),
        ("steps/scale", 1, np.nan, "step 1"),
        ("steps/clip_coefficient", 1, 1.5, "step 1"),
        ("steps/gradient_norm", 1, -1.0, "step 1"),
        ("steps/skipped", 1, True, "step 1"),
        ("steps/hyper/lr", (1, 0), np.inf, "step 1"),
        ("steps/ready_s", (1, 0), -1.0, "step 1"),
        ("steps/ready_s", (1, 0), np.inf, "step 1"),
        ("steps/gradient_sha256", 1, "00" * 32, "step 1"),
    ],
)
def test_a_value_that_cannot_be(path, key, at, value, word):
    with edit(path) as file:
        file[key][at] = value
    refused(path, word, key.split("/")[-1].split("_")[-1])


def test_a_negative_or_overflowing_shape(path):
    with edit(path) as file:
        file["tensors/shape"][0] = [-3, 4]
    refused(path, "'a'", "shape")
    with edit(path) as file:
        file["tensors/shape"][0] = [2**62, 2**62]
    refused(path, "'a'", "size")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_names_step_and_tensor(path, value):
    with edit(path) as file:
        file["gradients/1/values"][14] = value  # element 2 of tensor b, which starts at 12
    line = refused(path, "step 1", "'b'", "element 2")
    assert str(np.float32(value)) in line


def test_a_damaged_gradient_is_found_by_its_hash(path):
    with edit(path) as file:
        file["gradients/2/values"][0] += 1
    refused(path, "step 2", "sha256")


@pytest.mark.parametrize("key", ["gradients/0/values", "weights/final", "states/m"])
def test_a_vector_of_another_length(path, key):
    with edit(path) as file:
        replace(file, key, file[key][()][:-1])
    refused(path, key, "317")


@pytest.mark.parametrize("attribute", ["storage", "shift"])
def test_a_vector_without_its_attributes(path, attribute):
    with edit(path) as file:
        del file["weights/initial"].attrs[attribute]
    refused(path, "weights/initial", attribute)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("storage", "int8"),
        ("storage", "float16"),
        ("storage", 3),
        ("shift", [1, 2]),
        ("shift", [9999]),
    ],
)
def test_a_vector_with_other_storage_or_shift(tmp_path, attribute, value):
    half = np.ones(317, np.float16)
    path = sample_file(tmp_path, steps=1, gradient=half.astype(np.float32))
    with edit(path) as file:
        key = "weights/initial" if attribute == "storage" else "gradients/0/values"
        file[key].attrs[attribute] = value
    refused(path, key)


def test_a_payload_that_should_not_be_there(path):
    with edit(path) as file:
        file.attrs["payload"] = "none"
    refused(path, "gradients")


def test_a_name_with_a_line_break_stays_on_one_line(tmp_path):
    path = sample_file(tmp_path)
    with edit(path) as file:
        file["tensors/name"][0] = "a\nb"
        file["tensors/size"][0] = 3
    refused(path, r"a\nb")


@pytest.mark.parametrize("text", ["gpt10b", "gpt-10B", "mobilenet", "nasnet"])
def test_an_unknown_name_names_the_nearest(text):
    near = {"gpt10b": "gpt-10b", "gpt-10B": "gpt-10b", "mobilenet": "mobilenetv2",
            "nasnet": "nasnet-mobile"}[text]  # fmt: skip
    with pytest.raises(TraceError, match=f"{text}.*{near}"):
        load(text)


def test_a_path_is_not_taken_for_a_name(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        load(str(tmp_path / "gpt-10b"))


@pytest.mark.parametrize("name", ["x.txt", "missing/x.h5", "dir.h5"])
def test_a_target_that_cannot_be_written(tmp_path, name):
    (tmp_path / "dir.h5").mkdir()
    with pytest.raises(TraceError, match=name):
        write(tmp_path / name, sample())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dir.h5"]


def test_an_inconsistent_trace_cannot_even_be_made():
    with pytest.raises(TraceError, match="memory: op is 'lion'"):
        sample(op="lion")
    with pytest.raises(TraceError, match="steps"):
        sample(steps=0)
    with pytest.raises(TraceError, match="hyper"):
        sample(groups=3)


def test_a_wrong_vector_in_memory_is_refused():
    trace = sample()
    short = dataclasses.replace(trace.source, gradients={0: np.zeros(3, np.float32)})
    with pytest.raises(TraceError, match=r"float32\[317\]"):
        dataclasses.replace(trace, source=short).gradient(0)


@pytest.mark.parametrize("key", ["steps/forward_s", "tensors/name", "weights/final", "states/m"])
def test_a_changed_byte_of_stored_data_is_found_by_its_checksum(path, key):
    with h5py.File(path) as file:
        chunk = file[key].id.get_chunk_info(0)
    changed = bytearray(path.read_bytes())
    changed[chunk.byte_offset + chunk.size // 2] ^= 1
    path.write_bytes(changed)
    refused(path)


def cuts(size: int, how_many: int) -> list[int]:
    return sorted({*range(0, 600, 37), *np.linspace(0, size - 1, how_many).astype(int).tolist()})


def test_a_file_cut_anywhere_is_refused(tmp_path, counts):
    whole = sample_file(tmp_path).read_bytes()
    path = tmp_path / "cut.h5"
    for size in cuts(len(whole), counts(100, 2000)):
        path.write_bytes(whole[:size])
        refused(path)


def test_a_byte_changed_anywhere_is_refused_or_harmless(tmp_path, counts, rng):
    """No change of one byte may end in anything but a trace or one line."""
    whole = sample_file(tmp_path).read_bytes()
    path = tmp_path / "changed.h5"
    refusals = 0
    for at in rng.integers(0, len(whole), counts(100, 500)):
        changed = bytearray(whole)
        changed[at] ^= int(rng.integers(1, 256))
        path.write_bytes(changed)
        try:
            trace = read(path)
            for i in range(len(trace.steps)):
                trace.gradient(i)
            trace.weights("initial"), trace.states(), trace.buffers()
        except TraceError as error:
            assert "\n" not in str(error)
            refusals += 1
    assert refusals > 0


def test_packing_what_is_not_finite_keeps_it():
    vector = np.array([1, np.nan, np.inf, -0.0], np.float32)
    assert pack(vector, [0]).values.tobytes() == vector.tobytes()
