"""Configuration of the host: processor, memory, accelerator and optimizer offload.

Owns the leaves of section `host`. Does not own the rates that a host reaches (compute/host_cpu.py).
Source: DeepSpeed configuration names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from ondie.emu.config.schema.spec import Spec


@dataclass(frozen=True, slots=True)
class Host:
    adam_params_per_s: Annotated[int, Spec("rate of the optimizer step on the host CPU", least=1)]
    dram_bandwidth_bytes_per_s: Annotated[int, Spec("sustained bandwidth of host DRAM", least=1)]
    dram_bytes: Annotated[int, Spec("capacity of host DRAM", least=1)]
    io_queue_depth: Annotated[
        int, Spec("block requests kept in flight (queue depth of aio)", least=1)
    ]
    io_block_bytes: Annotated[int, Spec("size of one block request", least=1)]
    io_submit_ps: Annotated[int, Spec("CPU time to submit and reap one command, on one thread")]
    subgroup_params: Annotated[int, Spec("parameters per optimizer sub-group", least=1)]
    top_k_params_per_s: Annotated[
        int, Spec("rate at which the accelerator selects the Top-K of a gradient", least=1)
    ]
    gradient_copy_bytes_per_s: Annotated[
        int,
        Spec(
            "rate at which the backward pass copies gradients into pinned host memory; 0: copies "
            "are part of the backward time"
        ),
    ]
    accelerator_peak_flop_per_s: Annotated[
        int,
        Spec("peak rate of the accelerator; 0: forward and backward take the trace's times"),
    ]
    accelerator_utilization: Annotated[
        float, Spec("share of the peak that the accelerator reaches in forward and backward")
    ]
    accelerator_utilization_by_model: Annotated[
        Mapping[str, float], Spec("share of the accelerator's peak that is reached, per model")
    ] = dataclasses.field(hash=False)
    update_power_mw: Annotated[
        int, Spec("host power while its CPU computes, outside forward and backward")
    ]
    wait_power_mw: Annotated[
        int, Spec("host power while its CPU waits, outside forward and backward")
    ]
    accelerator_wait_power_mw: Annotated[
        int,
        Spec(
            "power of the accelerator while it waits, outside forward and backward; 0: the host "
            "trains on its CPU"
        ),
    ]
    compute_power_mw: Annotated[
        int,
        Spec(
            "power of host and accelerator together during forward and backward: CPU, memory and "
            "GPU; `ondie compare` adds the drives (energy.controller), and with `ondie stannis` "
            "this value includes idle drives"
        ),
    ]
    dram_fj_per_bit: Annotated[int, Spec("energy of host DRAM traffic", key="dram_energy")]
