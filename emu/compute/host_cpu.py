"""Host processor and memory during the update.

Owns the time that the host's CPU takes for an update. Does not own the arithmetic (ondie.kernels).
Source: DeepSpeed's CPU Adam is limited by memory traffic: 28 B per parameter at the configured
Adam rate. Other optimizers move fewer bytes per parameter at the same bandwidth.
"""

from __future__ import annotations

from fractions import Fraction

from ondie.emu.clock import PS_PER_S
from ondie.emu.config.config import Config

ADAM_BYTES = 28
"""DRAM traffic of one Adam update, bytes per parameter: read w, m, v, g and write w, m, v."""


def update_ps(cfg: Config, n_params: int, traffic: int | Fraction) -> int:
    """Return the time of a host update of ``n_params`` parameters (ps), at least 1.

    ``traffic``: bytes per parameter that the kernel reads and writes. The bandwidth is the lower of
    two values: the configured Adam rate times ADAM_BYTES, and the bandwidth of the host's DRAM.
    """
    by_rate = n_params * traffic * PS_PER_S // (ADAM_BYTES * cfg.host.adam_params_per_s)
    by_dram = n_params * traffic * PS_PER_S // cfg.host.dram_bandwidth_bytes_per_s
    return int(max(by_rate, by_dram, 1))
