"""Smart-Infinity's results compared with the simulation: `ondie validate smart-infinity`.

Owns the rows of this suite, the prediction of other runs of the paper, the model's forward and
backward time, and the fit. Does not own the paths (paths/smart_infinity.py, with the arithmetic of
the fit row), the swapper of gradients (paths/offload/aio.py) or the drive (presets/smartssd.toml).
Source:
Smart-Infinity (HPCA 2024): GPT-2 of 4.0 G parameters on 6 drives (fit), and Fig. 3(b), the speed of
the baseline with 1 to 10 drives; its repository (buffers and sub-groups).

The speeds of Fig. 3(b) are checked with 1 and 2 drives, where the drives are the bottleneck. With 4
or more drives, the shared link and the fitted CPU determine the time, as in the fit.

The following values are fitted to the run with 6 drives: forward and backward time per parameter
(here), host.adam, host.gradient_copy and host.top_k (in the preset), and the assignment of
published rates to the in-storage processor's path (isp.flash, isp.flash_write). Totals and speedups
follow from the phases. Runs without a published number have rows of kind "shown" with a null
published value. Forward and backward time without I/O is assumed to be proportional to the number
of parameters, for every model and optimizer. Every page of every run is simulated; no pages are
sampled.

The rates of Fig. 14, 2.78 and 1.63 GB/s, are those of Smart-Infinity's own modules: pread and
pwrite between the SSD and the FPGA's memory, on files opened with O_SYNC. They are the rates of the
in-storage processor's path (isp.flash, isp.flash_write). The baseline reads and writes with
DeepSpeed's aio from the host, without O_SYNC, at the rates of the drive's data sheet, 3.3 and 2.0
GB/s. The function ``budget`` prints the update time at both pairs of rates.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from ondie.emu.analysis.compare import WORKERS, run_path
from ondie.emu.analysis.row import CHECK, FIT, IDENTITY, SHOWN, Progress, Row
from ondie.emu.clock import PS_PER_S
from ondie.emu.config.config import Config, load_preset
from ondie.emu.paths.base import Options
from ondie.emu.paths.offload.options import Offload
from ondie.emu.units import InputError, known_names
from ondie.emu.validate.synthetic_models import model as flat_model
from ondie.traces import Trace

SUITE = "smart-infinity"
PAPER = "Smart-Infinity (HPCA 2024)"
FORWARD_S = 0.6575 / 4e9
"""Forward time per parameter (s): mean of the four published forward passes (fitted)."""
BACKWARD_S = 3.343 / 4e9
"""Backward time per parameter without copies of gradients (s), fitted: 5.45 s, the mean of the
published 5.59, 5.33 and 5.43 s, minus 2.11 s for the copies at rate host.gradient_copy.

The 2.11 s follow from SmartComp's backward time of 4.14 s and host.top_k. The rows of the baseline
depend only on the sum of both times, 5.45 s.
"""
PUBLISHED: dict[str, tuple[float, float, float]] = {
    "base": (0.62, 5.59, 17.55),
    "SU": (0.67, 5.33, 13.04),
    "SU+O": (0.67, 5.43, 12.27),
    "SU+O+C": (0.67, 4.14, 10.77),
}
"""Published times (s) of the fitted run (4.0 G parameters, 6 drives) by variant: forward, backward
including gradient writes, and update. PATHS maps each variant to the name of its path."""
PATHS = dict(
    zip(PUBLISHED, ("smart_base", "smart_update", "smart_handler", "smart_comp"), strict=True)
)
FORWARD = ("validate.smart_infinity.FORWARD_S",)
BACKWARD = "validate.smart_infinity.BACKWARD_S"
CONSTANTS = {
    "base": (FORWARD, (BACKWARD, "host.gradient_copy"), ("host.adam",)),
    "SU": (FORWARD, (BACKWARD, "host.gradient_copy"), ("isp.flash", "isp.flash_write")),
    "SU+O": (FORWARD, (BACKWARD, "host.gradient_copy"), ("isp.flash_write",)),
    "SU+O+C": (FORWARD, (BACKWARD, "host.top_k"), ("isp.flash_write",)),
}
"""Constants that were fitted to the forward, backward and update times of each variant. With the
handler's overlap (SU+O, SU+O+C), a higher read rate (isp.flash) changes the update time by less
than 1 %."""
LINK_BYTES = {"base": 32.0, "SU": 8.0, "SU+O+C": 4.08}
"""Bytes per parameter and step on the shared link, by variant of Smart-Infinity."""
BUFFERS = 40
"""Number of pinned buffers: buffer_count of ds_zero_stage_infinity-nvme.json in Smart-Infinity's
repository."""
OPTIMIZERS = ("adam", "momentum", "adagrad")
DRIVES = range(1, 11)
BASE_SPEED = {1: 1.0, 2: 1.546, 4: 2.228, 6: 2.255, 8: 2.257, 10: 2.268}
"""Published speed of the baseline relative to one drive, by number of drives, for 4.0 G
parameters."""
BASE_TOLERANCE = 0.1
READ = (
    "published seconds: the printed total with 6 drives x the printed ratios of speeds. Tolerance "
    "10 %: the rates of the drive are those of its data sheet, up to 3.3 and 2.0 GB/s, from which "
    "other measurements of the same drive differ by 10 to 14 %"
)
SLOWER = "one CSD alone is slower than the baseline; no number is printed for it"
LINK_BOUND = 4
"""Smallest number of drives with which the shared link limits the baseline: four drives, each of
which writes 2.0 GB/s, fill the link of 8 GB/s."""
AS_FIT = (
    f"{PAPER}, Fig. 3(b); with {LINK_BOUND} or more drives, the shared link is the bottleneck, and "
    "the time equals that of the fitted run with 6 drives. Tolerance: that of the fit"
)
SPEEDS = (
    f"{PAPER}, Fig. 3(b): printed speeds relative to one drive. Not checked, because the rows in "
    "seconds state them: the printed total of the fitted run times the printed speeds"
)
OUTSIDE = (
    f"{SPEEDS}. With 2 drives, the predicted speed would be outside a tolerance of "
    f"{BASE_TOLERANCE:.0%}: in the simulation, one drive is slower and two drives are faster than "
    "published. By arithmetic, the update with 2 drives takes 64 GB / 6.6 GB/s + 48 GB / 4 GB/s + "
    "CPU 3.4 s = 25.1 s; the published times are about 28.5 s, and about 47 s with one drive. "
    "Without the CPU time, two published drives are 43.6 / 25.1 = 1.74 times as fast as one, 0.87 "
    "of its rate each; two simulated drives are twice as fast as one"
)
"""Field ``source`` of the speed rows with fewer than LINK_BOUND drives."""
SAVING = 0.1
"""Fraction of the step time that defines the knee. The knee is the smallest number of drives at
which one more drive reduces the step time by less than this fraction. The paper prints no such
fraction; it states "does not scale beyond 4 SSDs"."""


@dataclass(frozen=True)
class Case:
    """A run of the Smart-Infinity paper: numbers of parameters and drives, optimizer, and size of
    the compressed gradient as a percentage of the gradient (0: no compression)."""

    params: int = 4_000_000_000
    drives: int = 6
    optimizer: str = "adam"
    compression: float = 2.0

    def asked(self) -> str:
        """Return the parameters, drives, optimizer and compression of the run as text, for the
        field ``source`` of rows. The variant of Smart-Infinity is not part of the text."""
        drives = "1 SmartSSD" if self.drives == 1 else f"{self.drives} SmartSSDs"
        share = f"compression {self.compression:g} %" if self.compression else "no compression"
        return f"{self.params / 1e9:.10g} G parameters on {drives}, {self.optimizer}, {share}"

    def words(self, variant: str) -> str:
        """Return a description of the run with ``variant``, for the names of rows."""
        drives = "1 drive" if self.drives == 1 else f"{self.drives} drives"
        size = f"{self.params / 1e9:.10g}"
        size += ".0" if "." not in size else ""
        words = f"{size} B, {drives}, {self.optimizer}"
        return f"{words}, {self.compression:g} %" if variant == "SU+O+C" else words


class Times(NamedTuple):
    """Times of the phases of one step (s), and bytes per parameter on the shared link
    (``link``)."""

    forward: float
    backward: float
    update: float
    link: float

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.update


def trace_of(case: Case) -> Trace:
    """Return a trace of one step with the number of parameters of ``case``, and with forward and
    backward times that exclude I/O."""
    flat = flat_model(case.optimizer, case.params)
    step = dataclasses.replace(
        flat.steps[0],
        forward_s=FORWARD_S * case.params,
        backward_s=BACKWARD_S * case.params,
    )
    return dataclasses.replace(flat, steps=(step,))


def simulate(variant: str, case: Case) -> Times:
    """Simulate one step of a variant and return its times and link bytes."""
    cfg = load_preset("smartssd", (f"system.devices={case.drives}",))
    options = Options(compression=case.compression, offload=Offload(buffers=BUFFERS))
    result = run_path(PATHS[variant], cfg, trace_of(case), options, steps=1, payload=False)
    assert result.ledger is not None
    s, c = result.ledger.phases_s, result.ledger.totals.counters
    backward = s["backward"]
    moved = c["host_read_bytes"] + c["host_write_bytes"] + c["up_bytes"] + c["down_bytes"]
    return Times(s["forward"], backward, s["step"] - s["forward"] - backward, moved / case.params)


Job = tuple[str, Case]


def simulate_all(jobs: Sequence[Job], progress: Progress) -> dict[Job, Times]:
    """Run :func:`simulate` with the arguments of each job in ``jobs``, in WORKERS threads; return
    the times by job."""
    found: dict[Job, Times] = {}
    with ThreadPoolExecutor(WORKERS) as pool:
        for job, times in zip(jobs, pool.map(lambda job: simulate(*job), jobs), strict=True):
            found[job] = times
            if progress is not None:
                progress(SUITE, len(found) / len(jobs))
    return found


def smart_infinity_rows(
    progress: Progress,
    model: str | None = None,
    drives: int | None = None,
    optimizer: str | None = None,
    compression: str | None = None,
) -> list[Row]:
    """Return the rows of :func:`shape_rows`, or the rows of one run if any option is given.

    An option that is None has its value in the published run to which the constants are fitted
    (Case()). ``model``: number of parameters, such as "8.4b". ``compression``: percentage, or
    "none". Raises InputError for an invalid option.
    """
    if (model, drives, optimizer, compression) == (None, None, None, None):
        return shape_rows(progress)
    case = read_case(model, drives, optimizer, compression)
    variants = [v for v in PATHS if v != "SU+O+C" or case.compression]
    found = simulate_all([(v, case) for v in variants], progress)
    return case_rows(case, {v: found[v, case] for v in variants})


def read_case(
    model: str | None, drives: int | None, optimizer: str | None, compression: str | None
) -> Case:
    """Convert the options to a case. An option that is None has the default value of Case.

    Raises InputError for an invalid option.
    """
    case = Case()
    if model is not None:
        match = re.fullmatch(r"(?:gpt-?2-|bert-)?(\d+(?:\.\d+)?)b", model.lower())
        if match is None or not 1e6 <= float(match[1]) * 1e9 <= 1e12:
            raise InputError(
                f"--model {model}: must be a number of parameters in billions from 0.001b to "
                "1000b, for example 8.4b"
            )
        case = dataclasses.replace(case, params=round(float(match[1]) * 1e9))
    if drives is not None:
        if not 1 <= drives <= 64:
            raise InputError(f"--drives {drives}: must be from 1 to 64")
        case = dataclasses.replace(case, drives=drives)
    if optimizer is not None:
        if optimizer not in OPTIMIZERS:
            raise InputError(
                f"--optimizer {optimizer}: unknown; {known_names(optimizer, OPTIMIZERS)}"
            )
        case = dataclasses.replace(case, optimizer=optimizer)
    if compression is not None:
        text = "0" if compression.lower() == "none" else compression.removesuffix("%").strip()
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 100:
            raise InputError(
                f"--compression {compression}: use a percentage of the gradient's bytes (index "
                "and value) from 0 to 100, or none"
            )
        case = dataclasses.replace(case, compression=share)
    return case


def case_rows(case: Case, found: dict[str, Times]) -> list[Row]:
    """Return the rows of the times and speedups of run ``case``. ``found``: times by variant. Only
    the rows of the published run, ``Case()``, to which the constants are fitted, have published
    values."""
    known = case == Case()
    source = f"{PAPER}, {case.asked()}"
    if not known:
        source = f"predicted: {case.asked()}; constants fitted to {PAPER}, {Case().asked()}"
    rows = []

    def add(
        name: str, kind: str, published: float, predicted: float, unit: str,
        constants: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        if not known:
            rows.append(Row(SUITE, name, SHOWN, None, predicted, unit, None, source))
            return
        text = source if kind == FIT else f"{source}; arithmetic of the fitted phases"
        rows.append(Row(SUITE, name, kind, published, predicted, unit, 0.1, text, PAPER, constants))

    base = sum(PUBLISHED["base"])
    for variant, times in found.items():
        words = case.words(variant)
        phases = zip(
            ("FW", "BW", "UPD"), PUBLISHED[variant], times[:3], CONSTANTS[variant], strict=True
        )
        for phase, published, predicted, constants in phases:
            add(f"{variant}: {phase}, {words}", FIT, published, predicted, "s", constants)
        whole = sum(PUBLISHED[variant])
        add(f"{variant}: total, {words}", IDENTITY, whole, times.total, "s")
    for variant, times in list(found.items())[1:]:
        name = f"{variant}: speedup over base, {case.words(variant)}"
        gain = found["base"].total / times.total
        add(name, IDENTITY, base / sum(PUBLISHED[variant]), gain, "x")
    return rows


def shape_rows(progress: Progress, params: int = Case.params) -> list[Row]:
    """Simulate the run to which the constants are fitted, and its baseline with 1 to 10 drives.
    Return the validation rows: times and speedups, bytes on the shared link, and step time by
    number of drives. ``params``: number of parameters of the run."""
    fit = Case(params)
    over = {n: dataclasses.replace(fit, drives=n) for n in DRIVES}
    jobs = [(v, fit) for v in PATHS] + [("base", over[n]) for n in DRIVES if n != fit.drives]
    jobs += [("SU", over[1]), ("SU+O", over[1])]
    found = simulate_all(jobs, progress)
    rows = case_rows(fit, {v: found[v, fit] for v in PATHS})
    text = (
        f"counted at the device; the paths plan the transfers that {PAPER} describes, "
        f"{fit.asked()}. Tolerance: a sub-group is padded to whole super-pages"
    )
    for variant, expected in LINK_BYTES.items():
        moved = found[variant, fit].link
        rows.append(
            Row(
                SUITE, f"{variant}: bytes on the shared link, {fit.words(variant)}", IDENTITY,
                expected, moved, "B/param", 0.01, text, PAPER,
            )
        )  # fmt: skip
    totals = {n: found["base", over[n]].total for n in DRIVES}
    rows += base_rows(totals, fit)
    text = f"predicted: {params / 1e9:g} G parameters on 1 to {max(DRIVES)} SmartSSDs; {PAPER}"
    rows.append(
        Row(
            SUITE,
            f"base: drives at the knee (one more saves less than {SAVING:.0%} of the step time)",
            SHOWN, 4.0, knee(totals), "drives", None,
            f"the number of drives depends on the threshold; {text}",
        )
    )  # fmt: skip
    for variant, kind, more in (
        ("SU", IDENTITY, "; SU without the handler's overlap is slower than SU+O"),
        ("SU+O", CHECK, ". The value is 1 or 0, so the tolerance is 0"),
    ):
        slower = found[variant, over[1]].total > totals[1]
        rows.append(
            Row(
                SUITE, f"{variant}: slower than base with one drive each (1 = yes)", kind,
                1.0, float(slower), "", 0, f"{text}: {SLOWER}{more}", PAPER,
            )
        )  # fmt: skip
        gain = totals[1] / found[variant, over[1]].total
        name = f"{variant}: speedup over base, {over[1].words(variant)}"
        rows.append(Row(SUITE, name, SHOWN, None, gain, "x", None, f"{text}: {SLOWER}"))
    return rows


def base_rows(totals: dict[int, float], fit: Case) -> list[Row]:
    """Return the rows of the baseline's step time by number of drives, and of its speed relative to
    one drive.

    The paper publishes the step time of the fitted run (the run to which the constants are fitted)
    and the relative speeds with other numbers of drives. The published step times are calculated
    from these, so they exist only for the number of parameters of the fitted run.
    """
    one_drive_s = sum(PUBLISHED["base"]) * BASE_SPEED[fit.drives]
    place = f"{PAPER}, Fig. 3(b)"
    text = f"{place}: {fit.params / 1e9:g} G parameters; {budget(fit.params)}"
    rows = []
    for n, total in totals.items():
        name = f"base: total, {dataclasses.replace(fit, drives=n).words('base')}"
        if n == fit.drives:
            continue
        if n not in BASE_SPEED or fit.params != Case.params:
            rows.append(Row(SUITE, name, SHOWN, None, total, "s", None, text))
            continue
        published = one_drive_s / BASE_SPEED[n]
        kind, source = (CHECK, f"{text}; {READ}") if n < LINK_BOUND else (IDENTITY, AS_FIT)
        rows.append(Row(SUITE, name, kind, published, total, "s", BASE_TOLERANCE, source, place))
        if 1 in totals and n > 1:
            words = dataclasses.replace(fit, drives=n).words("base")
            name = f"base: speed relative to one drive, {words}"
            found = totals[1] / total
            source = OUTSIDE if n < LINK_BOUND else SPEEDS
            rows.append(Row(SUITE, name, SHOWN, BASE_SPEED[n], found, "x", None, source, place))
    return rows


def budget(params: int) -> str:
    """Return the text that derives the baseline's update time with one drive: at the rates of the
    drive and, for comparison, at the rates of the in-storage processor's path."""
    cfg = load_preset("smartssd")
    read, written = 16 * params, 12 * params
    moved = {
        "host": (cfg.flash.channels * cfg.flash.bus_bytes_per_s, write_rate(cfg)),
        "FPGA": (cfg.isp.flash_bytes_per_s, cfg.isp.flash_write_bytes_per_s),
    }
    seconds = {name: read / up + written / down for name, (up, down) in moved.items()}
    cpu = params / cfg.host.adam_params_per_s
    (up, down), (peer_up, peer_down) = moved["host"], moved["FPGA"]
    return (
        f"one drive: {read / 1e9:.4g} GB / {up / 1e9:.3g} GB/s + {written / 1e9:.4g} GB / "
        f"{down / 1e9:.3g} GB/s + CPU {cpu:.3g} s = {seconds['host'] + cpu:.3g} s of update; at "
        f"the FPGA's rates, {peer_up / 1e9:.3g} and {peer_down / 1e9:.3g} GB/s, "
        f"{seconds['FPGA'] + cpu:.3g} s"
    )


def write_rate(cfg: Config) -> float:
    """Return the rate of sequential writes to the flash of a drive (bytes/s). Every plane programs
    pages, and each program starts after the transfer of its page."""
    flash = cfg.flash
    stripe = flash.planes_per_die * flash.page_bytes
    seconds = flash.t_program_ps / PS_PER_S + stripe / flash.bus_bytes_per_s
    return flash.channels * flash.dies_per_channel * stripe / seconds


def knee(totals: dict[int, float]) -> float:
    """Return the smallest number of drives at which one more drive shortens the step by less than
    the fraction SAVING; the largest number of drives if there is no such number.

    ``totals``: step time by number of drives (s).
    """
    for n, total in totals.items():
        if n + 1 in totals and totals[n + 1] > (1 - SAVING) * total:
            return float(n)
    return float(max(totals))
