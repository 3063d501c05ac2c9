"""Sensitivity of the headline to each constant that has a range.

The headline states the speedup and the energy ratio of two paths. Owns the sample, a shortened run
that is simulated again with one constant at each end of its range. Does not own the comparison
(analysis/compare.py) or the ranges (presets).
Source: this project's rule that each result states the number of assumed constants.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache

from ondie.emu.analysis.energy import components, energy, is_price
from ondie.emu.analysis.extrapolate import reduced
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.config.config import Config, Leaf, shown
from ondie.emu.config.leaf import Value
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.timing import word_line_pages
from ondie.emu.paths.layout.regions import VALUE_BYTES
from ondie.emu.paths.statement import Work
from ondie.emu.units import InputError
from ondie.traces import Trace

SAMPLE_STRIPES = 3
"""Number of super-pages per die in the shortened simulation, for paths that update through the
controller."""
BLOCK_PAGES = 4
"""Number of word lines per block in the shortened simulation (number of pages, if pages are
programmed one by one)."""
DIE_STRIPES = 16
"""Number of super-pages per die in the shortened simulation, for paths that update on the dies.
Work overlaps only after the first stripe of a die. A shorter simulation would therefore
underestimate the overlap. A full run has slightly more overlap."""


@dataclass(frozen=True)
class Idle:
    """Rule: the configuration keys ``leaves`` have no effect if ``key`` has the value ``value``.
    The entry "errors.*" denotes all keys of the section errors."""

    key: str
    value: Value
    leaves: tuple[str, ...]

    def covers(self, name: str) -> bool:
        """Return True if the rule covers configuration key ``name``. A rule never covers the key of
        its condition, :attr:`key`."""
        section = name.partition(".")[0]
        return name != self.key and (name in self.leaves or f"{section}.*" in self.leaves)


IDLE_KEYS = (
    Idle(
        "errors.kind",
        "none",
        (
            "errors.*", "ecc.codeword", "ecc.correctable_bits", "ecc.decode_limit", "ecc.retries",
            "ecc.retry_gain", "ecc.soft_reads", "ecc.soft_gain", "ecc.soft_decode",
            "ecc.ldpc_iteration", "ecc.bch_error", "energy.ecc_decoder",
        ),
    ),
    Idle(
        "ecc.code", "capability", ("ecc.ldpc_iteration", "ecc.bch_error", "energy.ecc_decoder")
    ),
    Idle("ecc.code", "ldpc", ("ecc.bch_error", "ecc.decode_limit", "ecc.soft_decode")),
    Idle(
        "ecc.code", "bch",
        ("ecc.ldpc_iteration", "ecc.decode_limit", "ecc.soft_decode", "energy.ecc_decoder"),
    ),
    Idle(
        "flash.retention", "rated",
        ("flash.rated_retention", "flash.cycles_3_months", "flash.cycles_3_days"),
    ),
)  # fmt: skip
"""Rules for constants that have no effect in some configurations. Such constants are counted as
assumed but not varied."""


USER_CHOICES = frozenset(
    (
        "system.devices",
        "host.io_queue_depth",
        "host.io_block",
        "host.subgroup_params",
        "flash.retention",
        "ftl.reservoir_retention",
    )  # fmt: skip
)
"""Configuration keys whose ranges are possible choices of the user, not an uncertainty. These keys
are not varied."""

HOST_POWERS = ("host.update_power", "host.wait_power")
"""Powers of the host that are varied one by one even if they are not assumed, because the energy
ratio is often most sensitive to them."""

RATES = ("host.accelerator_peak", "host.accelerator_utilization")
"""Prefixes of the configuration keys (one key per model) that state the rate of the accelerator,
from which the times of forward and backward may be computed."""

Factors = Mapping[str, Mapping[str, float]]
"""Effect of a changed constant on the quantities of energy components (bits, operations, or ps):
path -> energy component -> quantity divided by its typical quantity."""


def is_rate(key: str) -> bool:
    """Return True if configuration key ``key`` states a rate of the accelerator."""
    return key.startswith(RATES)


def idle_rules(cfg: Config) -> tuple[Idle, ...]:
    """Return the rules of IDLE_KEYS whose condition holds in configuration ``cfg``. The constants
    in their ``leaves`` have no effect in this configuration."""
    return tuple(rule for rule in IDLE_KEYS if cfg.leaf(rule.key).value == rule.value)


def unfelt(cfg: Config) -> tuple[str, ...]:
    """Return the assumed constants with a range that have no effect in this configuration, in the
    order of the configuration."""
    idle = idle_rules(cfg)
    ranged = (leaf.key for leaf in cfg.assumed() if leaf.low is not None)
    return tuple(key for key in ranged if any(rule.covers(key) for rule in idle))


def published_ranges(cfg: Config) -> list[Leaf]:
    """Return the constants that have a range, are not assumed, and may affect time. Keys in
    USER_CHOICES are omitted."""
    idle = idle_rules(cfg)
    return [
        leaf
        for leaf in cfg.leaves()
        if leaf.source != "assumed" and leaf.low != leaf.high
        and not is_price(leaf.key) and leaf.key not in USER_CHOICES
        and not any(rule.covers(leaf.key) for rule in idle)
    ]  # fmt: skip


@dataclass(frozen=True)
class Swing:
    """Effect of one constant on the headline: speedup and energy ratio at the low and the high end
    of the constant's range, each divided by its typical value. The values are None for an end at
    which a path cannot run.

    ``low``, ``high``: the ends of the range as text.
    """

    key: str
    low: str
    high: str
    speedup_at_low: float | None
    speedup_at_high: float | None
    energy_at_low: float | None
    energy_at_high: float | None
    factors_at_low: Factors = field(default_factory=dict, repr=False)
    """Quantities that change at the low end of the range, each divided by its typical value; empty
    if a path cannot run at this end or if no quantity changes."""
    factors_at_high: Factors = field(default_factory=dict, repr=False)
    """Quantities that change at the high end of the range, each divided by its typical value; empty
    if a path cannot run at this end or if no quantity changes."""
    times_at_low: Mapping[str, float] = field(default_factory=dict, repr=False)
    """Time of each path's update stage at the low end of the range divided by its typical time, 1
    if the time does not change; empty if a path cannot run at this end."""
    times_at_high: Mapping[str, float] = field(default_factory=dict, repr=False)
    steps_at_low: Mapping[str, float] = field(default_factory=dict, repr=False)
    """Time of each path's whole step at the low end of the range divided by its typical time. Empty
    unless the constant changes the times of forward and backward at this end. Only in that case
    does the simulated sample include forward and backward."""
    steps_at_high: Mapping[str, float] = field(default_factory=dict, repr=False)

    @property
    def of_training(self) -> bool:
        """True if the constant changes the times of forward and backward."""
        return bool(self.steps_at_low or self.steps_at_high)

    @property
    def speedup_width(self) -> float:
        """Largest factor between the typical speedup and the speedup at an end of the range; 1 if
        the speedup does not change."""
        return _widest(self.speedup_at_low, self.speedup_at_high)

    @property
    def energy_width(self) -> float:
        """Largest factor between the typical energy ratio and the energy ratio at an end of the
        range; 1 if the energy ratio does not change."""
        return _widest(self.energy_at_low, self.energy_at_high)

    @property
    def width(self) -> float:
        """The larger of :attr:`speedup_width` and :attr:`energy_width`."""
        return max(self.speedup_width, self.energy_width)

    @property
    def fails(self) -> bool:
        """True if one of the two compared paths cannot run at the low or the high end of the
        range."""
        return self.speedup_at_low is None or self.speedup_at_high is None


def _widest(*ratios: float | None) -> float:
    return max((max(ratio, 1 / ratio) for ratio in ratios if ratio), default=1.0)


def sample_params(trace: Trace, cfg: Config) -> int:
    """Return the number of parameters of the part of the model that is simulated with varied
    constants."""
    stripes = SAMPLE_STRIPES if cfg.pe.kind == "none" else DIE_STRIPES
    dies = Geometry.of(cfg).dies * cfg.system.devices
    program = word_line_pages(cfg) * cfg.flash.page_bytes
    return min(trace.n_params, stripes * dies * program // VALUE_BYTES)


def amortized(cfg: Config) -> Config:
    """Return the configuration with fewer pages per block and a proportionally shorter erase time.

    With this configuration, a sample that fills less than one block of the original drive spends
    the same fraction of its time on erases as a long run.
    """
    line = word_line_pages(cfg)
    shorter = max(cfg.flash.pages_per_block // (BLOCK_PAGES * line), 1)
    return cfg.replace(
        {
            "flash.pages_per_block": cfg.flash.pages_per_block // line // shorter * line,
            "flash.t_erase": max(cfg.flash.t_erase_ps // shorter, 1),
        }
    )


def sample(trace: Trace, cfg: Config, training: bool = False) -> Trace:
    """Return the sample: the first step of the trace, with ``sample_params(trace, cfg)`` parameters
    and without payload.

    The sample has SAMPLE_STRIPES super-pages on every die (DIE_STRIPES if the dies update), or
    fewer if the trace has fewer parameters. ``training``: True to reduce the times of forward and
    backward in proportion to the number of parameters; False to set them to 0.
    """
    count = sample_params(trace, cfg)
    share = count / trace.n_params if training else 0.0
    return reduced(trace, count, name="sample", training=share)


@dataclass(frozen=True)
class Sampled:
    """Results of simulating two paths, the baseline and the rival, on a sample (see
    :func:`sample`)."""

    speedup: float
    energy_ratio: float
    charged: Mapping[str, Mapping[str, int]]
    """Quantity by which the energy constant of a component is multiplied, by path and name of the
    component."""
    update_s: Mapping[str, float]
    """Time of the update stage by path, seconds."""
    step_s: Mapping[str, float]
    """Time of the whole step by path, seconds."""


class Headline:
    """Simulator of the two ratios of the headline: speedup of the update stage and energy ratio,
    each the value of the baseline divided by that of the rival. Calling the object with a
    configuration and a sample returns (speedup, energy ratio).

    ``run``: function of the name of a path, a configuration and a sample. It reduces the size of
    the drive's blocks (:func:`amortized`), simulates the path on the sample, and returns the ledger
    and the work. ``fits``: function of the name of a path and a configuration. It raises InputError
    if the path cannot run the whole trace on this configuration. ``pair``: (baseline, rival).
    Configurations that differ only in energy constants or powers share one simulation.
    """

    def __init__(
        self,
        run: Callable[[str, Config, Trace], tuple[Ledger, Work]],
        fits: Callable[[str, Config], None],
        pair: tuple[str, str],
    ) -> None:
        self._run = run
        self.fits = fits
        self.pair = pair
        self._known: dict[tuple[object, ...], tuple[Ledger, Work]] = {}
        self._last = threading.local()

    def _simulated(self, name: str, cfg: Config, trace: Trace) -> tuple[Ledger, Work]:
        timing = (leaf.value for leaf in cfg.leaves() if not is_price(leaf.key))
        key = (name, id(trace), *timing)
        if key not in self._known:
            self._known[key] = self._run(name, cfg, trace)
        return self._known[key]

    def _amortized(self, cfg: Config) -> Config:
        """Return ``amortized(cfg)``, cached for the last configuration of each thread.

        The cache avoids the check of all configuration keys, which takes as long as the simulation
        of a sample.
        """
        known = getattr(self._last, "pair", (None, cfg))
        if known[0] is not cfg:
            known = self._last.pair = (cfg, amortized(cfg))
        return known[1]

    def __call__(self, cfg: Config, trace: Trace) -> tuple[float, float]:
        """Return (speedup of the update stage, energy ratio) on the sample ``trace``: the values of
        the baseline divided by those of the rival."""
        (base, base_work), (rival, rival_work) = (
            self._simulated(name, cfg, trace) for name in self.pair
        )
        short = self._amortized(cfg)
        joules = [
            energy(short, book.totals, work).storage_and_host[1]
            for book, work in ((base, base_work), (rival, rival_work))
        ]
        return base.update_s / rival.update_s, joules[0] / joules[1]

    def sampled(self, cfg: Config, trace: Trace) -> Sampled:
        """Simulate both paths on ``trace``, which is a sample (see :func:`sample`), and return the
        results. Raises InputError if a path cannot run."""
        charged, short = {}, self._amortized(cfg)
        for name in self.pair:
            self.fits(name, cfg)
        found = {name: self._simulated(name, cfg, trace) for name in self.pair}
        for name, (book, work) in found.items():
            charged[name] = {
                part.name: part.quantity for part in components(short, book.totals, work)
            }
        return Sampled(
            *self(cfg, trace),
            charged,
            {name: book.update_s for name, (book, _) in found.items()},
            {name: book.step_s for name, (book, _) in found.items()},
        )


def swings(
    cfg: Config, timed: Callable[[Config], Trace], headline: Headline, workers: int
) -> list[Swing]:
    """Return the effects of the constants on speedup and energy ratio, the largest effect first.

    Three groups of constants are varied: the constants of :func:`published_ranges`, HOST_POWERS,
    and all assumed constants with a range that are neither in :func:`unfelt` nor in USER_CHOICES.
    If a path cannot run at an end of a range, the values at this end are None, and the constant is
    at the start of the list. ``timed``: function that returns the trace with the times of forward
    and backward for a configuration. ``workers``: number of threads.
    """
    fixed = USER_CHOICES.union(unfelt(cfg))
    varied = [key for key in cfg.assumed() if key.low is not None and key.key not in fixed]
    varied += published_ranges(cfg)
    varied += [
        leaf
        for leaf in map(cfg.leaf, HOST_POWERS)
        if leaf.source != "assumed" and leaf.low != leaf.high
    ]
    trace = timed(cfg)
    small, usual = sample(trace, cfg), _trained_s(trace)
    typical = headline.sampled(cfg, small)
    samples: list[Trace] = []  # Headline knows a sample by its id, so all of them are kept

    @cache
    def typical_with_training() -> Sampled:
        samples.append(sample(trace, cfg, training=True))
        return headline.sampled(cfg, samples[-1])

    def ends(changed: Config, key: str) -> tuple[Sampled, Sampled, bool]:
        """Return (results with the configuration ``changed``, typical results, True if both results
        include forward and backward)."""
        if is_rate(key):
            later = timed(changed)
            if _trained_s(later) != usual:
                samples.append(again := sample(later, cfg, training=True))
                return headline.sampled(changed, again), typical_with_training(), True
        return headline.sampled(changed, small), typical, False

    def at(
        leaf: Leaf, value: Value
    ) -> tuple[float | None, float | None, Factors, Mapping[str, float], Mapping[str, float]]:
        try:
            found, before, trained = ends(cfg.replace({leaf.key: value}), leaf.key)
        except InputError:
            return None, None, {}, {}, {}
        return (
            found.speedup / before.speedup,
            found.energy_ratio / before.energy_ratio,
            changes(before.charged, found.charged),
            _factors(found.update_s, before.update_s),
            _factors(found.step_s, before.step_s) if trained else {},
        )

    def one(leaf: Leaf) -> Swing:
        assert leaf.low is not None and leaf.high is not None
        low, high = at(leaf, leaf.low), at(leaf, leaf.high)
        texts = shown(leaf.low, leaf.unit), shown(leaf.high, leaf.unit)
        return Swing(
            leaf.key, *texts, low[0], high[0], low[1], high[1], low[2], high[2], low[3], high[3],
            low[4], high[4],
        )  # fmt: skip

    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(one, varied))
    return sorted(found, key=lambda swing: (not swing.fails, -swing.width, swing.key))


def _trained_s(trace: Trace) -> tuple[float, float]:
    """Return the times of the first step's passes in seconds: (forward, backward)."""
    return trace.steps[0].forward_s, trace.steps[0].backward_s


def _factors(found: Mapping[str, float], typical: Mapping[str, float]) -> Mapping[str, float]:
    """Return the time of each path in ``found`` divided by its time in ``typical``."""
    return {name: found[name] / typical[name] for name in typical}


def changes(
    typical: Mapping[str, Mapping[str, int]], found: Mapping[str, Mapping[str, int]]
) -> Factors:
    """Return the quantities that differ from their typical values, each divided by its typical
    value, by path and energy component."""
    return {
        path: {
            name: found[path].get(name, 0) / amount
            for name, amount in parts.items()
            if found[path].get(name, 0) != amount
        }
        for path, parts in typical.items()
    }
