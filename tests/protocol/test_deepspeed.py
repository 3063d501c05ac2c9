"""Is a DeepSpeed configuration read as DeepSpeed reads it, and refused in one line where it is
wrong?

FACTS used: DeepSpeed's defaults: sub_group_size 1e9, aio 1 MiB blocks, queue depth 8, 1 thread,
single_submit false, overlap_events true; pipeline_read and pipeline_write off; buffers 4 and 5.
"""

import json

import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.paths.offload.deepspeed_config import configured
from ondie.emu.paths.offload.options import Offload
from ondie.emu.units import InputError
from ondie.traces import TraceError
from ondie.traces.deepspeed import KEYS, SILENT, read_deepspeed
from tests.smoke.commands import here, refused

NVME = {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}}


@pytest.fixture
def file(tmp_path):
    """A configuration with NVMe offload and more sections, as a file."""

    def make(zero=NVME, **sections):
        path = tmp_path / "ds_config.json"
        path.write_text(json.dumps({"zero_optimization": zero, **sections}))
        return path

    return make


def test_defaults(file):
    cfg, options, format = configured(load_preset("optimstore-r1"), file())
    assert format == "fp32"
    assert options == Offload(buffers=4, threads=1, in_dram_below=1 << 20, align=1024)
    assert (cfg.host.io_block_bytes, cfg.host.io_queue_depth) == (1 << 20, 8)
    assert cfg.host.subgroup_params == 10**9
    assert cfg.leaf("host.io_block").ref == "DeepSpeed configuration"


def test_every_key_that_is_known_counts(file):
    """One value each that is not the default."""
    zero = {
        "stage": 3, "sub_group_size": 1e8,
        "offload_optimizer": {
            "device": "nvme", "buffer_count": 12, "pipeline_read": True, "pipeline_write": True,
            "ratio": 0.5, "fast_init": True, "pin_memory": True,
        },
        "offload_param": {"device": "nvme", "buffer_count": 7, "max_in_cpu": 1e6},
    }  # fmt: skip
    aio = {"block_size": 2097152, "queue_depth": 32, "thread_count": 4, "overlap_events": False}
    bf16 = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    path = file(zero, aio=aio, bf16=bf16, activation_checkpointing={"cpu_checkpointing": True})
    cfg, o, format = configured(load_preset("optimstore-r1"), path)
    assert format == "bf16_all"
    (remark,) = o.remarks
    assert "ratio is 0.5" in remark and "the host's CPU updates them" in remark
    assert o == Offload(
        parameters=True, checkpointing=True, pipeline_read=True,
        pipeline_write=True, buffers=12, parameter_buffers=7, parameter_buffer=100_000_000,
        parameters_in_dram=1_000_000, ratio=0.5, threads=4, overlap_events=False,
        in_dram_below=2 << 20, align=4096, remarks=o.remarks,
    )  # fmt: skip
    assert (cfg.host.io_block_bytes, cfg.host.io_queue_depth) == (2 << 20, 32)
    assert cfg.host.subgroup_params == 100_000_000


@pytest.mark.parametrize(
    ("sections", "format"),
    [
        ({"bf16": {"enabled": True}}, "fp32"),
        ({"fp16": {"enabled": True}}, "fp32"),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "bf16_master"),
        ({"bf16": {"enabled": False, "bf16_master_weights_and_grads": True}}, "fp32"),
    ],
)
def test_formats_have_one_name(file, sections, format):
    """What DeepSpeed keeps on NVMe in 16 bits, as `--format` names it."""
    assert configured(load_preset("optimstore-r1"), file(**sections))[2] == format


def test_the_newer_name_of_threads_goes_first(file):
    path = file(aio={"thread_count": 2, "intra_op_parallelism": 6})
    assert configured(load_preset("optimstore-r1"), path)[1].threads == 6


def test_set_goes_before_the_file(file):
    cfg = load_preset("optimstore-r1", ["host.io_queue_depth=77"])
    cfg, *_ = configured(cfg, file(aio={"queue_depth": 3, "block_size": 262144}))
    assert (cfg.host.io_queue_depth, cfg.host.io_block_bytes) == (77, 262144)


def test_states_on_the_cpu_stay_in_dram(file):
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    _, o, _ = configured(load_preset("optimstore-r1"), file(zero))
    assert o.ratio == 0 and any("stay in host DRAM" in remark for remark in o.remarks)


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("zero_optimization", "sub_group_size", "auto", ['"auto"', "1000000000"]),
        ("aio", "queue_depth", "auto", ['aio.queue_depth is "auto"', "8"]),
        ("aio", "queu_depth", 9, ["aio.queu_depth", "nearest known key is queue_depth"]),
        ("zero_optimization", "sub_group", 1, ["zero_optimization.sub_group", "ignored"]),
        ("aio", "use_gds", True, ["aio.use_gds", "host memory"]),
        ("aio", "single_submit", True, ["aio.single_submit", "host.io_submit"]),
        ("fp16", "fp16_master_weights_and_grads", True, ["fp16_master", "take 16 bits"]),
    ],
)
def test_remarks(file, section, key, value, words):
    sections = {section: {key: value, **({"enabled": True} if section == "fp16" else {})}}
    if section == "zero_optimization":
        path = file({**NVME, key: value})
    else:
        path = file(**sections)
    _, o, _ = configured(load_preset("optimstore-r1"), path)
    assert any(all(word in remark for word in words) for remark in o.remarks), o.remarks
    assert str(path) not in " ".join(o.remarks)  # results name no path


def test_accumulated_gradients_are_remarked(file):
    found = read_deepspeed(file(gradient_accumulation_steps=8))
    assert any("gradient_accumulation_steps is 8" in remark for remark in found.remarks)


def changed(section, **keys):
    zero = json.loads(json.dumps(NVME))
    if section.startswith("zero_optimization"):
        place = zero
        for part in section.split(".")[1:]:
            place = place.setdefault(part, {})
        place.update(keys)
        return {"zero_optimization": zero}
    return {"zero_optimization": zero, section: keys}


WRONG = [
    (changed("aio", queue_depth="8"), ["aio.queue_depth", '"8"', "whole number of at least 1"]),
    (changed("aio", queue_depth=0), ["aio.queue_depth = 0", "at least 1"]),
    (changed("aio", queue_depth=True), ["aio.queue_depth = true", "whole number"]),
    (changed("aio", block_size=1.5), ["aio.block_size = 1.5", "whole number"]),
    (changed("aio", block_size=1e300), ["aio.block_size = 1e+300", "whole number"]),
    (changed("aio", block_size=1000), ["host.io_block", "1 KB", "multiple of the page"]),
    (changed("aio", overlap_events=1), ["aio.overlap_events = 1", "true or false"]),
    (changed("zero_optimization", sub_group_size=-1), ["sub_group_size = -1", "at least 1"]),
    (changed("zero_optimization", stage="three"), ['stage = "three"', "at least 0"]),
    (changed("zero_optimization", stage=2), ["stage = 2", "must be 3"]),
    (changed("zero_optimization.offload_optimizer", ratio=1.5), ["ratio = 1.5", "0 to 1"]),
    (changed("zero_optimization.offload_optimizer", device="disk"), ['device = "disk"', "nvme"]),
    (changed("zero_optimization.offload_optimizer", device="none"), ['"none"', 'must be "nvme"']),
    (changed("zero_optimization.offload_optimizer", buffer_count=0), ["buffer_count = 0"]),
    ({"zero_optimization": {"offload_optimizer": 7}}, ["offload_optimizer = 7", "an object"]),
    ({"zero_optimization": {"stage": 3}}, ["offload_optimizer.device", '"none"']),
    ({"zero_optimization": []}, ["zero_optimization = []: must be an object"]),
    ({"aio": {}}, ["zero_optimization is missing"]),
    ([1], ["[1]; must be an object with zero_optimization"]),
    (
        {**changed("bf16", enabled=True), "fp16": {"enabled": True}},
        ["bf16.enabled and fp16.enabled", "enable one"],
    ),
    (
        changed("bf16", enabled=True, bf16_optimizer_states=True),
        ["bf16_optimizer_states", "bf16_master_weights_and_grads = true"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("content", "words"), WRONG)
def test_what_is_wrong_is_one_line(tmp_path, content, words):
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(content))
    with pytest.raises((TraceError, InputError)) as error:
        configured(load_preset("optimstore-r1"), path)
    text = str(error.value)
    assert text.startswith(str(path)) and "\n" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["line 1, column 2", "not JSON"]),
        ("", ["line 1, column 1", "not JSON"]),
        ('{"aio": {}, "aio": {}}', ["'aio'", "twice"]),
        ("[" * 100_000, ["nested too deeply"]),
        (b"\xff\xfe", ["not UTF-8 text"]),
    ],
)
def test_what_is_no_json(tmp_path, text, words):
    path = tmp_path / "ds_config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TraceError) as error:
        read_deepspeed(path)
    assert all(word in str(error.value) for word in words)


def test_the_command_refuses_and_writes_nothing(capsys, tmp_path, file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = file(aio={"queue_depth": "eight"})
    words = ("compare", "gpt-small", "--ds-config", path, "--out", tmp_path / "out")
    refused(here(capsys, *words), "aio.queue_depth", '"eight"')
    refused(here(capsys, *words[:3], tmp_path / "none.json"), "none.json", "cannot be read")
    for knob, reason in (
        ("ratoi=1", "nearest: ratio"), ("ratio", "KEY=VALUE"), ("ratio=2", "0 to 1"),
        ("threads=many", "whole number"), ("parameters=yes", "true or false"),
        ("storage=bf16_all", "of parameters"), ("threads=0", "at least 1"),
    ):  # fmt: skip
        refused(here(capsys, "compare", "gpt-small", "--offload", knob), "--offload", reason)
    refused(here(capsys, "compare", "gpt-small", "--format", "bf16_al"), "format", "bf16_all")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ds_config.json"]


def test_the_command_takes_both(capsys, tmp_path, file):
    """The file's remark is printed, its options, its format and the knob after it are in the
    result."""
    bf16 = {"enabled": True, "bf16_master_weights_and_grads": True}
    path = file(aio={"queue_depth": 16, "thread_count": 3, "nonsense": 1}, bf16=bf16)
    out = tmp_path / "out"
    done = here(
        capsys, "compare", "gpt-small", "--steps", 1, "--paths", "host_offload", "--no-swing",
        "--ds-config", path, "--offload", "in_dram_below=0", "--out", out,
    )  # fmt: skip
    assert done.code == 0 and "aio.nonsense is unknown to ondie" in " ".join(done.out.split())
    result = json.loads((out / "result.json").read_text())
    found = result["options"]["offload"]
    assert (found["threads"], found["in_dram_below"], found["align"]) == (3, 0, 3072)
    assert result["options"]["format"] == "bf16_master"
    (path_,) = result["paths"]
    assert path_["weights"]["equal_bits_to_reference"] == path_["weights"]["elements"]
    assert result["configuration"]["host"]["io_queue_depth"]["value"] == 16
    assert str(tmp_path) not in (out / "result.json").read_text()


def test_a_key_is_known_once():
    assert KEYS.keys() == SILENT.keys() | {"zero_optimization"}
    for section, keys in KEYS.items():
        assert not keys.keys() & set(SILENT[section])
