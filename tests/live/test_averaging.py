"""Gradients over a host and its drives: what is measured at a recorded run's weights, what fewer
exchanges make of trainings, and rows, tables and figure that say so."""

import json
from contextlib import contextmanager
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ondie.emu.cli.figures import save as drawing
from ondie.emu.units import InputError
from ondie.emu.validate import CHECK, SHOWN
from ondie.traces import load
from tests.smoke.commands import files, here, refused

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from ondie.emu.studies import averaging, averaging_figure  # noqa: E402
from ondie.emu.studies import averaging_nets as nets  # noqa: E402
from ondie.emu.studies import averaging_recorded as recorded  # noqa: E402
from ondie.emu.studies import averaging_shown as shown  # noqa: E402
from ondie.emu.studies import averaging_trained as trained  # noqa: E402
from ondie.emu.studies.averaging_tables import tables  # noqa: E402
from ondie.emu.studies.averaging_trained import ALIKE, KS, PRIVATE, WAYS, Way  # noqa: E402

GPT, NET = nets.NETWORKS["GPT"], nets.NETWORKS["MobileNetV2"]


pytestmark = pytest.mark.timeout(1800)  # at full counts all trainings of the suite


def run(way, skew=0.0, steps=8, network=GPT, seed=1):
    with nets.deterministic(seed):
        return trained.Training(network, way, skew, seed).run(steps)


# --- data


def test_the_recorded_batches_are_split_as_tuned_ones():
    """64 x 315 / 415 = 48.6, 64 x 25 / 415 = 3.86; 16 x 315 / 415 = 12.1, 16 x 25 / 415 = 0.96."""
    assert NET.batches == (48, 4, 4, 4, 4) and GPT.batches == (12, 1, 1, 1, 1)


@given(
    st.lists(st.integers(0, 9), min_size=8, max_size=300),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_every_sample_is_dealt_once_and_private_ones_to_drives(keys, skew, seed):
    key, samples = np.array(keys), np.arange(len(keys))
    parts = nets.shards(samples, key, (8, 3, 3), skew, seed)
    assert sorted(np.concatenate(parts).tolist()) == samples.tolist()
    sizes = nets.largest_remainder(len(keys), (8, 3, 3)).tolist()
    assert list(map(len, parts)) == sizes
    own = [part[: int(skew * len(part))] for part in parts[1:]]  # private before public
    private = key[np.concatenate(own)].tolist()
    assert sorted(private) == private == sorted(keys)[len(keys) - len(private) :]


def test_wholly_private_data_are_the_last_classes():
    samples = NET.samples()
    parts = nets.shards(samples.train, samples.key, NET.batches, 1.0, 1)
    held = [set(samples.key[part].tolist()) for part in parts]
    assert held[0] == set(range(8)) and set.union(*held[1:]) == {7, 8, 9}
    alike = nets.shards(samples.train, samples.key, NET.batches, 0.0, 1)
    assert all(set(samples.key[part].tolist()) == set(range(10)) for part in alike)


def test_batches_are_epochs():
    draws = nets.drawn(np.arange(100, 111), 4, 1, 2)
    for _ in range(5):
        epoch = [next(draws), next(draws)]
        assert len(set(np.concatenate(epoch).tolist())) == 8
        assert all(100 <= i < 111 for i in np.concatenate(epoch))
    assert not np.array_equal(next(nets.drawn(np.arange(99), 9, 1, 0)),
                              next(nets.drawn(np.arange(99), 9, 1, 1)))  # fmt: skip


@pytest.mark.parametrize("network", [GPT, NET])
def test_what_is_held_out_is_not_trained_on(network):
    samples = network.samples()
    assert not set(samples.train.tolist()) & set(samples.held.tolist())
    if network is GPT:  # windows overlap: no character of one that is held out
        seen = np.zeros(len(samples.key) + 64, bool)
        for shift in range(65):
            seen[samples.train + shift] = True
        assert not any(seen[at : at + 65].any() for at in samples.held)
        assert len(samples.held) == 180
        x, y = samples.pick(samples.held[:3])
        assert x.shape == y.shape == (3, 64) and torch.equal(x[:, 1:], y[:, :-1])
    else:
        assert len(samples.held) == 360 and len(samples.train) == 1437


# --- gradients at recorded weights


@pytest.fixture(scope="module")
def found(counts):
    """At full counts what `ondie validate averaging` finds, else nothing."""
    if counts(True, False):
        return None
    with averaging.pool("averaging", 2) as run:
        return averaging.find(run, averaging.SEEDS, averaging.STEPS, averaging.SKEW)


@pytest.fixture(scope="module")
def measured(found):
    """At all recorded steps of the suite, or at the first."""
    if found is not None:
        return found.measured
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded, "POPULATION", 64)
        return {
            title: recorded.measure(*subject, 1.0, (1, 2), 1)
            for title, subject in shown.SUBJECTS.items()
        }


def test_the_recorded_gradient_is_that_of_the_recorded_batch(measured):
    assert measured["GPT"].each(lambda at: at.recorded).max() < recorded.ROUNDING
    assert measured["MobileNetV2"].each(lambda at: at.recorded).max() < recorded.KINK


def test_weighted_by_batch_is_the_whole_batch_but_for_batch_statistics(measured):
    for title, m in measured.items():
        for data in (ALIKE, PRIVATE):
            gaps = m.distances("batch", data)
            if m.separate:
                assert gaps.max() < m.rounding
                assert m.cosines("batch", data).min() > 0.9999
            else:
                assert title == "MobileNetV2" and gaps.min() > 0.3
            assert m.distances("rank", data).min() > max(0.15, gaps.max())


def test_by_rank_a_drives_sample_counts_its_batches_ratio(measured):
    for m in measured.values():
        if m.separate:
            assert m.each(lambda at: at.sample_weight) == pytest.approx(12, rel=0.01)
            assert m.batches[0] / m.batches[1] == 12


def test_the_bias_is_predicted_and_is_of_private_data_alone(measured, scale):
    for title in ("GPT", "MobileNetV2, statistics held"):
        m = measured[title]
        near = 0.2 if scale == "full" else 0.7  # two draws of one step
        assert m.along_bias(PRIVATE).mean() == pytest.approx(1, abs=near)
        assert m.along_bias(ALIKE).mean() == pytest.approx(0, abs=near)
        assert m.each(lambda at: at.bias_share).min() > 0.2


def test_weights_before_each_recorded_step():
    trace = load(GPT.trace)
    found = [w.copy() for w in recorded.recorded(trace, 3)]
    assert found[0].tobytes() == trace.weights("initial").tobytes()
    assert np.abs(found[1] - found[0]).max() == pytest.approx(4e-4, rel=0.02)  # lr 2e-3 / 5, Adam
    assert len({w.tobytes() for w in found}) == 3


# --- trainings


def test_weighted_trains_as_one_node_with_all_samples():
    for skew in (0.0, 1.0):
        plain, weighted, even = (run(way, skew, 4) for way in (Way("none"), Way(), Way("rank")))
        assert weighted.losses == pytest.approx(plain.losses, rel=1e-4)
        assert weighted.held_loss == pytest.approx(plain.held_loss, rel=1e-4)
        assert even.losses[0] == pytest.approx(plain.losses[0], rel=1e-5)
        assert abs(even.held_loss - plain.held_loss) > 1e-3


def test_every_way_sees_the_same_samples():
    """Up to the first update their losses are the same: k of accumulation, two where an exchange is
    late by one, one of local steps."""
    plain = run(Way("none", every=8)).losses
    for way, same in ((Way(every=8), 8), (Way(every=2, rate=0.5), 2), (Way(late=1), 2),
                      (Way(every=4, local=True), 1)):  # fmt: skip
        losses = run(way).losses
        assert len(losses) == 8
        assert losses[:same] == pytest.approx(plain[:same], rel=1e-5)
        assert same == 8 or losses[same] != pytest.approx(plain[same], rel=1e-4)


def test_the_mean_by_rank_is_the_same_from_one_forward_pass():
    """Without batch statistics, shared ones change nothing; with them, they do."""
    apart, shared = run(Way("rank")), run(Way("rank", shared=True))
    assert shared.held_loss == pytest.approx(apart.held_loss, rel=1e-4)
    apart, shared = (run(Way("rank", shared=s), 1.0, 2, NET).losses for s in (False, True))
    assert apart[0] != pytest.approx(shared[0], rel=1e-2)


def test_local_steps_end_in_one_mean_by_samples(monkeypatch):
    put, seen = nets.put, []

    def watched(params, vector, as_gradient=False):
        if not as_gradient:
            seen.append((nets.flat(params), vector))
        put(params, vector, as_gradient)

    monkeypatch.setattr(nets, "put", watched)
    with nets.deterministic(1):
        training = trained.Training(GPT, Way(every=4, local=True), 1.0, 1)
        training.run(4)
        ends = [nets.flat(params) for params in training.params]
    before = np.array([mine for mine, _ in seen], np.float64)
    assert len({mine.tobytes() for mine, _ in seen}) == 5  # nodes had gone apart
    mean = np.array([12, 1, 1, 1, 1]) / 16 @ before
    assert all(end == pytest.approx(mean, abs=1e-6) for end in ends)
    assert len({end.tobytes() for end in ends}) == 1


@pytest.mark.parametrize(
    "way, rates",
    [
        (Way(), [4e-4, 8e-4]),
        (Way(every=4), [1.6e-3, 2e-3]),
        (Way(every=4, rate=0.5), [3.2e-3, 4e-3]),
        (Way(every=4, rate=1.0), [6.4e-3, 8e-3]),
        (Way(every=2, local=True), [4e-4, 8e-4, 1.2e-3, 1.6e-3]),
        (Way(late=1), [8e-4, 8e-4]),
    ],
)
def test_learning_rates(way, rates):
    """2e-3, warmed up over 5 micro-batches, as it is or by a power of how many there are."""
    with nets.deterministic(1):
        training = trained.Training(GPT, way, 0.0, 1)
        optimizer, found = training.optimizers[0], []
        optimizer.register_step_post_hook(
            lambda optimizer, *_: found.append(optimizer.param_groups[0]["lr"])
        )
        training.run(2 * way.every)
    assert found == pytest.approx(rates)


def test_statistics_of_all_nodes_together():
    """Running variance of a mixture: the mean variance and the variance of the means."""
    models = nets.copies(nets._mobilenet(), 3, shared=True)
    rng = np.random.default_rng(4)
    layers = [[m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)][3]
              for model in models]  # fmt: skip
    data = [
        rng.normal(i, 1 + i, (n, layers[0].num_features)) for i, n in enumerate((600, 200, 200))
    ]
    for layer, values in zip(layers, data, strict=True):
        layer.running_mean.copy_(torch.from_numpy(values.mean(0)))
        layer.running_var.copy_(torch.from_numpy(values.var(0)))
    nets.merge_statistics(models, [0.6, 0.2, 0.2])
    every = np.concatenate(data)
    assert layers[0].running_mean.numpy() == pytest.approx(every.mean(0), rel=1e-5)
    assert layers[0].running_var.numpy() == pytest.approx(every.var(0), rel=1e-5)
    params = [list(model.parameters()) for model in models]
    assert all(a is b for a, b in zip(params[0], params[2], strict=True))


def test_gradients_are_put_as_they_are_numbered():
    """Whatever a parameter's layout; the fused update then is that of torch's plain one."""
    with nets.deterministic(2):
        model = NET.make()
        fused, plain = nets.copies(model, 2, shared=False)
        x, y = NET.samples().pick(np.arange(16))
        ends = []
        for one, options in ((fused, {"fused": True}), (plain, {"foreach": False})):
            optimizer = torch.optim.Adam(one.parameters(), lr=1e-3, **options)
            params = nets.held(optimizer)
            _, vector = nets.gradient(one, params, x, y)
            nets.put(params, vector, as_gradient=True)
            grads = [p.grad for p in params]
            assert nets.flat(grads).tobytes() == vector.tobytes()
            optimizer.step()
            ends.append(nets.flat(params))
    assert ends[0] == pytest.approx(ends[1], abs=1e-6)
    assert np.abs(ends[0] - nets.flat(list(model.parameters()))).max() == 0  # the first is itself


def test_a_training_that_diverges_has_numbers():
    wild = Way(rate=30.0, every=2)
    with nets.deterministic(1), np.errstate(all="ignore"):
        found = trained.Training(GPT, wild, 0.0, 1).run(8)
    assert np.isfinite(found.held_loss) and 0 <= found.held_right <= 1


# --- what is made of them


@pytest.mark.parametrize("n, t", [(8, 3.4995), (24, 2.8073), (66, 2.6536), (1000, 2.5808)])
def test_half_of_the_interval(n, t):
    """Student's t at 99 % with n - 1 degrees of freedom, from its tables."""
    values = np.tile([1.0, 3.0], n // 2)
    wanted = t * np.sqrt(n / (n - 1)) / np.sqrt(n)
    assert shown.half_width(values, 0.01) == pytest.approx(wanted, rel=5e-3)
    assert shown.half_width(values[:1], 0.01) == np.inf


def test_an_exchange():
    """GPT: 64,512 parameters, 258,048 bytes in 5 pieces of 51,610; 8 ring steps, 16 samples.
    MobileNetV2: 14,019,488 bytes, 8 x 2,803,898 / 36 MB/s = 0.623 s (its larger pieces go 1.1 %
    faster) beside 315 / 32.3 = 9.75 s of computing; half of it is saved by every second
    micro-batch, all of it when hidden."""
    assert shown.exchange("GPT", 1).bytes_per_sample == 8 * 51_610 / 16
    assert shown.exchange("GPT", 4).bytes_per_sample == 8 * 51_610 / 64
    assert shown.exchange("GPT", 1).saved == (0, 0)
    whole = 0.62309 / (0.62309 + 315 / 32.3)
    assert shown.exchange("GPT", 2).saved[0] == pytest.approx(whole / 2, rel=0.02)
    assert shown.exchange("GPT", 1, True).saved[0] == pytest.approx(whole, rel=0.02)


def at(gap=1e-7, recorded_gap=1e-7, weight=12.0, noise=(0.9, 1.1), private=(0.9, 1.1),
       alike=(-0.1, 0.1)):  # fmt: skip
    means = {
        (by, data): recorded.Distance(gap if by == "batch" else 0.4, 0.9)
        for by in ("batch", "rank") for data in (ALIKE, PRIVATE)
    }  # fmt: skip
    bias = {ALIKE: alike, PRIVATE: private}
    return recorded.At(recorded_gap, means, weight, noise, bias, 0.5)


def made_up(loss=2.0, first=2.5, **more):
    """Two steps, two seeds; accuracy 90 %, and 80 % with private data."""
    m = {
        title: recorded.Measured((12, 1, 1, 1, 1), title != "MobileNetV2", 1e-5,
                                 {0: at(**more), 3: at(**more)})
        for title in shown.SUBJECTS
    }  # fmt: skip
    runs = {}
    for name in nets.NETWORKS:
        for number, (data, way) in enumerate(trained.runs(name)):
            for seed in (7, 8):
                right = (0.9 if data == ALIKE else 0.8) - (0.01 * number + 0.001 * seed)
                losses = (first if way == trained.WEIGHTED else 2.5, 2.2)
                runs[name, data, way, seed] = trained.Trained(losses, loss, right, 2.1, 0.5)
    return shown.Found(m, runs, (7, 8), 8, 1.0)


def test_rows():
    rows = shown.rows(made_up())
    assert not any(row.misses for row in rows)
    assert len({row.name for row in rows}) == len(rows)
    checked = [row for row in rows if row.kind == CHECK]
    # Of either network without statistics: weighted twice, weight, noise, bias twice; recorded
    # gradients and first losses twice of the GPT.
    assert len(checked) == 2 * 6 + 1 + 2
    named = {row.name: row for row in rows}
    tuned = named["a drive's sample over a host's, by rank, 315/25"]
    assert tuned.predicted == pytest.approx(tuned.published)
    noisy = named["samples whose mean is as noisy as that by rank of 315 + 24 x 25"]
    assert (noisy.published, round(noisy.predicted, 1)) == (915, 648.9)
    shares = named["GPT, private, 8 local steps: right of those held out"]
    assert shares.kind == SHOWN and shares.predicted < shares.published < 0.8
    json.dumps([row.data() for row in rows], allow_nan=False)


@pytest.mark.parametrize(
    ("wrong", "names", "many"),
    [
        ({"gap": 2e-5}, "weighted farther", 4),
        ({"recorded_gap": 2e-5}, "from the recorded ones", 1),
        ({"weight": 11.8}, "from single samples", 2),
        ({"noise": (1.5, 1.6)}, "squared distance", 2),
        ({"private": (0.5, 0.6)}, "along the predicted bias", 2),
        ({"alike": (0.5, 0.6)}, "along that bias without 0", 2),
        ({"first": 2.501}, "first losses", 2),
    ],
)
def test_what_is_not_as_predicted_misses(wrong, names, many):
    missed = [row.name for row in shown.rows(made_up(**wrong)) if row.misses]
    assert len(missed) == many and all(names in name for name in missed), missed


def test_tables():
    console = Console(width=132, record=True, file=open("/dev/null", "w"))
    for table in tables(made_up()):
        console.print(table)
    text = console.export_text()
    assert text.count("12.00x") == 2 and "1e-07" in text and "50.0%" in text
    for name in nets.NETWORKS:
        assert f"{name}: trainings over" in text
    for way in WAYS:
        assert way.split(",")[0] in text
    assert "25.8 kB" in text and "3% / 13%" in text
    assert max(map(len, text.splitlines())) <= 132


def test_the_figure(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(drawing, "SUFFIXES", {"png": drawing.SUFFIXES["png"]})  # half the time
    drawn = averaging_figure.draw(made_up(), lambda f: figures.append(f) or drawing.saved(f))
    axes = figures[0].axes
    assert len(axes) == 6 and all(a.get_xlabel() or a.get_xticklabels() for a in axes)
    assert all(a.get_ylabel() and a.get_title() and a.get_legend() for a in axes)
    steps = axes[0].get_lines()[0]
    assert steps.get_xdata().tolist() == [0, 3] and steps.get_ydata().tolist() == [1e-7, 1e-7]
    assert [t.get_text() for t in axes[5].get_xticklabels()] == [str(k) for k in KS]
    (tmp_path / "f.png").write_bytes(drawn["png"])
    image = matplotlib.image.imread(tmp_path / "f.png")
    assert image.shape == (1140, 1950, 4) and image[..., :3].min() < 0.1


# --- the command


@contextmanager
def no_pool(suite, jobs):
    def in_turn(work, wanted):
        for arguments in wanted:
            yield arguments, work(*arguments)

    yield in_turn


def test_the_command_writes_what_it_found(capsys, tmp_path, monkeypatch):
    """Everything that is wanted is made, once."""
    made = []

    def measure(name, still, skew, seeds, steps):
        made.append((name, still))
        assert (skew, seeds, steps) == (0.5, (7, 8), None)
        title = next(t for t, subject in shown.SUBJECTS.items() if subject == (name, still))
        return made_up().measured[title]

    def train(name, way, skew, seed, steps):
        made.append((name, way, skew, seed))
        assert steps == 8 and skew in (0, 0.5)
        return made_up().trained[name, PRIVATE if skew else ALIKE, way, seed]

    monkeypatch.setattr(averaging, "draw", lambda found, save: {"png": repr(found.seeds).encode()})
    monkeypatch.setattr(averaging, "pool", no_pool)
    monkeypatch.setattr(averaging, "measure", measure)
    monkeypatch.setattr(averaging, "train", train)
    monkeypatch.chdir(tmp_path)
    words = ("validate", "averaging", "--steps", 8, "--seeds", "7,8", "--skew", 0.5,
             "--json", "rows.json", "--figure", "f.png")  # fmt: skip
    outcome = here(capsys, *words)
    assert (outcome.code, outcome.err) == (0, "")
    assert files(tmp_path) == ["f.png", "rows.json"]
    assert Path("f.png").read_bytes() == b"[7, 8]"
    assert len(made) == len(set(made)) == 3 + 2 * sum(len(trained.runs(n)) for n in nets.NETWORKS)
    rows = json.loads(Path("rows.json").read_text())
    assert [row["name"] for row in rows] == [row.name for row in shown.rows(made_up())]
    assert "trainings over" in outcome.out and "50% of the drives' data" in outcome.out
    assert outcome.out.endswith("15 rows, 0 check rows outside their tolerance\n")
    monkeypatch.setattr(averaging, "measure", lambda *a: made_up(weight=11.0).measured["GPT"])
    assert here(capsys, *words).code == 1


def test_what_is_found(found):
    """A training depends on its seed alone. At full counts: no row of the suite misses, and what
    the README says of it holds."""
    if found is None:
        one = trained.train("GPT", trained.local(8), 1.0, 1, 8)
        assert one == trained.train("GPT", trained.local(8), 1.0, 1, 8)
        assert one != trained.train("GPT", trained.local(8), 1.0, 2, 8)
        return
    assert [row.name for row in shown.rows(found) if row.misses] == []
    for name in nets.NETWORKS:
        for data in (ALIKE, PRIVATE):
            assert found.beside(name, data, trained.UNWEIGHTED, lambda t: t.held_loss).mean() > 0
        worse = [found.beside(name, ALIKE, trained.batched(k), lambda t: t.held_loss).mean()
                 for k in KS[1:]]  # fmt: skip
        assert 0 < worse[0] < worse[1] < worse[2]
    same = found.beside("GPT", ALIKE, trained.WEIGHTED, lambda t: t.held_loss)
    assert np.abs(same).max() < 0.01  # 1e-4 seen
    right = [found.beside("MobileNetV2", ALIKE, way, lambda t: t.held_right).mean()
             for way in (trained.WEIGHTED, trained.local(8), trained.UNWEIGHTED)]  # fmt: skip
    assert abs(right[0]) < 0.015 and abs(right[1]) < 0.025 and right[2] < -0.03


@pytest.mark.parametrize(
    "options, words",
    [
        (["--steps", "0"], ["steps: 0", "a multiple of 8"]),
        (["--steps", "12"], ["steps: 12", "a multiple of 8"]),
        (["--seeds", "1,1"], ["seeds: 1, 1", "different"]),
        (["--seeds", "-1"], ["seeds: -1", "0 to 2**32 - 1"]),
        (["--skew", "0"], ["skew: 0", "more than 0 and at most 1"]),
        (["--skew", "1.5"], ["skew: 1.5", "at most 1"]),
        (["--skew", "nan"], ["skew: nan", "at most 1"]),
        (["--skew", "much"], ["--skew", "'much'"]),
        (["--rates", "1e-8"], ["--rates", "validate errors"]),
        (["--figure", "f.svg"], ["f.svg", ".png or .pdf"]),
    ],
    ids=lambda x: " ".join(x),
)
def test_what_cannot_be(capsys, tmp_path, monkeypatch, options, words):
    def untouched(*arguments, **more):
        raise AssertionError("trained")

    monkeypatch.setattr(averaging, "pool", untouched)
    monkeypatch.chdir(tmp_path)
    refused(here(capsys, "validate", "averaging", *options, "--json", "rows.json"), *words)
    assert files(tmp_path) == []


def test_skew_is_of_averaging_only(capsys):
    refused(here(capsys, "validate", "formats", "--skew", "1"), "--skew", "validate averaging")
    with pytest.raises(InputError, match="seeds: none"):
        averaging.check((), 8, 1.0)
