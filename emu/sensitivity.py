"""How far the headline swings over the range of each assumed constant.

Owns the sample that is simulated again with one constant at either end of its range. Does not own the
comparison itself (compare.py) or the ranges (presets).
Source: DESIGN, ledger and result: results say on how many assumed constants they rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from ondie.emu.backend.geometry import Geometry
from ondie.emu.config import Config, Leaf, shown
from ondie.emu.units import InputError
from ondie.traces import Trace, flat_tensors

SAMPLE_STRIPES = 12
"""Super-pages per die in the sample: enough for the dies to reach their steady rhythm."""


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
        """Largest change of either."""
        return max(self.speedup_width, self.energy_width)


def _widest(*ratios: float | None) -> float:
    return max((max(r, 1 / r) for r in ratios if r), default=1.0)


def _ends(leaf: Leaf) -> tuple[str, str]:
    """The ends of a range as text."""
    return shown(leaf.low, leaf.unit), shown(leaf.high, leaf.unit)


def sample(trace: Trace, cfg: Config) -> Trace:
    """The trace's first step on as many parameters as give every die SAMPLE_STRIPES super-pages, or on
    all of them when there are fewer. No payload, no forward and backward."""
    g = Geometry.of(cfg)
    n = min(trace.n_params, SAMPLE_STRIPES * g.dies * g.page_bytes // 4 * cfg.system.devices)
    step = dataclasses.replace(
        trace.steps[0],
        forward_s=0.0,
        backward_s=0.0,
        ready_s=None,
        hyper=trace.steps[0].hyper[:1],
        skipped=False,
        found_inf=False,
        gradient_sha256=None,
        fused=(),
    )
    return dataclasses.replace(
        trace,
        name=f"{trace.name} (sample)",
        payload="none",
        tensors=flat_tensors([("sample", (n,), 0, 0)]),
        steps=(step,),
        groups=1,
        digest=None,
    )


def swings(
    cfg: Config,
    trace: Trace,
    headline: Callable[[Config, Trace], tuple[float, float]],
) -> list[Swing]:
    """Swing of (speedup, energy ratio) for each assumed leaf, widest first.

    ``headline`` runs the two paths on a configuration and a trace. An end of a range at which a path
    cannot run has no value.
    """
    small = sample(trace, cfg)
    typical = headline(cfg, small)
    out = []
    for leaf in cfg.assumed():
        ends: list[tuple[float | None, float | None]] = []
        for value in (leaf.low, leaf.high):
            if value is None:
                continue
            try:
                speedup, ratio = headline(cfg.replace({leaf.key: value}), small)
            except InputError:
                ends.append((None, None))
                continue
            ends.append((speedup / typical[0], ratio / typical[1]))
        if len(ends) == 2:
            low, high = ends
            out.append(
                Swing(leaf.key, *_ends(leaf), low[0], high[0], low[1], high[1])
            )
    return sorted(out, key=lambda s: (-s.width, s.key))
