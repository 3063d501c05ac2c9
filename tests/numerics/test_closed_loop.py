"""Where does training end that computes with the weights a format has left? A small GPT, beside
FP32 with the same seed: what a step loses must not add up."""

import json
import os
import tempfile
from functools import partial
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from ondie.emu.cli.figures import saved
from ondie.emu.validate import CHECK, SHOWN

torch = pytest.importorskip("torch", reason="torch is not installed")

from ondie.emu.studies import formats  # noqa: E402

STEPS = 400
"""Steps at full counts; `ondie study formats` has 1,000."""
OTHERS = [name for name in formats.VARIANTS if name != formats.PLAIN]


def pytest_generate_tests(metafunc):
    """One seed; `ondie study formats` has three, docs/kernels.md their losses."""
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize("variant, seed", [(name, formats.SEEDS[0]) for name in OTHERS])


@pytest.fixture(scope="session")
def trained(tmp_path_factory, counts):
    """trained(variant, seed): the loss of every step. Each is trained once in a session, by
    whichever process needs it first, and read by the others from a file."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    steps = counts(60, STEPS)

    def losses(variant: str, seed: int) -> list[float]:
        path = folder / f"closed loop, {variant}, seed {seed}, {steps} steps.json"
        if not path.exists():
            text = json.dumps(formats.train(variant, seed, steps))
            with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
                file.write(text)
            os.replace(file.name, path)  # whole, whoever reads it now
        return json.loads(path.read_text())

    return losses


def away(ours, plain):
    """How far a loss at its end lies from FP32's, relative."""
    return formats.end(ours) / formats.end(plain) - 1


@pytest.mark.timeout(600)
def test_training_ends_near_fp32(variant, seed, trained, counts):
    plain, ours = trained(formats.PLAIN, seed), trained(variant, seed)
    assert len(ours) == len(plain) == counts(60, STEPS)
    assert ours[0] == plain[0], "the first loss is of the same weights and batch"
    assert ours != plain, "the format was not used"
    assert max(formats.end(plain), formats.end(ours)) < 0.9 * plain[0]
    distance = formats.VARIANTS[variant].distance
    # Roundings have not grown into other trainings after 60 steps: 0.3 % was the most, and 0.6 %
    # with weights in BF16 that are rounded to the nearest.
    allowed = counts(0.1, 1) * (2 * formats.APART if distance is None else distance)
    assert abs(away(ours, plain)) <= allowed


def test_what_bf16_loses_without_chance(trained, counts):
    """Rounded to nearest, a weight of BF16 does not move where the update is below half a unit of
    it: all other variants end lower. Rounded at random, it ends as FP32 does."""
    seed = formats.SEEDS[0]
    plain = trained(formats.PLAIN, seed)
    lost = {name: away(trained(name, seed), plain) for name in OTHERS}
    nearest = lost.pop("bf16_all")
    assert nearest > 2 * abs(lost["bf16_stochastic"])
    assert nearest > max(lost.values()) + counts(0.002, 0.01)  # 0.5 % and at least 1.8 % were found


def test_no_two_variants_are_the_same_update(trained):
    runs = {name: tuple(trained(name, 1)) for name in formats.VARIANTS}
    assert len(set(runs.values())) == len(formats.VARIANTS) == 10


# --- what is made of the losses


def losses(names, seeds, steps=40):
    """Made up: falling, each with noise of its own."""
    rng = np.random.default_rng(5)
    return {
        (name, seed): (4 / np.arange(1, steps + 1) ** 0.2 + rng.random(steps) / 9).tolist()
        for seed in seeds
        for name in names
    }


def test_the_end_is_the_last_tenth():
    assert formats.end([*[9.0] * 90, *range(10)]) == 4.5
    assert formats.end([9.0] * 18 + [1.0]) == 1.0
    assert formats.end([3.0]) == 3.0


def test_rows():
    found = losses(formats.VARIANTS, (1, 7))
    rows = formats.rows(found)
    assert [row.name for row in rows] == [
        f"{name}, seed {seed}: loss at the end" for seed in (1, 7) for name in OTHERS
    ]
    for row in rows:
        name, seed = row.name.removesuffix(": loss at the end").rsplit(", seed ", 1)
        assert row.suite == "formats" and row.unit == "nat/token" and "40 steps" in row.source
        # 40 steps: the last tenth is four.
        assert row.published == np.mean(found["fp32", int(seed)][36:])
        assert row.predicted == np.mean(found[name, int(seed)][36:])
        assert (row.kind, row.tolerance) == (
            (SHOWN, None) if name == "bf16_all" else (CHECK, formats.APART)
        )


def test_a_loss_that_is_no_number_misses():
    found = losses(["fp32", "fp16", "bf16_all"], (1,))
    for name in ("fp16", "bf16_all"):
        found[name, 1][-1] = float("nan")
    assert [row.misses for row in formats.rows(found)] == [True, False]


def test_the_figure_shows_the_losses():
    """Left all variants, mean over seeds; right how far each lies from FP32 of the same seed."""
    found = losses(["fp32", "fp16", "bf16_all"], (1, 2, 3))
    figures = []
    formats.draw(found, lambda figure: figures.append(figure) or {})
    curve, apart = figures[0].axes
    assert [text.get_text() for text in curve.get_legend().get_texts()] == [
        "fp32", "fp16", "bf16_all",
    ]  # fmt: skip
    # 40 steps: means of two, at the second of them.
    pairs = {name: np.array([found[name, s] for s in (1, 2, 3)]) for name in ("fp32", "bf16_all")}
    smooth = {name: (x[:, 1:] + x[:, :-1]) / 2 for name, x in pairs.items()}
    at, line = curve.get_lines()[2].get_data()
    assert at.tolist() == list(range(2, 41))
    assert np.allclose(line, smooth["bf16_all"].mean(0), rtol=1e-12)
    ratio = smooth["bf16_all"] / smooth["fp32"] - 1
    assert np.allclose(apart.get_lines()[1].get_ydata(), ratio.mean(0), rtol=1e-9)
    (edge,) = apart.collections[1].get_paths()
    assert np.isclose(edge.vertices[:, 1].max(), ratio.max())


@pytest.fixture(scope="module")
def drawn():
    """Two short trainings, drawn."""
    train = partial(formats.train, seed=4, steps=5)
    found = {(name, 4): train(name) for name in (formats.PLAIN, "on die, 1 Newton step")}
    return found, formats.draw(found, saved)


def test_equal_losses_draw_equal_bytes(drawn):
    found, files = drawn
    assert list(files) == ["png", "pdf"]
    assert formats.draw(found, saved) == files
    other = {pair: [2 * x for x in loss] for pair, loss in found.items()}
    again = formats.draw(other, saved)
    assert all(again[suffix] != files[suffix] for suffix in files)


def test_the_files_are_what_they_are_called(drawn, tmp_path):
    path = Path(tmp_path / "figure.png")
    path.write_bytes(drawn[1]["png"])
    image = matplotlib.image.imread(path)
    assert image.shape == (630, 1650, 4)  # 11 x 4.2 inches at 150 dots
    assert image[..., :3].min() < 0.1 < 0.9 < image[..., :3].mean()  # black on white
    text = drawn[1]["pdf"]
    assert text.startswith(b"%PDF-") and text.rstrip().endswith(b"%%EOF")
    assert text.count(b"/Type /Page ") == 1
    assert b"CreationDate" not in text
