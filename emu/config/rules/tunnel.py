"""Rules for the TCP-over-NVMe tunnel, and for errors at a fixed rate.

Owns these rules, in the order in which they are checked. Does not own their check (check.py).
Source: this project.
"""

from __future__ import annotations

from ondie.emu.config.rules.conditions import TUNNEL, above_zero, equal, only_if, requires
from ondie.emu.config.rules.rule import MOST_OUTSTANDING, Rule

RULES: tuple[Rule, ...] = (
    only_if(
        TUNNEL,
        ("tunnel.outstanding", "tunnel.relay_threads"),
        lambda cfg: cfg.tunnel.outstanding >= 1 and cfg.tunnel.relay_threads >= 1,
        "a tunnel needs at least one outstanding command and at least one relay thread",
    ),
    Rule(
        ("tunnel.payload", "tunnel.outstanding"),
        lambda cfg: cfg.tunnel.outstanding <= MOST_OUTSTANDING,
        f"tunnel.outstanding must be at most {MOST_OUTSTANDING}",
    ),
    only_if(
        TUNNEL,
        ("frontend.max_transfer",),
        lambda cfg: 64 <= cfg.tunnel.payload_bytes <= cfg.frontend.max_transfer_bytes,
        "tunnel.payload must be from 64 B to frontend.max_transfer",
    ),
    Rule(
        ("tunnel.payload",),
        lambda cfg: cfg.tunnel.payload_bytes <= 1 << 24,
        "must be at most 16 MiB",
    ),
    only_if(
        TUNNEL,
        ("tunnel.mtu",),
        lambda cfg: 68 <= cfg.tunnel.mtu_bytes <= 65535,
        "tunnel.mtu must be from 68 B to 65535 B",
    ),
    requires(TUNNEL, above_zero("tunnel.command", '"100 us"')),
    only_if(
        equal("errors.kind", "rate"),
        ("errors.rate",),
        lambda cfg: cfg.errors.rate <= 0.5,
        "errors.rate must be at most 0.5",
    ),
)
