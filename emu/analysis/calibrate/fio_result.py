"""Reader of fio's results: the points in the JSON output (`json` or `json+`) of fio 3.

Owns the format, the checks of a job's options, and the error messages for results that cannot be
used. Does not own the record of a point (point.py).
Source: fio 3.33, HOWTO ("JSON output", "Group reporting") and stat.c; times are in nanoseconds
since fio 3.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ondie.emu.analysis.calibrate.point import (
    PERCENTILES,
    Condition,
    Figures,
    Latency,
    Point,
    point,
)
from ondie.emu.units import InputError, plural, quoted

QUEUED = ("libaio", "io_uring", "io_uring_cmd", "posixaio", "windowsaio", "solarisaio")
"""I/O engines of fio that keep ``iodepth`` requests outstanding."""
SYNCHRONOUS = ("psync", "sync", "vsync", "pvsync", "pvsync2")
"""I/O engines of fio that keep one request outstanding per job."""
RANDOM = {"randread": True, "randwrite": True, "randrw": True,
          "read": False, "write": False, "rw": False, "readwrite": False}  # fmt: skip
"""Access patterns of fio, by name. The value is True if the offsets are random."""
REFUSED = {
    "bssplit": "several block sizes", "bsrange": "several block sizes",
    "rate": "a limited rate", "rate_iops": "a limited rate", "thinktime": "pauses",
    "rate_min": "a limited rate", "rate_iops_min": "a limited rate", "fsync": "flushes",
    "fdatasync": "flushes", "sync_file_range": "flushes", "verify": "verification",
    "zonemode": "zones", "latency_target": "a varying depth", "iodepth_low": "a varying depth",
    "iodepth_batch": "batches", "iodepth_batch_submit": "batches",
    "iodepth_batch_complete": "batches", "iodepth_batch_complete_min": "batches",
    "iodepth_batch_complete_max": "batches", "percentage_random": "sequential offsets",
    "serialize_overlap": "held requests", "cmdprio_percentage": "priorities",
}  # fmt: skip
"""Options of fio that prevent a job from being a closed loop of equal requests. Each value
describes the effect of the option."""
HARMLESS = {
    "zonemode": ("none",), "percentage_random": ("100",), "iodepth_batch": ("1",),
    "iodepth_batch_submit": ("1",), "iodepth_batch_complete": ("0", "1"),
    "iodepth_batch_complete_min": ("0", "1"),
}  # fmt: skip
"""For some options of REFUSED, the values that are accepted because the option then has no effect.
The other options of REFUSED have no effect with the value 0. With percentage_random = 0, a random
job of fio is sequential; with iodepth_batch = 0, fio submits batches of iodepth requests."""
FEWEST_REQUESTS = 1000
"""Smallest number of requests per direction. The latencies of ten of them exceed the 99th
percentile."""
MIX_TOLERANCE = 0.05
"""Largest allowed difference between the measured fraction of reads and rwmixread / 100."""
SIZE_TOLERANCE = 0.02
"""Largest allowed relative difference between the mean size of the requests and the size that
fio's option bs states. With a ramp time, fio includes in its byte count some requests that it does
not include in its request count."""
SECTOR = 512


def read_fio(path: Path) -> list[Point]:
    """Read a result file of fio, and return its points, one for each group of jobs.

    Raises InputError if the file is not a JSON result of fio 3, or if a job is not a closed loop of
    equal requests with latency percentiles.
    """
    result = _document(path)
    shared = result.get("global options", {})
    jobs = result["jobs"]
    if not isinstance(jobs, list) or not jobs or not all(isinstance(job, dict) for job in jobs):
        raise InputError(f"{path}: the result has no jobs; run fio with at least one job")
    _check_groups(path, jobs)
    return [_point(f"{path}: job {quoted(job.get('jobname'))}", job, shared) for job in jobs]


def _document(path: Path) -> dict[str, Any]:
    """Return the JSON object in a result file of fio 3. Raises InputError for any other file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: the file is not UTF-8 text: byte {error.start} is invalid; use the JSON "
            "output of fio"
        ) from error
    asked = "run fio with --output-format=json"
    try:
        result = json.loads(text)
    except (ValueError, RecursionError) as error:
        if re.match(r"\s*\d+;fio-\d", text):
            raise InputError(f"{path}: the file contains fio's terse output; {asked}") from error
        if re.search(r"\(groupid=\d+, jobs=\d+\)|: \(g=\d+\): rw=", text):
            raise InputError(f"{path}: the file contains fio's normal output; {asked}") from error
        if '"fio version"' in text:
            raise InputError(
                f"{path}: the file contains text around fio's JSON, or is truncated; run fio with "
                "--output FILE, or remove the lines before the first {"
            ) from error
        raise InputError(f"{path}: the file is not JSON; {asked}") from error
    if not isinstance(result, dict) or "fio version" not in result:
        raise InputError(
            f'{path}: the file is not a result of fio: "fio version" is missing; {asked}'
        )
    version = str(result["fio version"])
    if not re.match(r"fio-3\.", version):
        raise InputError(
            f"{path}: the file is a result of {quoted(version)}; use fio 3, whose latencies are in "
            "nanoseconds"
        )
    if "jobs" not in result:
        what = "results of fio clients" if "client_stats" in result else "no jobs"
        raise InputError(
            f"{path}: the file contains {what}; run fio directly on the machine with the drive"
        )
    return result


def _check_groups(path: Path, jobs: list[dict[str, Any]]) -> None:
    """Raise InputError if jobs that ran at the same time have separate entries in the result."""
    seen: dict[Any, str] = {}
    for job in jobs:
        name, group = str(job.get("jobname")), job.get("groupid")
        if group in seen:
            if seen[group] == name:
                raise InputError(
                    f"{path}: job {quoted(name)} has several entries; use group_reporting with "
                    "numjobs"
                )
            raise InputError(
                f"{path}: jobs {quoted(seen[group])} and {quoted(name)} ran at the same time; add "
                "the option stonewall to each job"
            )
        seen[group] = name


def _point(place: str, job: Mapping[str, Any], shared: Mapping[str, Any]) -> Point:
    """Return the point that job ``job`` measured. ``place``: file and job, for messages.
    ``shared``: options of all jobs. Raises InputError if the job has failed, is not a closed loop
    of equal requests, or has missing or contradictory metrics."""
    if job.get("error", 0):
        raise InputError(f"{place}: the job ended with error {job['error']}; run it again")
    own = job.get("job options", {})
    options = {str(key): str(value) for key, value in {**shared, **own}.items()}
    _check_options(place, options)
    condition = _condition(place, job, options)
    latency, iops = {}, 0.0
    for direction in condition.directions:
        latency[direction] = _latency(place, direction, _section(place, job, direction))
        iops += _number(place, f"{direction}: iops", job[direction].get("iops"))
    busy = _number(place, "usr_cpu", job.get("usr_cpu", 0), least=0)
    busy += _number(place, "sys_cpu", job.get("sys_cpu", 0), least=0)
    return point(condition, Figures(iops, latency), place, busy / 100)


def _check_options(place: str, options: Mapping[str, str]) -> None:
    """Raise InputError if an option prevents a job from being a closed loop that accesses the drive
    directly."""
    engine = options.get("ioengine", "psync").partition(":")[0]
    if engine not in (*QUEUED, *SYNCHRONOUS):
        raise InputError(
            f"{place}: ioengine = {engine} does not access a block device through the kernel; use "
            f"{QUEUED[0]} or {QUEUED[1]}"
        )
    direct = options.get("direct", "0") == "1" or options.get("buffered", "1") == "0"
    if not direct and engine != "io_uring_cmd":
        raise InputError(f"{place}: the job uses the page cache; set direct=1")
    for name, reason in REFUSED.items():
        if name in options and options[name] not in HARMLESS.get(name, ("0",)):
            raise InputError(
                f"{place}: {name} = {options[name]} is not supported ({reason}); remove this option"
            )
    if options.get("sync", "0") not in ("0", "none"):
        raise InputError(
            f"{place}: sync = {options['sync']} is not supported (each write flushes the drive); "
            "remove this option"
        )
    shape = options.get("random_distribution", "random").partition(":")[0]
    if shape != "random":
        raise InputError(
            f"{place}: random_distribution = {shape}: must be random, because the simulation "
            "accesses all addresses with equal probability"
        )


def _condition(place: str, job: Mapping[str, Any], options: Mapping[str, str]) -> Condition:
    """Return the condition that the options of a job state. Raises InputError if the requests of
    the job contradict its options."""
    pattern = options.get("rw", "read")
    if pattern not in RANDOM:
        known = ", ".join(RANDOM)
        raise InputError(f"{place}: rw = {pattern} is not supported; use one of {known}")
    count = {name: _section(place, job, name).get("total_ios", 0) for name in ("read", "write")}
    bytes_moved = {name: job[name].get("io_bytes", 0) for name in ("read", "write")}
    total = sum(count.values())
    if not total:
        raise InputError(f"{place}: the job has neither reads nor writes; run it longer")
    share = _read_share(place, pattern, options)
    if abs(count["read"] / total - share) > MIX_TOLERANCE:
        raise InputError(
            f"{place}: {100 * count['read'] / total:.0f} % of the requests are reads, but the "
            f"job's options request {100 * share:.0f} %; run the job longer"
        )
    size = _block(place, options)
    for name, of in count.items():
        mean = bytes_moved[name] / of if of else size
        if abs(mean / size - 1) > SIZE_TOLERANCE:
            raise InputError(
                f"{place}: {name}: the requests have {mean:,.0f} B on average, but bs is "
                f"{size:,} B; use one block size"
            )
    jobs, depth = (_whole(place, name, options.get(name, "1")) for name in ("numjobs", "iodepth"))
    if options.get("ioengine", "psync").partition(":")[0] in SYNCHRONOUS:
        depth = 1
    if jobs > 1 and not RANDOM[pattern]:
        raise InputError(
            f"{place}: numjobs = {jobs} with rw = {pattern} is not supported, because each job has "
            "a separate sequence of offsets; use numjobs=1 and a larger iodepth"
        )
    return Condition(share, RANDOM[pattern], size, depth * jobs)


def _block(place: str, options: Mapping[str, str]) -> int:
    """Return the block size of a job in bytes. Raises InputError if the job has several block
    sizes, or if fio's unit k is not 1024."""
    text = options.get("bs", "4k")
    sizes = {_size(part) for part in text.lower().split(",") if part}
    (size, *more) = sizes or {None}
    if more or size is None or size % SECTOR or options.get("kb_base", "1024") != "1024":
        raise InputError(
            f"{place}: bs = {quoted(text)}: must be a single size that is a multiple of {SECTOR} "
            "B, such as 4k, and kb_base must be 1024"
        )
    return size


def _size(text: str) -> int | None:
    """Return a size such as "4k" or "4096" in bytes; None if ``text`` is not a size."""
    match = re.fullmatch(r"([1-9]\d*)([kmg]?)b?", text)
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]] if match else None


def _read_share(place: str, pattern: str, options: Mapping[str, str]) -> float:
    """Return the fraction of reads that the options of a job request. Raises InputError if
    rwmixread or rwmixwrite is not a whole number."""
    if "rw" not in pattern and pattern != "readwrite":
        return 1.0 if pattern.endswith("read") else 0.0
    if "rwmixread" in options:
        return min(_whole(place, "rwmixread", options["rwmixread"], 0), 100) / 100
    if "rwmixwrite" in options:
        return 1 - min(_whole(place, "rwmixwrite", options["rwmixwrite"], 0), 100) / 100
    return 0.5


def _section(place: str, job: Mapping[str, Any], direction: str) -> Mapping[str, Any]:
    """Return the section of a job's result for ``direction`` ("read" or "write"). Raises InputError
    if the section is missing."""
    section = job.get(direction)
    if not isinstance(section, dict):
        raise InputError(f'{place}: "{direction}" is missing; run fio with --output-format=json')
    return section


def _latency(place: str, direction: str, section: Mapping[str, Any]) -> Latency:
    """Return the latencies of one direction in us. Raises InputError if percentiles are missing or
    invalid, or if there are fewer than FEWEST_REQUESTS requests."""
    if "clat_ns" not in section and "clat" in section:
        raise InputError(
            f"{place}: {direction}: latencies are in microseconds (clat), as fio 2 writes them; "
            "use fio 3 (clat_ns)"
        )
    requests = section.get("total_ios", 0)
    if requests < FEWEST_REQUESTS:
        raise InputError(
            f"{place}: the job has {plural(requests, direction)}, too few for percentiles; run it "
            f"until it has at least {FEWEST_REQUESTS:,}"
        )
    for name in ("clat_ns", "lat_ns"):
        times = section.get(name, {})
        found = dict(_percentiles(times.get("percentile", {})))
        if all(p in found for p in PERCENTILES):
            mean = _number(place, f"{direction}: {name}: mean", times.get("mean"))
            values = {
                p: _number(place, f"{direction}: {name}: percentile {p:g}", found[p]) / 1e3
                for p in PERCENTILES
            }
            _check_order(place, f"{direction}: {name}", values)
            return Latency(mean / 1e3, values)
    wanted = ", ".join(f"{p:g}" for p in PERCENTILES)
    raise InputError(
        f"{place}: {direction}: the percentiles {wanted} of clat_ns or lat_ns are missing; use "
        f"clat_percentiles=1 and percentile_list={wanted.replace(', ', ':')}"
    )


def _percentiles(found: Mapping[str, Any]) -> Iterator[tuple[float, Any]]:
    """Yield (percentile, latency in ns) for each entry of ``found`` whose key is the text of a
    number, such as "99.000000"."""
    for key, value in found.items():
        try:
            yield float(key), value
        except ValueError:
            continue


def _check_order(place: str, name: str, values: Mapping[float, float]) -> None:
    """Raise InputError if a higher percentile has a smaller latency."""
    order = [values[p] for p in sorted(values)]
    if order != sorted(order):
        shown = ", ".join(f"{p:g}: {values[p]:g} us" for p in sorted(values))
        raise InputError(
            f"{place}: {name}: percentiles decrease ({shown}); use the unmodified output of fio"
        )


def _number(place: str, name: str, value: Any, least: float = 1e-9) -> float:
    """Return ``value``, a number in fio's result. Raises InputError if ``value`` is not a finite
    number or is below ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value < float("inf"):
        raise InputError(
            f"{place}: {name} = {quoted(value)} is not a number; use the unmodified output of fio"
        )
    if value < least:
        raise InputError(
            f"{place}: {name} = {value}: must be at least {least:g}; run the job longer"
        )
    return float(value)


def _whole(place: str, name: str, text: str, least: int = 1) -> int:
    """Return ``text``, the value of fio's option ``name``, as a whole number. Raises InputError if
    ``text`` is not a whole number or is below ``least``."""
    if not text.isdecimal() or int(text) < least:
        raise InputError(
            f"{place}: {name} = {quoted(text)}: must be a whole number of at least {least}"
        )
    return int(text)
