"""OptimStore's published results compared with the simulation: `ondie validate optimstore`.

Owns the rows of this suite and the kind of each row: fitted, checked, following from other rows, or
shown. Does not own paths or presets. Source: OptimStore (HPCA 2023).

The rows of the preset R1 are of all kinds; the fit and check rows of R2 are only shown. The
simulated model is large enough to include the cost of erases. A test checks that a larger model
(up to 2 billion parameters) has the same speedups and the same bytes programmed per parameter
within 1.5 %.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

from ondie.emu.analysis.compare import run_path
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.analysis.lifetime import RESERVOIR_RETENTION, YEAR_S, cycles
from ondie.emu.analysis.row import CHECK, FIT, IDENTITY, SHOWN, Progress, Row
from ondie.emu.clock import PS_PER_S
from ondie.emu.config.config import Config, load_preset
from ondie.emu.paths.base import Options
from ondie.emu.validate.queueing import waiting_shares
from ondie.emu.validate.synthetic_models import model
from ondie.emu.validate.update_stage import Stage, stage
from ondie.traces import Trace

PARAMS = (1 << 26) - (1 << 16)
"""Number of parameters of the simulated model: two blocks of Adam's super-pages on every die of R1
and of R2, minus one stripe on half of the dies.

Few models fill all dies equally. With this number, half of the dies reach their next block one
stripe later, so in lockstep the erases of each half delay all dies.
"""
SOURCE = "OptimStore, HPCA 2023"
NOTES = "OptimStore (HPCA 2023, pp. 611-623), from notes on the paper without section numbers"
UPDATE_SHARE = 0.93
"""Fraction of the iteration time of GPT2-6.7B under DeepSpeed NVMe that the update takes. This
input determines the time of forward and backward."""
FORWARD_SHARE = 1 / 3
"""Forward time divided by the sum of forward and backward time [assumed]: backward takes twice as
long as forward."""
LIFETIME_PARAMS = 10.3e9
LIFETIME_STEPS, LIFETIME_YEARS = 12.4e6, 9.4
DISPATCHES = ("lockstep", "free", "double_buffered")
BUS_VALUES = (1, 0.5)
"""Rates of the die's bus that are simulated in addition to the preset's rate (values per cycle of
the processing elements)."""
WAITING = {"reads": 0.195, "writes": 0.66}
DEPTHS = (12, 48)
"""Numbers of outstanding I/O blocks of host offload (host.io_queue_depth), for which the wait for
the channel is simulated, in addition to the preset's number."""
BLOCK = 1 << 16
PATHS = ("host_offload", "in_storage", "on_die", "chip_level")
GEOMETRY = ("flash.channels", "flash.dies_per_channel", "flash.page", "flash.bus")
"""Configuration keys of the preset R1 whose values were fitted to the published speedups."""
PRESETS = {"R1": "optimstore-r1", "R2": "optimstore-r2"}


def optimstore_rows(progress: Progress) -> list[Row]:
    """Return the rows of the suite for the presets optimstore-r1 (R1) and optimstore-r2 (R2), two
    interpretations of OptimStore's geometry."""
    rows: list[Row] = []
    parts = [(name, part) for name in PRESETS for part in (_published, _iteration, _lifetime)]
    parts += [(name, part) for name in PRESETS for part in (_dispatch, _die_bus, _scaling)]
    for i, (name, part) in enumerate(parts):
        if progress is not None:
            progress("optimstore", i / len(parts))
        rows += [_named(name, row) for row in part(load_preset(PRESETS[name]))]
    return rows


def _named(preset: str, row: Row) -> Row:
    """Return ``row`` with the name of its preset.

    R2 was not fitted, so its fit and check rows become shown rows.
    """
    row = dataclasses.replace(row, name=f"{preset}: {row.name}")
    if preset == "R1":
        return row
    kind = IDENTITY if row.kind == IDENTITY else SHOWN
    return dataclasses.replace(row, kind=kind, tolerance=None, place="", constants=())


def _rows(source: str) -> Callable[..., Row]:
    """Return a function that returns a row with the given source.

    The arguments of that function are name, kind, published, found, unit, tolerance, and the
    keywords place and constants.
    """
    return partial(_row, f"{SOURCE}; {source}")


def _row(
    source: str,
    name: str,
    kind: str,
    published: float,
    found: float,
    unit: str = "x",
    tolerance: float | None = None,
    *,
    place: str = "",
    constants: tuple[str, ...] = (),
) -> Row:
    return Row(
        "optimstore", name, kind, published, found, unit, tolerance, source, place, constants
    )


def _published(cfg: Config) -> Iterator[Row]:
    """Yield the rows of speedups, rates, energy and power of the update stage."""
    adam, momentum = model("adam", PARAMS), model("momentum", PARAMS)
    base, isp, die, chip = (stage(path, cfg, adam) for path in PATHS)
    base_m, die_m = (stage(path, cfg, momentum) for path in ("host_offload", "on_die"))
    row = _rows("speed of the update stage, dies in lockstep")
    for name, published, found, constants in (
        ("on die over baseline, Adam", 2.8, base.seconds / die.seconds, (*GEOMETRY, "host.adam")),
        ("on die over C-ISP, Adam", 1.9, isp.seconds / die.seconds, GEOMETRY[1:]),
        ("on die over baseline, Momentum", 3.2, base_m.seconds / die_m.seconds, GEOMETRY),
        ("C-ISP over baseline, Adam", 1.5, base.seconds / isp.seconds, ("flash.bus", "host.adam")),
    ):
        yield row(name, FIT, published, found, "x", 0.1, constants=constants)
    found = PARAMS / base.seconds
    yield row("baseline, Adam", FIT, 0.177e9, found, "param/s", 0.1, constants=("host.adam",))
    for who, published, mine in (("C-ISP", 0.26e9, isp), ("on die", 0.50e9, die)):
        yield row(f"{who}, Adam", IDENTITY, published, PARAMS / mine.seconds, "param/s")
    row = _rows(
        "DeepStore: the gradient is programmed, and results move to the controller's encoder and "
        f"back. {deepstore_budget(cfg)}"
    )
    yield row("DeepStore over baseline", SHOWN, 1.1, base.seconds / chip.seconds)
    free = stage("chip_level", cfg.replace({"pe.dispatch": "free"}), adam)
    yield row("DeepStore over baseline, dies start freely", SHOWN, 1.1, base.seconds / free.seconds)
    row = _rows("DeepStore moves 7 pages per page of parameters over the channel: 28 B/param")
    moved = chip.totals.bytes_by["channels in"] + chip.totals.bytes_by["channels out"]
    yield row("DeepStore on the channel", IDENTITY, 28, moved / PARAMS, "B/param", 1e-3)
    yield from _energy(base, isp, die)
    row = _rows("energy of the update stage without the host; no tolerance is published")
    found = base.flash_j / die.flash_j
    yield row("energy, baseline / on die, flash, channels, PCIe", SHOWN, 1.3, found)
    found = base.drive_j / die.drive_j
    yield row("energy, baseline / on die, whole drive", SHOWN, 1.3, found)
    row = _rows(
        "average power of flash, channels and PCIe in the update stage relative to the baseline: "
        "ratio of energies times speedup. The speedup is fitted and determines this row; only the "
        "energy ratios above are predicted. Tolerance 20 %: two fit rows of 10 % each, the "
        "baseline's rate and the speedup over it, determine the two times"
    )
    for who, published, mine in (("on die", 2.2, die), ("C-ISP", 1.22, isp)):
        found = mine.flash_w / base.flash_w
        yield row(f"power of the SSD, {who}", IDENTITY, published, found, "x", 0.2)


def _energy(base: Stage, isp: Stage, die: Stage) -> Iterator[Row]:
    """Yield the rows of energy ratios for each interpretation of the host's power. The paper does
    not state its interpretation."""
    row = _rows(
        "energy of the update stage, drive and host. Host powers were chosen to match 3.6x under "
        "the assumption that a host that updates draws its busy power for the whole stage. In the "
        "simulation it draws its waiting power while its CPU waits for flash, and the accelerator "
        "waits, too"
    )
    rivals = (("on die", 3.6, die), ("C-ISP", 2.0, isp))
    for who, published, mine in rivals:
        readings = (
            ("busy power for the whole stage", base.whole_stage_j / mine.whole_stage_j),
            ("busy power while the CPU computes", base.host_j / mine.host_j),
            ("and a waiting accelerator", base.all_j / mine.all_j),
        )
        for reading, found in readings:
            yield row(f"energy, baseline / {who}, {reading}", SHOWN, published, found)


@lru_cache(maxsize=4)
def _model(op: str, n_params: int) -> Trace:
    """Return the trace of a model with ``n_params`` parameters (synthetic_models.model). Equal
    arguments return the same object, so that `_run` finds its ledger."""
    return model(op, n_params)


@lru_cache(maxsize=16)
def timed(trace: Trace, compute_s: float) -> Trace:
    """Return ``trace`` with forward and backward times that sum to ``compute_s`` seconds per
    step."""
    forward = compute_s * FORWARD_SHARE
    step = dataclasses.replace(trace.steps[0], forward_s=forward, backward_s=compute_s - forward)
    return dataclasses.replace(trace, steps=(step,))


@lru_cache(maxsize=64)
def _run(path: str, cfg: Config, trace: Trace, **options: str) -> Ledger:
    """Simulate one step without payload and return its ledger. The ledger is cached, because
    several groups of rows use it."""
    result = run_path(path, cfg, trace, Options(**options), steps=1, payload=False)  # type: ignore[arg-type]
    assert result.ledger is not None
    return result.ledger


def iteration(cfg: Config) -> tuple[Trace, Ledger]:
    """Return the trace and the ledger of an iteration of the baseline in which the update takes the
    fraction UPDATE_SHARE of the time.

    The update here is everything except forward and backward. It includes the time by which the
    gradient writes last longer than backward.
    """
    return _iterated(cfg, PARAMS, UPDATE_SHARE)


@lru_cache(maxsize=len(PRESETS))
def _iterated(cfg: Config, n_params: int, share: float) -> tuple[Trace, Ledger]:
    """Return the result of `iteration` for ``n_params`` parameters. It is cached, because two
    groups of rows use it."""
    trace = _model("adam", n_params)
    compute_s = 0.0
    for _ in range(6):
        book = _run("host_offload", cfg, timed(trace, compute_s) if compute_s else trace)
        compute_s = (book.step_s - compute_s) * (1 / share - 1)
    return timed(trace, compute_s), book


def _iteration(cfg: Config) -> Iterator[Row]:
    """Yield the rows of the I/O shares and the end-to-end speedup of a whole iteration."""
    trace, base = iteration(cfg)
    spans, cpu = base.totals.steps[0], base.totals.busy_ps["update", "host CPU"]
    update, gradients, whole = (
        spans[name][1] - spans[name][0] for name in ("update", "gradients", "step")
    )
    late = max(spans["gradients"][1] - spans["backward"][1], 0)
    row = _rows(
        "GPT2-6.7B; input: the update is 93 % of the iteration. I/O is the serial update without "
        "its CPU time, plus the gradient writes after the backward pass. The CPU time follows from "
        "the fitted rate of Adam, so the share depends on the baseline's fitted rate. Tolerance: "
        "that of the fit row baseline, Adam, which determines it"
    )
    found = (late + update - cpu) / whole
    yield row("I/O share of the iteration", IDENTITY, 0.82, found, "share", 0.1)
    found = (gradients + update - cpu) / whole
    yield row("I/O share, including gradients during backward", SHOWN, 0.82, found, "share")
    found = (update - cpu) / whole
    yield row("I/O share, without gradients", SHOWN, 0.82, found, "share")
    row = _rows("end to end: 1 / (7 % + 93 % / speedup of the update stage), 2.2x to 2.5x by model")
    speedup = base.update_s / _run("on_die", cfg, _model("adam", PARAMS)).update_s
    amdahl = 1 / (1 - UPDATE_SHARE + UPDATE_SHARE / speedup)
    yield row("end to end", IDENTITY, 2.4, amdahl)
    for form in ("fp32", "fp16"):
        book = _run("on_die", cfg, trace, weights_up=form)
        name = f"whole iteration simulated, with {form.upper()} weights to host"
        yield row(name, SHOWN, 2.4, base.step_s / book.step_s)


def _lifetime(cfg: Config) -> Iterator[Row]:
    """Yield the rows of the lifetime of the flash, from the number of pages that the engine
    programs in one step."""
    trace, _ = iteration(cfg)
    book = _run("on_die", cfg, trace)
    t = book.totals
    programmed = t.counters["bpp_pages"] * t.page_bytes / PARAMS
    written = cycles(cfg, RESERVOIR_RETENTION)[1] * cfg.system.capacity_bytes
    steps = written / (programmed * LIFETIME_PARAMS)
    each = LIFETIME_YEARS * YEAR_S / LIFETIME_STEPS
    row = _rows(
        f"10.3 B parameters; {written / 1e18:.3g} M TB divided by the pages programmed in a "
        "simulated step, including padding. Tolerance: 1.5 M TB is printed to two digits, 3 %. "
        "11.74 B follows from the same numbers: 1.5 M TB divided by 12.4 M iterations and the "
        f"parameters. With 12.4 M iterations in 9.4 years, an iteration takes {each:.3g} s"
    )
    yield row(
        "lifetime in iterations", CHECK, LIFETIME_STEPS, steps, "iterations", 0.03, place=NOTES
    )
    yield row("bytes programmed", IDENTITY, 11.74, programmed, "B/param", 0.03)
    yield row("lifetime in years", IDENTITY, LIFETIME_YEARS, steps * each / YEAR_S, "years")
    scale = LIFETIME_PARAMS / PARAMS * steps / YEAR_S
    up = book.phases_s["weights_up"]
    for name, seconds in (("not counted", book.step_s - up), ("counted", book.step_s)):
        name = f"lifetime with the simulated iteration time, weights to host {name}"
        yield row(name, SHOWN, LIFETIME_YEARS, seconds * scale, "years")


def deepstore_budget(cfg: Config) -> str:
    """Return a text that states whether DeepStore's speedup of 1.1x and OptimStore's speedup of
    2.8x can both hold. The calculation assumes that all dies of a channel work in lockstep. It
    compares the times of DeepStore and of OptimStore for one stripe on every die of a channel."""
    flash, ways = cfg.flash, cfg.flash.dies_per_channel
    page = (flash.page_bytes / flash.bus_bytes_per_s + flash.t_command_ps / PS_PER_S) * 1e6
    passes = 5 * flash.page_bytes / flash.bus_bytes_per_s * 1e6
    read, program = flash.t_read_ps / 1e6, flash.t_program_ps / 1e6
    optimstore = read + passes + program + ways * page
    allowed = optimstore * 2.8 / 1.1
    channel, array = 7 * ways * page, read + passes + 2 * program
    lockstep = array + page + 6 * ways * page
    verdict = (
        "the two speedups cannot both hold in lockstep, so the row is not checked"
        if lockstep > 1.02 * allowed
        else "both speedups could hold"
    )
    return (
        f"Per stripe on every die of a channel, in lockstep: OptimStore tR + PE + tPROG + {ways} "
        f"gradients = {optimstore:.0f} us. With speedups of 2.8x and 1.1x, DeepStore may take "
        f"{optimstore:.0f} x 2.8 / 1.1 = {allowed:.0f} us. Its 7 pages x {ways} dies (28 B/param) "
        f"keep the channel busy for {channel:.0f} us. In sequence, tR + PE + 2 tPROG = "
        f"{array:.0f} us, 6 pages x {ways} dies and one gradient take {lockstep:.0f} us; {verdict}"
    )


def queue_budget(cfg: Config) -> str:
    """Return a text that derives the required number of pages in flight per channel, once for reads
    and once for writes. With this number, on a channel that is always busy, the wait is the
    published fraction of the latency."""
    flash = cfg.flash
    page = flash.page_bytes / flash.bus_bytes_per_s * 1e6
    found = {
        name: (array / 1e6 + page) / (page * (1 - WAITING[name]))
        for name, array in (("reads", flash.t_read_ps), ("writes", flash.t_program_ps))
    }
    return (
        f"On a busy channel the share is 1 - (array + page) / (K page) with K pages of {page:.3g} "
        f"us in flight per channel: 19.5 % for reads requires K = {found['reads']:.1f}, 66 % for "
        f"writes K = {found['writes']:.1f} (planes per channel: "
        f"{flash.dies_per_channel * flash.planes_per_die}). A single queue depth matches only one "
        "of them, as the rows by depth show"
    )


def _dispatch(cfg: Config) -> Iterator[Row]:
    """Yield the rows of the speedups by dispatch mode (pe.dispatch), with and without the transfer
    of new weights to the host."""
    row = _rows(
        "speedup of on die over baseline by dispatch rule, without and with the transfer of new "
        "weights to the host; neither is published"
    )
    for op, published in (("adam", 2.8), ("momentum", 3.2)):
        trace = _model(op, PARAMS)
        base = _run("host_offload", cfg, trace).update_s
        for dispatch in DISPATCHES:
            mine = cfg.replace({"pe.dispatch": dispatch})
            for form in ("fp32", "fp16"):
                book = _run("on_die", mine, trace, weights_up=form)
                name = f"{op}, {dispatch}"
                if form == "fp32":
                    yield row(name, SHOWN, published, base / book.update_s)
                both = book.update_s + book.phases_s["weights_up"]
                yield row(
                    f"{name}, with {form.upper()} weights to host", SHOWN, published, base / both
                )


def _die_bus(cfg: Config) -> Iterator[Row]:
    """Yield the rows of the speedups by the rate of the die's shared bus.

    The rates are those of BUS_VALUES. At one value per cycle, the rate of one plane's interface,
    the bus does not slow Adam's single group of planes.
    """
    row = _rows(
        "speedup of on die over baseline by the rate of the die's shared bus, which is not "
        f"published; the preset has {cfg.pe.bus_values:g} values per cycle, with which two groups "
        "of planes do not wait for each other"
    )
    for op, published in (("adam", 2.8), ("momentum", 3.2)):
        trace = _model(op, PARAMS)
        base = _run("host_offload", cfg, trace).update_s
        for values in BUS_VALUES:
            book = _run("on_die", cfg.replace({"pe.bus_values": values}), trace)
            name = f"{op}, die bus of {values:g} values per cycle"
            yield row(name, SHOWN, published, base / book.update_s)


def shaped(cfg: Config, channels: int, ways: int) -> Config:
    """Return ``cfg`` with other numbers of channels and dies, and with enough blocks per plane to
    keep at least the previous capacity.

    ``ways``: number of dies per channel.
    """
    planes = cfg.flash.channels * cfg.flash.dies_per_channel
    blocks = -(-cfg.flash.blocks_per_plane * planes // (channels * ways))
    return cfg.replace(
        {
            "flash.channels": channels,
            "flash.dies_per_channel": ways,
            "flash.blocks_per_plane": blocks,
        }
    )


def _scaling(cfg: Config) -> Iterator[Row]:
    """Yield the rows of the scaling of the rates with channels and dies, and of the baseline's
    channel wait.

    Expected ratio for twice the number of channels or dies: 1 for a rate that does not depend on
    the number, else 2.
    """
    trace = _model("adam", PARAMS)
    row = _rows(
        "ratio of the rates with twice the channels or dies; expected: 1 if the rate does not "
        "depend on their number, 2 if it is proportional"
    )
    shapes = [(4, 8), (8, 8), (16, 8), (8, 4), (8, 16)]
    rates = {
        (path, shape): PARAMS / _run(path, shaped(cfg, *shape), trace).update_s
        for path in ("host_offload", "in_storage", "on_die")
        for shape in shapes
    }
    for path, title, grows in (
        ("host_offload", "baseline", 1),
        ("in_storage", "C-ISP", 1),
        ("on_die", "on die", 2),
    ):
        for ways in (8, 16):
            found = rates[path, (8, ways)] / rates[path, (8, ways // 2)]
            yield row(f"{title}, {8 * ways} dies over {4 * ways}, 8 channels", SHOWN, grows, found)
        for channels in (8, 16):
            found = rates[path, (channels, 8)] / rates[path, (channels // 2, 8)]
            grows = 1 if path == "host_offload" else 2
            name = f"{title}, {channels} channels over {channels // 2}, 8 dies each"
            yield row(name, SHOWN, grows, found)
    row = _rows(
        "fraction of the baseline's page latency spent waiting for the channel; the paper does not "
        "publish queue depths. "
        f"{queue_budget(cfg)}"
    )
    for name, share in waiting_shares(cfg).items():
        yield row(f"waiting for the channel, {name}", SHOWN, WAITING[name], share, "share")
    for depth in DEPTHS:
        mine = cfg.replace({"host.io_block": BLOCK, "host.io_queue_depth": depth})
        for name, share in waiting_shares(mine).items():
            words = f"waiting for the channel, {name}, {depth} blocks of 64 KiB in flight"
            yield row(words, SHOWN, WAITING[name], share, "share")
