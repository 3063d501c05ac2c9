"""Does the network of NDPipe's live system learn something that holds for other photographs?"""

import numpy as np
import pytest

from ondie.emu.live.ndpipe import network
from ondie.emu.live.ndpipe.pictures import CLASSES, HELD_OUT, TRAINED, crops
from ondie.emu.live.ndpipe.shelf import decoded
from tests.docs import ndpipe_table
from tests.live.test_ndpipe_live import needs_extra

CHANCE = 1 / len(CLASSES)


def test_no_photograph_is_trained_and_tested():
    needs_extra()
    assert not set(TRAINED) & set(HELD_OUT)
    for sources in (TRAINED, HELD_OUT):
        photos = crops(sources, 300, len(CLASSES), 1)
        assert {photo.source for photo in photos} == set(sources)
        assert np.bincount([photo.label for photo in photos]).tolist() == [50] * len(CLASSES)


@pytest.fixture(scope="module")
def pretrained():
    needs_extra()
    net = network.network(1)
    network.pretrain(net, 600, 5, 1)
    return net


def inputs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Crops of the photographs for training, as :func:`network.held_out` returns them."""
    photos = crops(TRAINED, count, len(CLASSES), seed)
    given = [decoded(number, photo.jpeg) for number, photo in enumerate(photos)]
    return np.stack(given), np.array([photo.label for photo in photos])


def test_a_short_training_is_above_chance(pretrained):
    """On 500 crops each, of which chance gives a share with a deviation of 0.017. With features
    that are 0 for every photo, nothing can be learned."""
    given, labels = inputs(600, 1)
    features = network.layers(pretrained, "avgpool", given)
    assert (features.std(0) > 0.01).all()
    network.tune(pretrained, "avgpool", features, labels.tolist(), 0, 1, 10, 1)
    assert network.tested(pretrained, *inputs(500, 77))[1] > 2 * CHANCE
    assert network.tested(pretrained, *network.held_out(500, 1, HELD_OUT))[1] > CHANCE + 0.06


def test_the_rate_rises_and_falls():
    rates = [network.cycle(step, 99) for step in range(99)]
    top = int(np.argmax(rates))
    assert top == 29 and rates[top] == 1 and 0 < rates[-1] < 0.001
    assert np.allclose(np.diff(rates[:top]), rates[0]) and (np.diff(rates[top:]) < 0).all()


def test_the_table_of_the_page_is_above_chance():
    text = ndpipe_table.PAGE.read_text("utf-8")
    seeds, means = ndpipe_table.read(text)
    assert [ndpipe_table.mean(cell) for cell, _ in means] == [mean for _, mean in means]
    assert ndpipe_table.HEAD + ndpipe_table.body(text) == ndpipe_table.table(seeds)
    for rows in seeds:
        assert list(rows) == ["not trained", "1", "2", "5", "10", "central"]
        assert rows["1"] == rows["central"]
        assert all(rows[name][2] > 2 * CHANCE for name in rows if name != "not trained")


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(len(ndpipe_table.SEEDS)))
def test_fine_tuning_gives_the_table_of_the_page(tmp_path, number):
    """Six classes on 2,000 crops of photographs that were never trained; the pretrained head knows
    four of them. Processors differ in rounding, which training amplifies."""
    needs_extra()
    document = ndpipe_table.measure(tmp_path / "system", ndpipe_table.SEEDS[number])
    found = document["trainings"]
    assert [each["runs"] for each in found] == list(ndpipe_table.RUNS)
    np.testing.assert_allclose(found[0]["losses"][0], found[0]["central"]["losses"], rtol=1e-6)
    for each in found:
        assert each["base"] == 0 and each["tested_before"] == found[0]["tested_before"]
        assert each["photos"] == 600 and each["most_often"] == 1
        assert each["feature_bytes"] == each["model_bytes"] == 600 * 64 * 4
        assert each["update_bytes_sent"] == each["update_bytes"] > 0
        (loss, accuracy), (loss_before, accuracy_before) = each["tested"], each["tested_before"]
        assert loss < loss_before / 2 and accuracy > accuracy_before and accuracy > 2 * CHANCE
    shown = ndpipe_table.read(ndpipe_table.PAGE.read_text("utf-8"))[0][number]
    for name, (trained, tested, accuracy) in ndpipe_table.rows_of(document).items():
        assert accuracy == pytest.approx(shown[name][2], abs=0.12), name
        assert tested == pytest.approx(shown[name][1], rel=0.35), name
        assert trained is None or trained == pytest.approx(shown[name][0], rel=0.35), name
