"""Conversion of a DeepSpeed configuration to options of host offload and configuration values.

Owns the meaning of each DeepSpeed key. Does not own reading the file (ondie.traces.deepspeed) or
the options (options.py).
Source: DeepSpeed's swappers: min_aio_bytes = max(1 MiB, block_size), lengths padded to 1 KiB x
threads, the first max_in_cpu parameters kept in DRAM, int(ratio x sub-groups) offloaded.
"""

from __future__ import annotations

from pathlib import Path

from ondie.emu.config.config import Config
from ondie.emu.paths.offload.options import Offload
from ondie.emu.units import InputError
from ondie.traces.deepspeed import ZeroConfig, read_deepspeed

MIN_AIO_BYTES = 1 << 20
ALIGNED_BYTES = 1 << 10


GIVEN = "given on the command line"
"""Origin of a configuration value that the user set with --set. Such a value takes precedence over
that of the DeepSpeed configuration file."""


def configured(cfg: Config, path: Path) -> tuple[Config, Offload, str]:
    """Return (configuration, options, format) for the DeepSpeed configuration file ``path``. The
    configuration is ``cfg`` with the file's values; the format is that of the data on NVMe
    (layout/formats.py). Raises TraceError for an unreadable file and InputError for invalid values.
    """
    offload, format, leaves = offload_of(read_deepspeed(path), str(path))
    changes = {key: leaves[key] for key in leaves if cfg.leaf(key).ref != GIVEN}
    try:
        return cfg.replace(changes, ref="DeepSpeed configuration"), offload, format
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def offload_of(config: ZeroConfig, where: str) -> tuple[Offload, str, dict[str, int]]:
    """Return (options, format, changed configuration values by key) for a file's ``config``.
    ``where``: name of the file, for messages. Raises InputError if the file configures no offload
    or has contradictory keys."""
    remarks = list(config.remarks)
    device = config["offload_optimizer.device"]
    if device == "none":
        raise InputError(
            f'{where}: zero_optimization.offload_optimizer.device = "none": the states stay on '
            'the accelerator; must be "nvme" or "cpu"'
        )
    parameters = config["offload_param.device"] == "nvme"
    if config["zero_optimization.stage"] != 3 and (device == "nvme" or parameters):
        raise InputError(
            f"{where}: zero_optimization.stage = {config['zero_optimization.stage']}: must be 3 "
            "for offload to NVMe"
        )
    if device == "cpu":
        remarks.append('offload_optimizer.device is "cpu", so all states stay in host DRAM.')
    elif config["offload_optimizer.ratio"] < 1:
        remarks.append(
            f"offload_optimizer.ratio is {config['offload_optimizer.ratio']}. DeepSpeed "
            "keeps and updates the other sub-groups on the accelerator; here they stay in the "
            "host's DRAM and the host's CPU updates them."
        )
    if config["aio.use_gds"]:
        remarks.append("aio.use_gds is set, but data is transferred through host memory here.")
    if config["aio.single_submit"]:
        remarks.append(
            "aio.single_submit has no effect here; host.io_submit is the time per block."
        )
    section = "intra_op_parallelism" if "aio.intra_op_parallelism" in config.given else None
    threads = config[f"aio.{section or 'thread_count'}"]
    block = config["aio.block_size"]
    format = _format(config, where, parameters, remarks)
    offload = Offload(
        parameters=parameters,
        checkpointing=config.checkpointing,
        pipeline_read=config["offload_optimizer.pipeline_read"],
        pipeline_write=config["offload_optimizer.pipeline_write"],
        buffers=config["offload_optimizer.buffer_count"],
        parameter_buffers=config["offload_param.buffer_count"],
        parameter_buffer=config["offload_param.buffer_size"] if parameters else 0,
        parameters_in_dram=config["offload_param.max_in_cpu"] if parameters else 0,
        ratio=config["offload_optimizer.ratio"] if device == "nvme" else 0.0,
        threads=threads,
        overlap_events=config["aio.overlap_events"],
        in_dram_below=max(MIN_AIO_BYTES, block),
        align=ALIGNED_BYTES * threads,
        remarks=tuple(f"DeepSpeed configuration: {remark}" for remark in remarks),
    )
    leaves = {
        "host.io_block": block,
        "host.io_queue_depth": config["aio.queue_depth"],
        "host.subgroup_params": config["zero_optimization.sub_group_size"],
    }
    return offload, format, leaves


def _format(config: ZeroConfig, where: str, parameters: bool, remarks: list[str]) -> str:
    """Return the name of the storage format of the data on NVMe. DeepSpeed stores gradients on NVMe
    in FP32, even for a 16-bit model, unless the master weights have 16 bits."""
    bf16, fp16 = config["bf16.enabled"], config["fp16.enabled"]
    if bf16 and fp16:
        raise InputError(f"{where}: bf16.enabled and fp16.enabled are both true; enable one")
    if parameters and not bf16 and not fp16:
        remarks.append(
            "Neither bf16 nor fp16 is enabled; parameters on NVMe are assumed to have 16 bits."
        )
    narrow = bf16 and config["bf16.bf16_master_weights_and_grads"]
    if bf16 and config["bf16.bf16_optimizer_states"]:
        if not narrow:
            raise InputError(
                f"{where}: bf16.bf16_optimizer_states = true: DeepSpeed also requires "
                "bf16.bf16_master_weights_and_grads = true"
            )
        return "bf16_all"
    if fp16 and config["fp16.fp16_master_weights_and_grads"]:
        narrow = True
        remarks.append(
            "fp16.fp16_master_weights_and_grads is set; master weights take 16 bits here."
        )
    return "bf16_master" if narrow else "fp32"
