"""The data cache, and the DRAM of the controller.

Owns the leaves of the sections. Does not own the cache itself (nvme/data_cache.py).
Source: the presets name one for every value.
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
            "data cache: writes complete in DRAM, or stay there on their way to flash; reads stay "
            "there; both",
            choices=("off", "write_back", "write_through", "read", "read_write"),
        ),
    ]
    capacity_bytes: Annotated[int, Spec("DRAM of the data cache")]
    dirty_share: Annotated[
        float, Spec("share of it that may wait to be written to flash before that begins")
    ]
    destage_pages: Annotated[
        int, Spec("pages on their way to flash at once; 0: one for each plane of the drive")
    ]
    destage_idle: Annotated[bool, Spec("they are written, too, while no command is outstanding")]


@dataclass(frozen=True, slots=True)
class Dram:
    capacity_bytes: Annotated[int, Spec("DRAM of the drive", least=1)]
    isp_bytes: Annotated[int, Spec("part of it that the in-storage processor may use")]
    bandwidth_bytes_per_s: Annotated[int, Spec("sustained bandwidth, reads and writes", least=1)]
    row_bytes: Annotated[int, Spec("row that an access opens; 0: the bandwidth covers that")]
    t_rcd_ps: Annotated[int, Spec("row to column, once per row, tRCD")]
    t_cl_ps: Annotated[int, Spec("column to data, once per row, tCL")]
    t_rp_ps: Annotated[int, Spec("precharge before the next row of the same access, tRP")]
