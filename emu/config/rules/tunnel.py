"""Rules for the tunnel, and for errors at a fixed rate.

Owns these rules, in the order in which they are checked. Does not own their check (check.py).
Source: none.
"""

from __future__ import annotations

from ondie.emu.config.rules.rule import MOST_OUTSTANDING, Rule, no_tunnel

RULES: tuple[Rule, ...] = (
    Rule(
        ("tunnel.payload", "tunnel.outstanding", "tunnel.relay_threads"),
        lambda c: no_tunnel(c) or (c.tunnel.outstanding >= 1 and c.tunnel.relay_threads >= 1),
        "a tunnel has at least one command outstanding each way and one thread in the host",
    ),
    Rule(
        ("tunnel.payload", "tunnel.outstanding"),
        lambda c: c.tunnel.outstanding <= MOST_OUTSTANDING,
        f"at most {MOST_OUTSTANDING} commands outstanding",
    ),
    Rule(
        ("tunnel.payload", "frontend.max_transfer"),
        lambda c: no_tunnel(c) or 64 <= c.tunnel.payload_bytes <= c.frontend.max_transfer_bytes,
        "a command of the tunnel carries 64 B at least, and no more than the drive takes at once",
    ),
    Rule(
        ("tunnel.payload",),
        lambda c: c.tunnel.payload_bytes <= 1 << 24,
        "a command of the tunnel carries 16 MiB at most",
    ),
    Rule(
        ("tunnel.payload", "tunnel.mtu"),
        lambda c: no_tunnel(c) or 68 <= c.tunnel.mtu_bytes <= 65535,
        "IP packets of 68 B to 65535 B are right",
    ),
    Rule(
        ("tunnel.payload", "tunnel.command"),
        lambda c: no_tunnel(c) or c.tunnel.command_ps > 0,
        'a command takes time, for example "100 us"',
    ),
    Rule(
        ("errors.kind", "errors.rate"),
        lambda c: c.errors.kind != "rate" or c.errors.rate <= 0.5,
        "at most every second bit, 0.5, is wrong",
    ),
)
