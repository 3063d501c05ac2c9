"""Does inference in the stores take the time that its stages give by hand, with each optimization
on and off?"""

import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.ndpipe import npe
from ondie.emu.ndpipe.architectures import network
from ondie.emu.ndpipe.servers import inference_constant, server
from ondie.emu.units import InputError

NET = network("resnet50")
FORWARD_US = 1e6 / 1198
"""Forward pass of ResNet50 on a T4, batch 256."""


@pytest.fixture(scope="module")
def cfg():
    return load_preset("gen4-tlc")


def infer(cfg, *names, stores=1, batch=16, photos=128):
    return npe.infer(NET, cfg, names, stores, photos, batch)


def test_without_optimizations_the_times_add_up(cfg):
    found = infer(cfg, batch=256, photos=512)
    load = found.work_us["load"]
    assert found.read_bytes == found.stored_bytes == 110_000
    assert 110_000 / 8e9 * 1e6 < load < 100  # PCIe 4.0 x4 at least
    assert 1e6 / found.photos_per_s == pytest.approx(load + 300 + 100 + 60 + FORWARD_US, rel=1e-6)
    assert found.bottleneck == "accelerator (features)"


def test_pipelining_leaves_the_slowest_processor(cfg):
    """That of all layers, or the cores, which decode, resize and normalize at the same time."""
    found = infer(cfg, "pipelining", batch=256, photos=512)
    assert 1e6 / found.photos_per_s == pytest.approx(FORWARD_US, rel=1e-6)
    fast = infer(cfg, "pipelining", "quantized", batch=256, photos=512)
    assert fast.bottleneck == "cores (decode)"
    assert 1e6 / fast.photos_per_s == pytest.approx(300 + 100 + 60, rel=1e-6)


def test_preprocessed_photos_need_no_cores_and_more_flash(cfg):
    raw, small = infer(cfg, "preprocessed"), infer(cfg, "preprocessed", "compressed")
    assert raw.read_bytes == 4 * 3 * 224 * 224 and raw.stored_bytes == raw.read_bytes + 110_000
    assert {raw.work_us[name] for name in npe.CORES} == {0}
    assert small.read_bytes == round(raw.read_bytes / inference_constant("compression"))
    assert small.work_us["load"] < raw.work_us["load"]
    inflate = 1e6 * raw.read_bytes / inference_constant("inflate")
    assert [small.work_us[name] for name in npe.CORES] == pytest.approx([inflate, 0, 0])


def test_quantization_and_batches(cfg):
    """A batch of 8 has half the greatest speed, one of 256 the measured speed."""
    works = {batch: npe.work(NET, (), batch) for batch in (8, 256)}
    of = {batch: each["features"] + each["classification"] for batch, each in works.items()}
    assert of[256] == pytest.approx(FORWARD_US)
    assert of[8] == pytest.approx(FORWARD_US * 2 * 256 / 264)
    assert npe.work(NET, ("quantized",), 8)["features"] == works[8]["features"] / 2


@pytest.mark.parametrize("stores", [1, 3])
def test_each_optimization_as_its_closed_form(cfg, stores):
    rows = list(npe.ladder(NET, cfg, npe.OPTIMIZATIONS, stores, 128, (16, 32)))
    assert [row.optimizations for row in rows] == [npe.OPTIMIZATIONS[:n] for n in range(6)]
    assert [row.batch for row in rows] == [16] * 5 + [32]
    for row in rows:
        assert row.photos_per_s == pytest.approx(row.expected_photos_per_s(stores), rel=1e-3)
    assert rows[-1].photos_per_s > rows[0].photos_per_s


def test_the_network_of_the_tuner_limits_labels(cfg, monkeypatch):
    """8 bytes of a label take 1 ms at 8 kB/s, and three stores share that network."""
    tuner = server("tuner")
    slow = {"tuner": type(tuner)(*[*vars(tuner).values()][:4], 8e3, *[*vars(tuner).values()][5:])}
    monkeypatch.setattr(npe, "server", lambda name: slow.get(name) or server(name))
    found = infer(cfg, "pipelining", stores=3)
    assert found.bottleneck == "network of the Tuner (receive)"
    assert found.photos_per_s == pytest.approx(1000, rel=1e-6)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["compressed"], "needs 'preprocessed'; a JPEG file is compressed already"),
        (["batch", "batch"], "'batch': is named twice"),
        (["quantised"], "optimization 'quantised': .*quantized"),
    ],
)
def test_wrong_optimizations_are_named(cfg, names, text):
    with pytest.raises(InputError, match=text):
        infer(cfg, *names)


def test_impossible_numbers_are_named(cfg):
    with pytest.raises(InputError, match="photos = 31: must be from 32"):
        infer(cfg, photos=31)
    with pytest.raises(InputError, match="stores = 0"):
        infer(cfg, stores=0)
    with pytest.raises(InputError, match="large batch = 8: must be from 16"):
        list(npe.ladder(NET, cfg, (), 1, 128, (16, 8)))
