"""Job file with which fio measures the points of a calibration.

Owns the points, the options of a job, and the order of the jobs. Does not own the reading of fio's
results (fio_result.py).
Source: fio 3.33, HOWTO.
"""

from __future__ import annotations

from ondie.emu.analysis.calibrate.point import PERCENTILES, Condition
from ondie.emu.config.config import Config

BLOCKS = (4 << 10, 16 << 10, 128 << 10)
DEPTHS = (1, 4, 16, 64)
READ_SHARES = (1.0, 0.7, 0.0)
"""Fractions of reads among the requests of a job, in the order of the jobs. A calibration measures
these fractions with each request size of BLOCKS (bytes) and each queue depth of DEPTHS."""
RAMP_S, RUN_S = 2, 10
SIZE = "4g"

_HEAD = """\
; Points for `ondie calibrate`: block size x depth x share of reads, {jobs} jobs.
; They take {minutes:.0f} minutes.
;
; DRIVE is a file on the drive, or the drive itself; its first {size} are overwritten:
;   export DRIVE=/dev/nvme0n1
;   fio --name=fill --filename=$DRIVE --size={size} --rw=write --bs=1m --iodepth=8 \\
;     --ioengine=libaio --direct=1
;   fio --output-format=json --output=drive.json {file}
;   ondie calibrate drive.json --from {preset}
;
; The simulated drive has been written once and has free blocks. Empty the drive before the
; measurement (blkdiscard, or fstrim), so that garbage collection does not start during it.

[global]
filename=${{DRIVE}}
size={size}
ioengine=libaio
direct=1
norandommap
randrepeat=0
time_based
ramp_time={ramp}
runtime={run}
group_reporting
clat_percentiles=1
percentile_list={percentiles}
"""


def conditions(cfg: Config) -> list[Condition]:
    """Return the conditions to measure on a drive with configuration ``cfg``: all combinations of
    request size (BLOCKS), queue depth (DEPTHS) and fraction of reads (READ_SHARES) whose depth does
    not exceed the queue depth of the drive."""
    depths = [depth for depth in DEPTHS if depth <= cfg.frontend.queue_depth]
    return [
        Condition(share, True, block, depth)
        for share in READ_SHARES
        for block in BLOCKS
        for depth in depths
    ]


def job_file(cfg: Config, preset: str, name: str) -> str:
    """Return the text of the fio job file for a drive with configuration ``cfg``.

    ``preset``: name of the preset in the comment at the start of the file. ``name``: name of the
    job file in this comment.
    """
    points = conditions(cfg)
    text = _HEAD.format(
        jobs=len(points), minutes=len(points) * (RAMP_S + RUN_S) / 60, size=SIZE, file=name,
        preset=preset, ramp=RAMP_S, run=RUN_S, percentiles=":".join(f"{p:g}" for p in PERCENTILES),
    )  # fmt: skip
    return text + "".join(_job(each) for each in points)


def _job(condition: Condition) -> str:
    """Return the section of the fio job file that measures ``condition``."""
    share = round(100 * condition.read_share)
    pattern = {100: "randread", 0: "randwrite"}.get(share, "randrw")
    mix = f"rwmixread={share}\n" if pattern == "randrw" else ""
    block = f"{condition.block_bytes >> 10}k"
    return (
        f"\n[{pattern}{share if mix else ''}-{block}-{condition.depth}]\nstonewall\nrw={pattern}\n"
        f"{mix}bs={block}\niodepth={condition.depth}\n"
    )
