"""Do --host-batch and --drive-batch give the batches of a cluster, and are bad ones refused?"""

import json
import re

import pytest

from ondie import traces
from ondie.emu.analysis.answer import answer
from ondie.emu.analysis.compare import compare
from ondie.emu.config.config import load_preset
from ondie.emu.paths.base import Options
from ondie.emu.paths.data_parallel import Stannis
from tests.smoke.commands import LITTLE_FLASH, files, here, refused

NEWPORTS = ("--device", "newport", "--devices", "24", "--paths", "stannis", "--no-swing",
            *(word for key in LITTLE_FLASH for word in ("--set", key)))  # fmt: skip


def result(capsys, tmp_path, *words: object):
    out = tmp_path / "result.json"
    done = here(capsys, "compare", *words, "--json", out, "--quiet")
    assert (done.code, done.out) == (0, ""), done
    return json.loads(out.read_text())


def test_given_as_published_is_published(capsys, tmp_path):
    """STANNIS, Table I: 315 on the host and 25 on each of 24 Newports; everything is the same."""
    paper = result(capsys, tmp_path, "mobilenetv2", *NEWPORTS, "--batch", "paper")
    words = ("--host-batch", "315", "--drive-batch", "25")
    given = result(capsys, tmp_path, "mobilenetv2", *NEWPORTS, *words)
    assert given["paths"] == paper["paths"] and given["answer"] == paper["answer"]
    asked = {key: given["options"][key] for key in ("batch", "host_batch", "drive_batch")}
    assert asked == {"batch": "given", "host_batch": 315, "drive_batch": 25}
    asked = {key: paper["options"][key] for key in ("batch", "host_batch", "drive_batch")}
    assert asked == {"batch": "paper", "host_batch": None, "drive_batch": None}


def test_the_hosts_batch_is_tuned_to_the_drives(capsys, tmp_path):
    """MobileNetV2: 10 samples take a Newport (10 + 1) / 26 x 25 / 3.08 s; the host, 1.2 times that:
    (b + 1) / 316 x 315 / 32.3 s. A recorded trace has one speed, so 1.2 x 4 / ratio."""
    drive_s = 11 / 26 * 25 / 3.08
    host = 1.2 * drive_s / (315 / 32.3) * 316 - 1
    data = result(capsys, tmp_path, "mobilenetv2", *NEWPORTS, "--drive-batch", "10")
    note = data["paths"][0]["notes"][0]
    assert f"= host {round(host)} + 24 x 10," in note
    assert data["options"]["host_batch"] is None

    cfg, trace = load_preset("newport"), traces.load("gpt-small")
    samples = trace.samples_per_step
    path = Stannis(cfg, trace, Options(batch="given", drive_batch=1))
    assert path.batches(0) == (min(samples, round(1.2 / path.ratio)), 1)


def test_a_host_alone_is_the_question_of_stannis_tune(capsys, tmp_path):
    words = ("gpt-small", "--host-batch", "64")
    data = result(capsys, tmp_path, *words, "--device", "newport", "--paths", "stannis",
                  "--no-swing")  # fmt: skip
    out = tmp_path / "tune.json"
    here(capsys, "stannis", "tune", *words, "--drives", "newport=1", "--json", out)
    (row,) = [row for row in json.loads(out.read_text())["allocations"] if row["chosen"]]
    host, drive = row["samples"]["host"], row["samples"]["newport"]
    assert host <= 64  # an upper limit
    assert f"batch {host + drive} = host {host} + 1 x {drive}," in data["paths"][0]["notes"][0]
    assert (data["options"]["batch"], data["options"]["host_batch"]) == ("tuned", 64)


def test_a_host_alone_is_limited_and_not_set(capsys, tmp_path):
    """More drives let the host train on fewer samples than its limit."""
    data = result(capsys, tmp_path, "gpt-small", "--host-batch", "64", "--device", "newport",
                  "--devices", "3", "--paths", "stannis", "--no-swing")  # fmt: skip
    found = re.search(r"= host (\d+) \+ 3 x (\d+),", data["paths"][0]["notes"][0])
    assert 1 <= int(found[1]) < 64


def test_both_batches_of_a_trace_are_kept(capsys, tmp_path):
    """The user states that they fit; no other batch than the trace's is known to."""
    cfg, trace = load_preset("newport", ["system.devices=2"]), traces.load("gpt-small")
    most = trace.samples_per_step
    path = Stannis(cfg, trace, Options(batch="given", host_batch=3 * most, drive_batch=most))
    assert path.batches(0) == (3 * most, most, most) and path.global_batch == 5 * most
    host, drive = path.engines
    took = [host.seconds(3 * most), drive.seconds(most), drive.seconds(most)]
    assert sum(path.seconds(0)) / 1e12 == pytest.approx(took)


@pytest.mark.parametrize(("host", "drive", "equal"), [(303, 4, True), (303, 5, False)])
def test_given_batches_are_compared_per_sample_unless_equal(host, drive, equal):
    """303 + 3 x 4 is the batch of the trace."""
    trace, cfg = traces.load("mobilenetv2"), load_preset("newport", ["system.devices=3"])
    options = Options(batch="given", host_batch=host, drive_batch=drive)
    c = compare(trace, cfg, paths=["host_offload", "stannis"], options=options, swing=False)
    found = answer(c)
    rows = {row.name: row for row in found.strategies}
    assert rows["stannis"].samples_per_step == host + 3 * drive
    assert rows["host_offload"].samples_per_step == 315
    assert found.equal_batches == equal
    for verdict, figure in (
        (found.fastest, lambda row: row.step_s / row.samples_per_step),
        (found.least_energy, lambda row: row.all_j_per_sample[1]),
    ):
        assert verdict.value == min(map(figure, rows.values()))


CLUSTER = ("mobilenetv2", "--device", "newport", "--devices", "2")
REFUSED = [
    ((*CLUSTER, "--host-batch", "0", "--drive-batch", "3"), "--host-batch 0: must be from 1 to"),
    ((*CLUSTER, "--drive-batch", "-4"), "--drive-batch -4: must be from 1 to 1048576"),
    ((*CLUSTER, "--drive-batch", "9" * 30), "--drive-batch"),
    ((*CLUSTER, "--drive-batch", "2.5"), "'2.5' is not a valid integer"),
    ((*CLUSTER, "--drive-batch", "25", "--batch", "paper"),
     "--drive-batch 25: --batch paper uses the published batches; remove one"),
    ((*CLUSTER, "--host-batch", "25", "--batch", "same"),
     "--host-batch 25: --batch same uses other batches; remove one"),
    ((*CLUSTER, "--drive-batch", "25", "--batch", "tuned"), "--drive-batch 25: --batch tuned"),
    ((*CLUSTER, "--host-batch", "25"), "also give --drive-batch"),
    # what does not fit, as for published and tuned batches
    ((*CLUSTER, "--drive-batch", "900"),
     "--drive-batch 900: the memory of newport holds a batch of at most 111; use at most 111"),
    ((*CLUSTER, "--host-batch", "9999", "--drive-batch", "9"),
     "memory of host holds a batch of at most"),
    ((*CLUSTER, "--drive-batch", "25", "--set", "dram.isp=1 GB"), "holds a batch of at most 17"),
    (("gpt-small", "--device", "newport", "--drive-batch", "1048576", "--set",
      "isp.training_ratio=1e-9"), "takes"),
    # no cluster
    (("gpt-small", "--host-batch", "3"), "isp.kind = fpga"),
    (("gpt-small", "--drive-batch", "3", "--device", "gen4-tlc"), "no processor"),
    ((*CLUSTER, "--drive-batch", "3", "--paths", "host_offload,in_storage"),
     "--drive-batch 3 applies only to training on a cluster, but --paths has host_offload, "
     "in_storage; add stannis"),
    ((*CLUSTER, "--drive-batch", "3", "--paths", "in_storage", "--sweep", "isp.cores=2,4"),
     "applies only to training on a cluster"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=lambda x: " ".join(x)[-50:])
def test_bad_batches(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    refused(here(capsys, "compare", *words), message)
    assert files(tmp_path) == []
