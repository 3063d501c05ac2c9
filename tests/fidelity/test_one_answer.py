"""Do all commands answer one question about a cluster alike: batches, speed, joules, under load?

Every command is asked through its options and its JSON. `tune`, `scale`, `simulate` and `validate`
have one model: 1e-9, where the epoch of `simulate` has full batches only. `compare` runs each page
and packet of one step: it adds the reading of samples and an update that published speeds include.

FACTS used: 99.83 and 49.26 img/s on 36 Lagunas (99.8 and 49.3 as asked), 13.2 over 5.4 J/img with
the printed powers, 2.7x and Table II at 24 Newports, 2.82x of ShuffleNet.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.validate import hypertune, stannis
from tests.smoke.commands import here, refused

EXACT = 1e-9
EMULATED = 3e-3
"""Samples are read in 2 ms, and the nodes update in 6 ms or less, of steps of 7 s and more."""
JOULES = 0.02
"""The emulated drives' cores draw no power while they wait; the server's fit does not know."""
SAME_POWER = 5e-3
"""With the power of waiting cores added, also on loaded hosts, where the drives wait longer."""


@dataclass(frozen=True)
class Question:
    """A cluster, its batches, and the answer."""

    network: str
    drive: str
    drives: int
    batch: str
    taken: int = 0
    host_batch: int = 0
    drive_batch: int = 0
    speed: float | None = None
    """Samples/s to three or four digits, where a paper has them."""

    @property
    def options(self) -> tuple[str, ...]:
        chosen = ("--batch", self.batch)
        if self.batch == "given":
            chosen = (
                "--host-batch", str(self.host_batch), "--drive-batch", str(self.drive_batch)
            )  # fmt: skip
        return (*chosen, "--cores-taken", str(self.taken))

    @property
    def full(self) -> int:
        return self.host_batch + self.drives * self.drive_batch


QUESTIONS = {
    "lagunas": Question("mobilenetv2", "laguna", 36, "paper", 0, 180, 15, 99.8),
    "lagunas loaded": Question("mobilenetv2", "laguna", 36, "paper", 6, 180, 15, 49.3),
    "lagunas tuned": Question("mobilenetv2", "laguna", 36, "tuned", 6, 75, 15, 85.5),
    "shufflenet": Question("shufflenet", "laguna", 36, "paper", 0, 300, 25, 2.82 * 43.67),
    "newports": Question("mobilenetv2", "newport", 24, "paper", 0, 315, 25, 2.7 * 32.3),
    "newports loaded": Question("mobilenetv2", "newport", 24, "paper", 4, 315, 25),
    "printed": Question("nasnet-mobile", "newport", 24, "paper", 0, 325, 15),
    "given": Question("mobilenetv2", "newport", 24, "given", 2, 200, 30),
    "given unloaded": Question("mobilenetv2", "newport", 24, "given", 0, 200, 30),
    "by rule": Question("nasnet-mobile", "newport", 24, "tuned", 0, 304, 15),
}


@dataclass(frozen=True)
class Answer:
    """Batches of host and drive, samples per second and joules per sample."""

    batches: tuple[int, int]
    speed: float
    joules: float | None = None
    of_cores: float = 0.0
    """Part of ``joules`` that the cores of the drives draw, where operations are added up."""


def ask(capsys, tmp_path, *words: object):
    out = tmp_path / "answer.json"
    done = here(capsys, *words, "--json", out, "--quiet")
    assert (done.code, done.out) == (0, ""), done
    return json.loads(out.read_text())


def by_tune(capsys, tmp_path, asked: Question, *more: str) -> Answer:
    drives = f"{asked.drive}={asked.drives}"
    data = ask(capsys, tmp_path, "stannis", "tune", asked.network, "--drives", drives,
               *asked.options, *more)  # fmt: skip
    (row,) = [row for row in data["allocations"] if row["chosen"]]
    return Answer((row["samples"]["host"], row["samples"][asked.drive]), row["samples_per_s"])


def by_scale(capsys, tmp_path, asked: Question, *more: str) -> Answer:
    drives = f"{asked.drive}={asked.drives}"
    row = ask(capsys, tmp_path, "stannis", "scale", asked.network, "--drives", drives,
              *asked.options, *more)[-1]  # fmt: skip
    batches = row["batches"]["host"], row["batches"][asked.drive]
    return Answer(batches, row["samples_per_s"], row["joules_per_sample"])


def by_simulate(capsys, tmp_path, asked: Question, *more: str) -> Answer:
    data = ask(
        capsys, tmp_path, "stannis", "simulate", asked.network, "--drives",
        f"{asked.drive}={asked.drives}", *asked.options, "--steps", "10", "--no-reading",
        "--public", str(10 * asked.full), "--private", "0", *more,
    )  # fmt: skip
    run = data["runs"]["interrupted" if asked.taken else "left alone"]
    samples = run["nodes"]["samples"]
    assert run["samples"] == 10 * asked.full
    return Answer(
        (samples[0] // 10, samples[-1] // 10), run["samples_per_s"], run["joules_per_sample"]
    )


def by_compare(capsys, tmp_path, asked: Question, *more: str) -> Answer:
    data = ask(
        capsys, tmp_path, "compare", asked.network, "--device", asked.drive, "--devices",
        str(asked.drives), "--paths", "stannis", "--no-swing", *asked.options, *more,
    )  # fmt: skip
    (path,) = data["paths"]
    metrics = {name: metric["value"] for name, metric in path["metrics"].items()}
    drive = (int(metrics["samples_per_step"]) - asked.host_batch) // asked.drives
    assert f"= host {asked.host_batch} + {asked.drives} x {drive}," in path["notes"][0]
    joules, parts = metrics["energy_all_typical_j_per_sample"], path["energy_j_per_step"]
    cores = sum(parts[name][1] for name in parts if "ISP" in name)
    return Answer(
        (asked.host_batch, drive), metrics["samples_per_s"], joules,
        cores / metrics["samples_per_step"],
    )  # fmt: skip


def by_validate(asked: Question) -> Answer:
    trained = hypertune.Trained.of_network(asked.network, batch=asked.batch, taken=asked.taken)
    speed = hypertune.untuned(trained, hypertune.CORES - asked.taken)
    return Answer((int(trained.batches[0]), int(trained.batches[-1])), speed)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", QUESTIONS)
def test_every_command_gives_the_same_answer(capsys, tmp_path, name):
    asked = QUESTIONS[name]
    first = by_tune(capsys, tmp_path, asked)
    assert first.batches == (asked.host_batch, asked.drive_batch)
    if asked.speed is not None:
        assert first.speed == pytest.approx(asked.speed, rel=2e-3)
    scaled, simulated = by_scale(capsys, tmp_path, asked), by_simulate(capsys, tmp_path, asked)
    same = [scaled, simulated]
    if asked.drive == "laguna":
        same.append(by_validate(asked))
    for answer in same:
        assert answer.batches == first.batches
        assert answer.speed == pytest.approx(first.speed, rel=EXACT)
    assert simulated.joules == pytest.approx(scaled.joules, rel=EXACT)


@pytest.mark.parametrize(
    "name",
    ["lagunas loaded",
     *(pytest.param(name, marks=pytest.mark.soak)
       for name in ("given", "lagunas", "lagunas tuned", "newports", "newports loaded",
                    "given unloaded"))],
)  # fmt: skip
def test_the_emulated_engine_gives_the_same_answer(capsys, tmp_path, name):
    asked = QUESTIONS[name]
    first, run = by_scale(capsys, tmp_path, asked), by_compare(capsys, tmp_path, asked)
    assert run.batches == first.batches
    assert first.speed * (1 - EMULATED) < run.speed < first.speed
    cfg = load_preset(asked.drive)
    waiting = asked.drives * cfg.isp.cores * cfg.energy.isp_core_mw / 1e3 / run.speed - run.of_cores
    assert waiting > 0 and run.joules < first.joules
    assert run.joules + waiting == pytest.approx(first.joules, rel=SAME_POWER)
    if asked.drive == "newport":
        if not asked.taken:
            assert run.joules == pytest.approx(first.joules, rel=JOULES)
        return
    published, told, _, emulated = documented(asked)
    assert (told, emulated) == (f"{first.speed:.2f}", f"{run.speed:.2f}")
    assert published in ("99.83", "49.26", "about 1.5 x 49.26")


def documented(asked: Question) -> list[str]:
    """Return the numbers of docs/cluster.md: published, tune, simulate, compare."""
    words = f"`--batch {asked.batch}{f' --cores-taken {asked.taken}' if asked.taken else ''}`"
    lines = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text().splitlines()
    (cells,) = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith((f"| {words} |", f"| {words}:"))
    ]
    return cells[1:]


@pytest.mark.parametrize("name", ["lagunas", "lagunas loaded", "lagunas tuned"])
def test_the_page_has_the_speed_of_an_epoch(capsys, tmp_path, name):
    asked = QUESTIONS[name]
    run = ask(capsys, tmp_path, "stannis", "simulate", asked.network, "--drives", "laguna=36",
              *asked.options)["runs"]["interrupted" if asked.taken else "left alone"]  # fmt: skip
    assert documented(asked)[2] == f"{run['samples_per_s']:.2f}"


CHANGES = (
    (("--set", "tunnel.command=500 us"), 0.5, 0.95),
    (("--slowdown", "linear"), 0.4, 0.99),
    (("--set", "isp.training_ratio=0.02"), 0.5, 0.8),
)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("more", "least", "most"), CHANGES)
def test_the_answers_move_together(capsys, tmp_path, more, least, most):
    """No command remembers an answer: a constant of the drive or of the host moves all of them."""
    asked = Question("mobilenetv2", "laguna", 36, "paper", 6, 180, 15)
    before, after = (by_tune(capsys, tmp_path, asked, *each) for each in ((), more))
    assert least * before.speed < after.speed < most * before.speed
    for by in (by_scale, by_simulate):
        found = by(capsys, tmp_path, asked, *more)
        assert (found.batches, found.speed) == (after.batches, pytest.approx(after.speed, EXACT))
    run = by_compare(capsys, tmp_path, asked, *more)
    assert run.speed == pytest.approx(after.speed, rel=EMULATED)


def test_hypertune_settles_at_the_tuned_batches(capsys, tmp_path):
    """From the published batches, HyperTune gets to what Algorithm 1 says of the cores left."""
    tuned = by_tune(capsys, tmp_path, QUESTIONS["lagunas tuned"])
    words = ("stannis", "simulate", "mobilenetv2", "--drives", "laguna=36", "--no-reading",
             "--batch", "paper", "--cores-taken", "6", "--hypertune", "gated", "--private", "0",
             "--public", "615000")  # fmt: skip
    data = ask(capsys, tmp_path, *words)
    run = data["runs"]["HyperTune"]
    assert [note["text"] for note in run["notes"]] == ["node 0 180 -> 75"]
    assert run["settled_samples_per_s"] == pytest.approx(tuned.speed, rel=2e-3)
    assert data["interference"]["speed"] == pytest.approx(0.4213, abs=5e-5)
    # Batches that were tuned for the load are kept, and grow no further than that without it.
    kept = ask(capsys, tmp_path, *words[:6], "--cores-taken", "6", "--hypertune", "gated")
    assert not [n for n in kept["runs"]["HyperTune"]["notes"] if n["what"] == "batches"]
    assert kept["runs"]["HyperTune"]["settled_samples_per_s"] is None


def test_an_epoch_without_full_batches_says_so(capsys):
    """84,000 samples in 117 steps are 717.9 of 720: 99.7, not the 99.8 of full batches."""
    words = ("stannis", "simulate", "mobilenetv2", "--drives", "laguna=36", "--no-reading")
    done = here(capsys, *words)
    assert "Full batches: 99.8 samples/s" in done.out
    assert "717.9 samples, out of 720 in a full batch" in " ".join(done.out.split())
    whole = here(capsys, *words, "--private", "0", "--public", "72000")
    assert "Full batches" not in whole.out


def test_validate_stannis_asks_the_same_model(capsys, tmp_path):
    asked = QUESTIONS["newports"]
    found = by_scale(capsys, tmp_path, asked)
    cfg = stannis.load_preset("newport")
    net = stannis.network("mobilenetv2")
    assert stannis.speed(cfg, net, 24) == pytest.approx(found.speed, rel=EXACT)
    joules = stannis.Server.of(cfg).joules(stannis.speed(cfg, net, 24), 24)
    assert joules == pytest.approx(found.joules, rel=EXACT)


def test_other_paths_keep_their_time_and_other_traces_their_speed(capsys, tmp_path):
    """--forward and --backward are the host's time: 180 samples at 315 in 5 s, 2.8 times faster."""
    asked = Question("mobilenetv2", "laguna", 36, "paper", 0, 180, 15)
    run = by_compare(capsys, tmp_path, asked, "--forward", "1 s", "--backward", "4 s")
    pace = 315 / 5 / 32.3
    assert 720 / run.speed == pytest.approx(180 / 33.4 / pace + 1.825, rel=EMULATED)


REFUSED = [
    (("tune", "squeezenet", "--drives", "laguna=36", "--batch", "paper"), "published"),
    (("tune", "gpt-small", "--host-batch", "64", "--batch", "paper"), "published"),
    (("tune", "mobilenetv2", "--batch", "printed"), "'paper', 'tuned'"),
    (("tune", "mobilenetv2", "--batch", "paper", "--allocator", "best"), "--allocator best"),
    (("tune", "mobilenetv2", "--drive-batch", "9", "--allocator", "best"), "--drive-batch 9 sets"),
    (("tune", "mobilenetv2", "--drive-batch", "9", "--batch", "tuned"), "--drive-batch 9: --batch"),
    (("tune", "mobilenetv2", "--drive-batch", "0"), "--drive-batch 0: must be from 1 to"),
    (("scale", "mobilenetv2", "--drive-batch", "900"),
     "memory of newport holds a batch of at most 111"),
    (("tune", "mobilenetv2", "--batch", "paper", "--set", "dram.isp=1 GB"),
     "holds a batch of at most 17"),
    (("tune", "mobilenetv2", "--cores-taken", "8"), "8 of 8 cores taken"),
    (("scale", "mobilenetv2", "--cores-taken", "-1"), "-1 of 8 cores taken"),
    (("simulate", "mobilenetv2", "--cores-taken", "nan"), "cores taken"),
    (("tune", "mobilenetv2", "--slowdown", "laguna"), "nearest: laguna-host"),
    (("simulate", "mobilenetv2", "--no-reading", "--cores-taken", "1", "--draw-load", "0.2,9"),
     "--draw-load and --cores-taken cannot be combined"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_bad_questions_of_stannis(capsys, words, message):
    done = here(capsys, "stannis", *words)
    refused(done)
    assert message in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("squeezenet", "--device", "laguna", "--batch", "paper"), "no batches are published"),
        (("gpt-small", "--device", "newport", "--batch", "paper"), "use batch tuned"),
        (("mobilenetv2", "--device", "laguna", "--cores-taken", "8"), "--cores-taken 8"),
        (("mobilenetv2", "--device", "laguna", "--cores-taken", "nan"), "--cores-taken nan"),
        (("mobilenetv2", "--device", "laguna", "--slowdown", "line"), "nearest: linear"),
        (("mobilenetv2", "--device", "laguna", "--batch", "papr"), "--batch"),
        (("mobilenetv2", "--device", "newport", "--batch", "paper", "--set", "dram.isp=1 GB"),
         "holds a batch of at most 17"),
    ],
)  # fmt: skip
def test_bad_questions_of_compare(capsys, words, message):
    done = here(capsys, "compare", *words, "--paths", "stannis", "--json", "-")
    refused(done)
    assert message in done.err
