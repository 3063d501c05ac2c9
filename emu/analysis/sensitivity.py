"""Sensitivity of the headline to each assumed constant over its range.

Owns the sample that is simulated again with one constant at either end of its range. Does not own
the comparison (analysis/compare.py) or the ranges (presets).
Source: this project's contract of results: each result states the number of assumed constants.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ondie.emu.analysis.energy import components, energy, is_price
from ondie.emu.analysis.extrapolate import reduced
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.config.config import Config, Leaf, shown
from ondie.emu.config.leaf import Value
from ondie.emu.nand.geometry import Geometry
from ondie.emu.paths.layout.regions import VALUE_BYTES
from ondie.emu.paths.statement import Work
from ondie.emu.units import InputError
from ondie.traces import Trace

SAMPLE_STRIPES = 3
"""Super-pages per die in the sample of paths through the controller."""
BLOCK_PAGES = 4
"""Pages per block in the sample."""
DIE_STRIPES = 16
"""Super-pages per die in the sample if the dies update. Work overlaps only after the first stripe
of a die, so a shorter sample shows too little overlap. (A full run shows slightly more.)"""


@dataclass(frozen=True)
class Idle:
    """Leaves that have no effect while ``key`` has ``value``; "errors.*" is the whole section."""

    key: str
    value: Value
    leaves: tuple[str, ...]

    def covers(self, name: str) -> bool:
        """Return True if ``name`` is one of these leaves; False for ``key`` itself."""
        section = name.partition(".")[0]
        return name != self.key and (name in self.leaves or f"{section}.*" in self.leaves)


IDLE_KEYS = (
    Idle(
        "errors.kind",
        "none",
        (
            "errors.*", "ecc.codeword", "ecc.correctable_bits", "ecc.decode_limit", "ecc.retries",
            "ecc.retry_gain", "ecc.soft_reads", "ecc.soft_gain", "ecc.soft_decode",
        ),
    ),
    Idle(
        "flash.retention", "rated",
        ("flash.rated_retention", "flash.cycles_3_months", "flash.cycles_3_days"),
    ),
)  # fmt: skip
"""Conditions under which assumed constants are counted but not varied, because nothing reads
them."""


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
"""Keys that the user decides: their ranges are the possible choices, not an uncertainty."""

HOST_POWERS = ("host.update_power", "host.wait_power")
"""Powers that are varied, each alone, whatever their source: they often decide the energy."""

Factors = Mapping[str, Mapping[str, float]]
"""Path -> energy component -> quantity as a factor of its typical value."""


def unfelt(cfg: Config) -> tuple[str, ...]:
    """Return the assumed leaves with a range that change no result of this configuration, in
    order."""
    idle = [rule for rule in IDLE_KEYS if cfg.leaf(rule.key).value == rule.value]
    ranged = (leaf.key for leaf in cfg.assumed() if leaf.low is not None)
    return tuple(key for key in ranged if any(rule.covers(key) for rule in idle))


def published_ranges(cfg: Config) -> list[Leaf]:
    """Return the leaves that are not assumed but have a range and may affect time."""
    idle = [rule for rule in IDLE_KEYS if cfg.leaf(rule.key).value == rule.value]
    return [
        leaf
        for leaf in cfg.leaves()
        if leaf.source != "assumed" and leaf.low != leaf.high
        and not is_price(leaf.key) and leaf.key not in USER_CHOICES
        and not any(rule.covers(leaf.key) for rule in idle)
    ]  # fmt: skip


@dataclass(frozen=True)
class Swing:
    """Headline at either end of one assumed constant's range, as factors of its typical value."""

    key: str
    low: str
    high: str
    speedup_at_low: float | None
    speedup_at_high: float | None
    energy_at_low: float | None
    energy_at_high: float | None
    factors_at_low: Factors = field(default_factory=dict, repr=False)
    """Factors of the quantities that change; empty if a path cannot run or nothing changes."""
    factors_at_high: Factors = field(default_factory=dict, repr=False)
    times_at_low: Mapping[str, float] = field(default_factory=dict, repr=False)
    """Path -> time of its update stage as a factor of its typical time; empty as above."""
    times_at_high: Mapping[str, float] = field(default_factory=dict, repr=False)

    @property
    def speedup_width(self) -> float:
        """Largest change of the speedup, as a factor of at least 1."""
        return _widest(self.speedup_at_low, self.speedup_at_high)

    @property
    def energy_width(self) -> float:
        """Largest change of the energy ratio, as a factor of at least 1."""
        return _widest(self.energy_at_low, self.energy_at_high)

    @property
    def width(self) -> float:
        """Larger of ``speedup_width`` and ``energy_width``."""
        return max(self.speedup_width, self.energy_width)

    @property
    def fails(self) -> bool:
        """True if one of the two paths cannot run at an end of the range."""
        return self.speedup_at_low is None or self.speedup_at_high is None


def _widest(*ratios: float | None) -> float:
    return max((max(ratio, 1 / ratio) for ratio in ratios if ratio), default=1.0)


def sample_params(trace: Trace, cfg: Config) -> int:
    """Return the number of parameters of the sample."""
    geometry = Geometry.of(cfg)
    stripes = SAMPLE_STRIPES if cfg.pe.kind == "none" else DIE_STRIPES
    whole = stripes * geometry.dies * (geometry.page_bytes // VALUE_BYTES) * cfg.system.devices
    return min(trace.n_params, whole)


def amortized(cfg: Config) -> Config:
    """Return the configuration with shorter blocks and a proportionally shorter erase time.

    A sample that is shorter than a block then has the same share of erases as a long run.
    """
    shorter = max(cfg.flash.pages_per_block // BLOCK_PAGES, 1)
    return cfg.replace(
        {
            "flash.pages_per_block": cfg.flash.pages_per_block // shorter,
            "flash.t_erase": max(cfg.flash.t_erase_ps // shorter, 1),
        }
    )


def sample(trace: Trace, cfg: Config) -> Trace:
    """Return the trace's first step, reduced to :func:`sample_params` parameters.

    Every die has SAMPLE_STRIPES super-pages (DIE_STRIPES if the dies update), or fewer if the trace
    has fewer parameters. No payload, no forward and backward.
    """
    return reduced(trace, sample_params(trace, cfg), name="sample", training=0.0)


class Headline:
    """(update-stage speedup, energy ratio) of a rival over a baseline, for any configuration.

    ``run`` simulates a path by name on a sample, timing only, with the blocks of `amortized`;
    energy is charged for the same blocks. ``fits`` raises InputError if a configuration cannot run
    a path on the whole trace. Configurations that differ only in prices share one simulation.
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
        """Return `amortized` of ``cfg``, cached for the last configuration of each thread.

        The cache avoids the check of all leaves, which costs as much as a run.
        """
        known = getattr(self._last, "pair", (None, cfg))
        if known[0] is not cfg:
            known = self._last.pair = (cfg, amortized(cfg))
        return known[1]

    def __call__(self, cfg: Config, trace: Trace) -> tuple[float, float]:
        (base, base_work), (rival, rival_work) = (
            self._simulated(name, cfg, trace) for name in self.pair
        )
        short = self._amortized(cfg)
        joules = [
            energy(short, book.totals, work).storage_and_host[1]
            for book, work in ((base, base_work), (rival, rival_work))
        ]
        return base.update_s / rival.update_s, joules[0] / joules[1]

    def times(self, cfg: Config, trace: Trace) -> dict[str, float]:
        """Return path -> seconds of its update stage."""
        return {name: self._simulated(name, cfg, trace)[0].update_s for name in self.pair}

    def quantities(self, cfg: Config, trace: Trace) -> dict[str, dict[str, int]]:
        """Return path -> component -> quantity that energy is charged for."""
        found, short = {}, self._amortized(cfg)
        for name in self.pair:
            book, work = self._simulated(name, cfg, trace)
            found[name] = {
                part.name: part.quantity for part in components(short, book.totals, work)
            }
        return found


def swings(cfg: Config, trace: Trace, headline: Headline, workers: int) -> list[Swing]:
    """Return the swings of speedup and energy ratio, widest first.

    Covers each assumed leaf with a range, except those of :func:`unfelt`, the leaves of
    :func:`published_ranges`, and HOST_POWERS. Leaves with an end at which a path cannot run come
    first; such an end has the value None. Of the assumed leaves, only a name may have no range.
    """
    idle = unfelt(cfg)
    varied = [key for key in cfg.assumed() if key.low is not None and key.key not in idle]
    varied += published_ranges(cfg)
    varied += [
        leaf
        for leaf in map(cfg.leaf, HOST_POWERS)
        if leaf.source != "assumed" and leaf.low != leaf.high
    ]
    small = sample(trace, cfg)
    typical = headline(cfg, small)
    charged, took = headline.quantities(cfg, small), headline.times(cfg, small)

    def at(
        leaf: Leaf, value: Value
    ) -> tuple[float | None, float | None, Factors, Mapping[str, float]]:
        try:
            changed = cfg.replace({leaf.key: value})
            for name in headline.pair:
                headline.fits(name, changed)
            speedup, ratio = headline(changed, small)
            found = changes(charged, headline.quantities(changed, small))
            times = headline.times(changed, small)
        except InputError:
            return None, None, {}, {}
        factors = {name: times[name] / took[name] for name in took}
        return speedup / typical[0], ratio / typical[1], found, factors

    def one(leaf: Leaf) -> Swing:
        assert leaf.low is not None and leaf.high is not None
        low, high = at(leaf, leaf.low), at(leaf, leaf.high)
        texts = shown(leaf.low, leaf.unit), shown(leaf.high, leaf.unit)
        return Swing(
            leaf.key, *texts, low[0], high[0], low[1], high[1], low[2], high[2], low[3], high[3]
        )

    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(one, varied))
    return sorted(found, key=lambda swing: (not swing.fails, -swing.width, swing.key))


def changes(
    typical: Mapping[str, Mapping[str, int]], found: Mapping[str, Mapping[str, int]]
) -> Factors:
    """Return the quantities that differ from their typical values, as multiples of these values."""
    return {
        path: {
            name: found[path].get(name, 0) / amount
            for name, amount in parts.items()
            if found[path].get(name, 0) != amount
        }
        for path, parts in typical.items()
    }
