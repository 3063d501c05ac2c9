"""Configuration of the in-storage processor: cores, rates and the flash path.

Owns the leaves of section `isp`. Does not own the time of a job (compute/isp_cores.py).
Source: the presets give a source for each value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec


@dataclass(frozen=True, slots=True)
class Isp:
    kind: Annotated[
        str,
        Spec(
            "in-storage processor; none: none, cores: CPU cores, fpga: a streaming engine",
            choices=("none", "cores", "fpga"),
        ),
    ]
    cores: Annotated[int, Spec("number of cores")]
    frequency_hz: Annotated[int, Spec("clock frequency of a core")]
    ipc: Annotated[float, Spec("instructions per cycle and core")]
    engine_bytes_per_s: Annotated[
        int, Spec("rate of the streaming engine; 0: no engine, the cores compute")
    ]
    decompress_bytes_per_s: Annotated[
        int, Spec("rate of Top-K decompression during the update, in bytes of gradient; 0: none")
    ]
    flash_bytes_per_s: Annotated[int, Spec("rate of the path between processor and flash back end")]
    flash_write_bytes_per_s: Annotated[
        int,
        Spec(
            "rate of the path for writes, in addition to isp.flash for reads; 0: reads and writes "
            "share isp.flash"
        ),
    ]
    flops_per_cycle: Annotated[
        int,
        Spec(
            "FP32 operations of a core per clock cycle, a multiply-add counted as two; 0: "
            "isp.training_ratio states the training speed"
        ),
    ]
    training_utilization: Annotated[
        float, Spec("share of the cores' peak FLOP/s that they reach in forward and backward")
    ]
    training_ratio: Annotated[
        float,
        Spec(
            "training speed of the drive relative to the host; 0: the drive cannot train, unless "
            "isp.flops_per_cycle gives its speed"
        ),
    ]
    training_ratio_by_model: Annotated[
        Mapping[str, float], Spec("training speed of the drive relative to the host, per model")
    ] = dataclasses.field(hash=False)
