"""Are fio's results read as its documentation says, and others refused by name?"""

import copy
import json
import shutil
import subprocess

import pytest

from ondie.emu.analysis.calibrate.fio_jobs import conditions, job_file
from ondie.emu.analysis.calibrate.fio_result import read_fio
from ondie.emu.analysis.calibrate.point import Condition, held_out, merged
from ondie.emu.config.config import load_preset
from ondie.emu.units import InputError
from tests.fidelity.fio_json import Job, binned, document, plain

JOB = Job("randrw", 4096, 4)
TERSE = "3;fio-3.33;r4;0;0;243604;243360;60840;1001;1337;170691;3973.56"
NORMAL = """r4: (g=0): rw=randread, bs=(R) 4096B-4096B, (W) 4096B-4096B, ioengine=libaio, iodepth=4
fio-3.33
Starting 1 process

r4: (groupid=0, jobs=1): err= 0: pid=15924: Thu Nov 26 16:42:56 2026
"""


def read(tmp_path, content):
    path = tmp_path / "fio.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_fio(path)


def changed(where, value):
    """A result of one job with ``value`` at the place ``where``; DELETE removes it."""
    whole = document([plain(JOB, 80.0)])
    *path, last = where
    at = whole
    for name in path:
        at = at[name]
    if value is DELETE:
        del at[last]
    else:
        at[last] = value
    return whole


DELETE = object()
OPTIONS = ("jobs", 0, "job options")
READ = ("jobs", 0, "read")


def test_a_point_has_its_conditions_and_figures(tmp_path):
    (found,) = read(tmp_path, document([plain(JOB, 80.0)]))
    assert found.condition == Condition(0.7, True, 4096, 4)
    assert found.figures.iops == pytest.approx(50_000)
    assert found.figures.latency["read"].mean == pytest.approx(80)
    assert found.figures.latency["write"].percentiles[99.0] == pytest.approx(80, rel=1 / 128)
    assert found.host_us == pytest.approx(0, abs=1e-6)
    assert found.busy == pytest.approx(0.25)


def test_bins_are_those_of_fio():
    """fio 3.33 prints these percentiles: a percentile is the middle of the bin of its latency."""
    assert [binned(ns) for ns in (100, 58_000, 71_100, 110_000)] == [100, 58_112, 71_168, 110_080]


@pytest.mark.parametrize(
    ("options", "condition"),
    [
        ({"rw": "randread"}, Condition(1.0, True, 4096, 4)),
        ({"rw": "write"}, Condition(0.0, False, 4096, 4)),
        ({"rw": "rw", "rwmixwrite": "30"}, Condition(0.7, False, 4096, 4)),
        ({"rw": "randread", "numjobs": "8"}, Condition(1.0, True, 4096, 32)),
        ({"rw": "randread", "ioengine": "psync", "numjobs": "3"}, Condition(1.0, True, 4096, 3)),
    ],
)  # fmt: skip
def test_options_give_the_conditions(tmp_path, options, condition):
    share = condition.read_share
    job = plain(Job("randrw", 4096, 4, round(100 * share)), 80.0)
    for name in ("read", "write"):  # as many outstanding requests as the depth
        job[name]["iops"] *= condition.depth / 4
    job["job options"] = {"bs": "4k", "iodepth": "4"} | options
    assert read(tmp_path, document([job]))[0].condition == condition


def test_global_options_count(tmp_path):
    whole = document([plain(JOB, 80.0)])
    del whole["jobs"][0]["job options"]["iodepth"]
    whole["global options"]["iodepth"] = "4"
    assert read(tmp_path, whole)[0].condition.depth == 4


def test_latencies_with_submission_are_used_if_they_have_the_percentiles(tmp_path):
    whole = document([plain(JOB, 80.0)])
    for name in ("read", "write"):
        section = whole["jobs"][0][name]
        section["lat_ns"] = copy.deepcopy(section["clat_ns"])
        del section["clat_ns"]["percentile"]
    assert read(tmp_path, whole)[0].figures.latency["read"].percentiles[50.0] > 79


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (TERSE, "terse output; run fio with --output-format=json"),
        (NORMAL, "normal output; run fio with --output-format=json"),
        ("", "is not JSON"),
        ("fio: note\n" + json.dumps(document([plain(JOB, 80.0)])), "text around fio's JSON"),
        (json.dumps(document([plain(JOB, 80.0)]))[:-40], "text around fio's JSON, or is truncated"),
        ({"version": "iperf 3.1", "intervals": []}, "is not a result of fio"),
        ([1, 2], "is not a result of fio"),
        (document([plain(JOB, 80.0)], version="fio-2.21"), '"fio-2.21"; use fio 3'),
        ({"fio version": "fio-3.33", "client_stats": []}, "results of fio clients"),
        ({"fio version": "fio-3.33", "jobs": []}, "has no jobs"),
    ],
)  # fmt: skip
def test_other_files_are_refused(tmp_path, content, words):
    with pytest.raises(InputError, match="fio.json: ") as error:
        read(tmp_path, content)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        ((*READ, "clat_ns"), {"mean": 8e4}, "percentiles 50, 90, 99 of clat_ns or lat_ns"),
        ((*READ, "clat_ns", "percentile", "90.000000"), DELETE, "clat_percentiles=1"),
        ((*READ, "clat_ns", "percentile", "90.000000"), 70_000, "percentiles decrease"),
        ((*READ, "clat_ns", "mean"), 80_000_000.0, "outstanding requests, but the depth is 4"),
        ((*READ, "clat_ns", "mean"), "80", "is not a number"),
        ((*READ, "total_ios"), 10, "are reads, but the job's options request 70 %"),
        ((*READ, "io_bytes"), 5000 * 2800, "5,000 B on average, but bs is 4,096 B"),
        ((*OPTIONS, "bs"), "4k,8k", "must be a single size that is a multiple of 512 B"),
        ((*OPTIONS, "bs"), "4100", "must be a single size that is a multiple of 512 B"),
        ((*OPTIONS, "bs"), "4ki", "must be a single size that is a multiple of 512 B"),
        ((*READ, "iops"), 0.0, "read: iops = 0.0: must be at least 1e-09"),
        (READ, DELETE, '"read" is missing'),
        (("jobs", 0, "error"), 5, "ended with error 5"),
        ((*OPTIONS, "ioengine"), "null", "ioengine = null does not access a block device"),
        ((*OPTIONS, "ioengine"), "mmap", "use libaio or io_uring"),
        (("global options", "direct"), "0", "page cache; set direct=1"),
        ((*OPTIONS, "rw"), "trim", "rw = trim is not supported"),
        ((*OPTIONS, "rw"), "randread:8", "rw = randread:8 is not supported"),
        ((*OPTIONS, "rate_iops"), "1000", "a limited rate"),
        ((*OPTIONS, "bssplit"), "4k/50:8k/50", "several block sizes"),
        ((*OPTIONS, "fsync"), "1", "flushes"),
        ((*OPTIONS, "iodepth_batch"), "8", "batches"),
        ((*OPTIONS, "iodepth_batch"), "0", "batches"),  # of iodepth requests
        ((*OPTIONS, "percentage_random"), "0", "sequential offsets"),
        ((*OPTIONS, "percentage_random"), "50", "sequential offsets"),
        ((*OPTIONS, "iodepth_batch_submit"), "0", "batches"),
        ((*OPTIONS, "sync"), "dsync", "flushes"),
        ((*OPTIONS, "random_distribution"), "zipf:1.2", "random_distribution = zipf"),
        ((*OPTIONS, "iodepth"), "many", "must be a whole number of at least 1"),
    ],
)  # fmt: skip
def test_jobs_that_are_no_closed_loop_are_refused(tmp_path, where, value, words):
    with pytest.raises(InputError, match='job "randrw-4096-4": ') as error:
        read(tmp_path, changed(where, value))
    assert words in str(error.value)


def test_microseconds_of_fio_2_are_refused(tmp_path):
    whole = document([plain(JOB, 80.0)])
    section = whole["jobs"][0]["read"]
    section["clat"] = section.pop("clat_ns")
    with pytest.raises(InputError, match="latencies are in microseconds .clat., as fio 2"):
        read(tmp_path, whole)


@pytest.mark.parametrize(
    ("name", "value"),
    [("zonemode", "none"), ("rate_iops", "0"), ("iodepth_batch", "1"), ("percentage_random", "100"),
     ("iodepth_batch_complete_min", "0"), ("iodepth_batch_complete", "0"), ("sync", "none")],
)  # fmt: skip
def test_options_without_effect_are_taken(tmp_path, name, value):
    assert read(tmp_path, changed((*OPTIONS, name), value))


def test_too_few_requests_are_refused(tmp_path):
    with pytest.raises(InputError, match="has 700 reads, too few for percentiles"):
        read(tmp_path, document([plain(JOB, 80.0, requests=1000)]))


def test_jobs_at_the_same_time_are_refused(tmp_path):
    entries = [plain(Job("randread", 4096, 1), 80.0), plain(Job("randread", 8192, 1), 80.0)]
    whole = document(entries)
    whole["jobs"][1]["groupid"] = 0
    with pytest.raises(InputError, match="ran at the same time; add the option stonewall"):
        read(tmp_path, whole)
    whole["jobs"][1]["jobname"] = whole["jobs"][0]["jobname"]
    with pytest.raises(InputError, match="has several entries; use group_reporting"):
        read(tmp_path, whole)


def points(tmp_path, jobs):
    return read(tmp_path, document([plain(job, latency) for job, latency in jobs]))


def test_repeated_points_are_merged_and_contradictions_refused(tmp_path):
    jobs = [(Job("randread", 4096, depth), 80.0) for depth in (1, 2, 4, 8)]
    found = merged(points(tmp_path, [*jobs, (Job("randread", 4096, 2), 90.0)]))
    assert [each.repeats for each in found] == [1, 2, 1, 1]
    assert found[1].figures.latency["read"].mean == pytest.approx((80 * 90) ** 0.5)
    assert found[1].figures.iops == pytest.approx(2e6 / (80 * 90) ** 0.5)
    with pytest.raises(InputError, match="under the same conditions; measure again"):
        merged(points(tmp_path, [*jobs, (Job("randread", 4096, 2), 200.0)]))


def test_one_point_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"1 point \(4.00 KiB randread depth 1\): a fit needs"):
        merged(points(tmp_path, [(Job("randread", 4096, 1), 80.0)] * 2))


def test_half_of_the_points_of_each_kind_are_held_out(tmp_path):
    jobs = [(Job(rw, 4096, depth), 80.0) for rw in ("randread", "randrw", "randwrite")
            for depth in (1, 2, 4, 8, 16)]  # fmt: skip
    found = merged(points(tmp_path, jobs))
    draws = [held_out(found, seed) for seed in range(20)]
    for held in draws:
        assert sum(held) == 7
        for directions in {each.condition.directions for each in found}:
            members = [out for out, each in zip(held, found, strict=True)
                       if each.condition.directions == directions]  # fmt: skip
            assert 2 <= sum(members) <= 3
    assert held_out(found, 0) == draws[0]
    assert len({tuple(held) for held in draws}) > 10


def test_fio_takes_the_job_file(tmp_path):
    cfg = load_preset("gen4-tlc", ["frontend.queue_depth=32"])
    text = job_file(cfg, "gen4-tlc", "drive.fio")
    names = [line[1:-1] for line in text.splitlines() if line.startswith("[")]
    assert len(names) == len(set(names)) == 1 + len(conditions(cfg))
    assert all(each.depth <= 32 for each in conditions(cfg))
    assert "fio --output-format=json --output=drive.json drive.fio" in text
    path = tmp_path / "drive.fio"
    path.write_text(text)
    fio = shutil.which("fio")
    assert fio is not None, "fio is not installed"
    subprocess.run([fio, "--parse-only", path], check=True, env={"DRIVE": "drive"}, timeout=60)
