"""fio's result in JSON for jobs that the emulator replays: a measurement whose constants are known.

Owns the jobs, their replay, the bins of fio's latencies and the document. Does not own the
simulation of the calibration (emu/analysis/calibrate/simulate.py), and shares no code with it.
Source: fio 3.33, stat.c (plat_val_to_idx, plat_idx_to_val, show_thread_status_json).
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.replay.block_trace import Loop, capacity, replay_block
from ondie.traces.block_model import BlockTrace

BITS = 6
"""Bins of a latency: 64 in each power of two (FIO_IO_U_PLAT_BITS)."""
SIZE = 4 << 30
"""Bytes of the drive that a job uses: `size` in the job file of `ondie calibrate --jobs`."""


@dataclass(frozen=True)
class Job:
    """A job of fio; `rwmixread` counts only with `rw` = randrw."""

    rw: str
    bs: int
    iodepth: int
    rwmixread: int = 70

    @property
    def read_share(self) -> float:
        return {"read": 1.0, "write": 0.0}.get(self.rw.removeprefix("rand"), self.rwmixread / 100)


def grid(blocks=(4096, 16384, 131072), depths=(1, 4, 16, 64)) -> list[Job]:
    """Every combination of block size, depth, and reads, a mix, or writes."""
    return [Job(rw, bs, depth) for rw in ("randread", "randrw", "randwrite") for bs in blocks
            for depth in depths]  # fmt: skip


def binned(latency_ns: int) -> int:
    """A latency as fio's percentiles give it: the middle of its bin."""
    if latency_ns < 2 << BITS:
        return latency_ns
    error_bits = latency_ns.bit_length() - BITS - 1
    index = latency_ns >> error_bits
    return int((index + 0.5) * (1 << error_bits))


def times(latency_ps: np.ndarray) -> dict:
    """`clat_ns` of latencies in ps."""
    ns = np.sort(latency_ps) // 1000
    return {
        "min": int(ns[0]), "max": int(ns[-1]), "mean": float(ns.mean()), "stddev": float(ns.std()),
        "N": len(ns),
        "percentile": {
            f"{p:.6f}": binned(int(ns[min(int(np.ceil(p / 100 * len(ns))), len(ns)) - 1]))
            for p in (1, 50, 90, 95, 99, 99.9)
        },
    }  # fmt: skip


def measured(cfg: Config, job: Job, requests: int, seed: int) -> dict:
    """The entry of a job of ``requests`` requests, of which the first third are its ramp."""
    rng = np.random.default_rng((seed, job.bs, job.iodepth, int(100 * job.read_share)))
    places = min(capacity(cfg), SIZE) // job.bs
    trace = BlockTrace(
        arrival_ps=np.zeros(requests, np.int64),
        op=(rng.random(requests) >= job.read_share).astype(np.int8),
        offset=rng.integers(0, places, requests) * job.bs,
        size=np.full(requests, job.bs, np.int64),
        device=np.zeros(requests, np.int32),
        devices=("fio",), source="fio", format="fio", timed=False,
    )  # fmt: skip
    done = replay_block(trace, cfg, Loop(job.iodepth), kind="fill").requests
    # The last requests run at a falling depth, which a job that ends by its time has not.
    begin, end = np.sort(done["end"])[[requests // 3, requests - job.iodepth - 1]]
    done = done[(done["end"] > begin) & (done["end"] <= end)]
    entry = {
        "jobname": f"{job.rw}-{job.bs}-{job.iodepth}", "groupid": 0, "error": 0,
        "job options": {"rw": job.rw, "bs": str(job.bs), "iodepth": str(job.iodepth),
                        **({"rwmixread": str(job.rwmixread)} if job.rw == "randrw" else {})},
        "usr_cpu": 5.0, "sys_cpu": 20.0,
    }  # fmt: skip
    seconds = (end - begin) / 1e12
    for op, name in enumerate(("read", "write")):
        part = done[done["op"] == op]
        entry[name] = {
            "io_bytes": len(part) * job.bs, "total_ios": len(part), "iops": len(part) / seconds,
        }  # fmt: skip
        if len(part):
            entry[name]["clat_ns"] = times(part["end"] - part["arrival"])
    return entry


def document(entries: list[dict], version: str = "fio-3.33") -> dict:
    """The whole result; every job is a group."""
    return {
        "fio version": version,
        "global options": {"ioengine": "libaio", "direct": "1", "time_based": "1"},
        "jobs": [entry | {"groupid": i} for i, entry in enumerate(entries)],
    }


def write(path: Path, cfg: Config, jobs: list[Job], requests: int, seed: int) -> Path:
    """Write the result of ``jobs`` on a drive, and return its path."""
    entries = [measured(cfg, job, requests, seed) for job in jobs]
    path.write_text(json.dumps(document(entries), indent=2))
    return path


def plain(job: Job, latency_us: float, requests: int = 4000) -> dict:
    """The entry of a job whose requests all take the same time, without any replay."""
    share = job.read_share
    entry = {
        "jobname": f"{job.rw}-{job.bs}-{job.iodepth}", "groupid": 0, "error": 0,
        "job options": {"rw": job.rw, "bs": str(job.bs), "iodepth": str(job.iodepth),
                        "rwmixread": str(job.rwmixread)},
        "usr_cpu": 5.0, "sys_cpu": 20.0,
    }  # fmt: skip
    for name, part in (("read", share), ("write", 1 - share)):
        count = round(part * requests)
        entry[name] = {"io_bytes": count * job.bs, "total_ios": count,
                       "iops": part * job.iodepth / latency_us * 1e6}  # fmt: skip
        if count:
            entry[name]["clat_ns"] = times(np.full(count, int(latency_us * 1e6)))
    return entry
