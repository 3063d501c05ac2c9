"""Configuration of the data cache and of the controller's DRAM.

Owns the leaves of sections `cache` and `dram`. Does not own the behavior of the cache
(nvme/data_cache.py).
Source: the presets give a source for each value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec


@dataclass(frozen=True, slots=True)
class Cache:
    mode: Annotated[
        str,
        Spec(
            "data cache; off: none, write_back: writes complete in DRAM, write_through: written "
            "data also stays in DRAM until it is on flash, read: read data stays in DRAM, "
            "read_write: write_back and read",
            choices=("off", "write_back", "write_through", "read", "read_write"),
        ),
    ]
    capacity_bytes: Annotated[int, Spec("DRAM capacity of the data cache")]
    dirty_share: Annotated[
        float, Spec("share of dirty data in the cache above which this data is written to flash")
    ]
    destage_pages: Annotated[
        int,
        Spec(
            "largest number of pages being written from the cache to flash; 0: one per plane of "
            "the drive"
        ),
    ]
    destage_idle: Annotated[
        bool, Spec("dirty data is also written to flash while no command is outstanding")
    ]
    power_loss_protection: Annotated[
        bool,
        Spec(
            "capacitors supply the energy to write completed data to flash after a power cut: the "
            "drive has no volatile write cache (VWC = 0); with cache.mode off or read, only trims "
            "since the last FLUSH are written"
        ),
    ]
    hold_up_fj: Annotated[
        int, Spec("energy of these capacitors that the drive can use after a power cut")
    ]


@dataclass(frozen=True, slots=True)
class Dram:
    capacity_bytes: Annotated[int, Spec("DRAM capacity of the drive", least=1)]
    isp_bytes: Annotated[int, Spec("part of the DRAM available to the in-storage processor")]
    bandwidth_bytes_per_s: Annotated[
        int, Spec("sustained bandwidth of reads and writes together", least=1)
    ]
    row_bytes: Annotated[
        int, Spec("size of a DRAM row; 0: row misses are included in the bandwidth")
    ]
    t_rcd_ps: Annotated[int, Spec("delay from row to column, tRCD, once per row")]
    t_cl_ps: Annotated[int, Spec("delay from column to data, tCL, once per row")]
    t_rp_ps: Annotated[int, Spec("precharge time before the next row of the same access, tRP")]
