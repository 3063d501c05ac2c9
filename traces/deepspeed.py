"""DeepSpeed's configuration file: the settings of ZeRO's offload to NVMe.

This module owns read_deepspeed(), the known keys with their types and defaults, and one-line
errors. It does not own devices or the effect of an option on a step.
Source: DeepSpeed's configuration classes (runtime/zero/config.py, offload_config.py,
runtime/precision_config.py, swap_tensor/constants.py) and its documentation.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from ondie.traces.errors import TraceError

Kind = Literal["bool", "count", "size", "share", "device", "any"]

#: Keys of each section that affect offload: kind and DeepSpeed's default.
KEYS: dict[str, dict[str, tuple[Kind, Any]]] = {
    "zero_optimization": {"stage": ("size", 0), "sub_group_size": ("count", 10**9)},
    "zero_optimization.offload_optimizer": {
        "device": ("device", "none"),
        "buffer_count": ("count", 4),
        "pipeline_read": ("bool", False),
        "pipeline_write": ("bool", False),
        "ratio": ("share", 1.0),
    },
    "zero_optimization.offload_param": {
        "device": ("device", "none"),
        "buffer_count": ("count", 5),
        "buffer_size": ("size", 100_000_000),
        "max_in_cpu": ("size", 10**9),
    },
    "aio": {
        "block_size": ("count", 1 << 20),
        "queue_depth": ("count", 8),
        "thread_count": ("count", 1),
        "intra_op_parallelism": ("count", 1),
        "single_submit": ("bool", False),
        "overlap_events": ("bool", True),
        "use_gds": ("bool", False),
    },
    "bf16": {
        "enabled": ("bool", False),
        "bf16_master_weights_and_grads": ("bool", False),
        "bf16_optimizer_states": ("bool", False),
    },
    "fp16": {"enabled": ("bool", False), "fp16_master_weights_and_grads": ("bool", False)},
    "activation_checkpointing": {
        "partition_activations": ("bool", False),
        "cpu_checkpointing": ("bool", False),
        "number_checkpoints": ("any", None),
    },
}
#: Known keys that do not affect the data that a step moves to and from NVMe.
SILENT: dict[str, tuple[str, ...]] = {
    "zero_optimization": (
        "allgather_partitions", "allgather_bucket_size", "overlap_comm", "reduce_scatter",
        "reduce_bucket_size", "contiguous_gradients", "use_multi_rank_bucket_allreduce",
        "load_from_fp32_weights", "elastic_checkpoint", "round_robin_gradients",
        "ignore_unused_parameters", "legacy_stage1", "cpu_offload", "cpu_offload_param",
        "cpu_offload_use_pin_memory", "prefetch_bucket_size", "param_persistence_threshold",
        "model_persistence_threshold", "max_live_parameters", "max_reuse_distance",
        "gather_16bit_weights_on_model_save", "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold", "stage3_model_persistence_threshold",
        "stage3_max_live_parameters", "stage3_max_reuse_distance",
        "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save",
        "module_granularity_threshold", "zero_hpz_partition_size", "zero_quantized_weights",
        "zero_quantized_nontrainable_weights", "zero_quantized_gradients", "mics_shard_size",
        "mics_hierarchical_params_gather", "memory_efficient_linear", "pipeline_loading_checkpoint",
        "override_module_apply", "log_trace_cache_warnings", "grad_hooks",
        "use_all_reduce_for_fetch_params", "offload_optimizer", "offload_param",
    ),
    "zero_optimization.offload_optimizer": (
        "nvme_path", "pin_memory", "fast_init", "buffer_size", "pipeline",
        "nvme_path_per_local_rank",
    ),
    "zero_optimization.offload_param": (
        "nvme_path", "pin_memory", "nvme_path_per_local_rank",
    ),
    "aio": ("io_backend",),
    "bf16": (
        "immediate_grad_update", "check_grad_overflow", "check_overflow", "auto_cast", "loss_scale",
    ),
    "fp16": (
        "auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis",
        "consecutive_hysteresis", "min_loss_scale", "opt_level",
    ),
    "activation_checkpointing": (
        "contiguous_memory_optimization", "synchronize_checkpoint_boundary", "profile",
    ),
}  # fmt: skip
DEVICES = ("none", "cpu", "nvme")
WANTED = {
    "bool": "true or false", "count": "a whole number of at least 1",
    "size": "a whole number of at least 0", "share": "a number from 0 to 1",
    "device": "one of none, cpu, nvme",
}  # fmt: skip
LARGEST = 1 << 62


@dataclass(frozen=True)
class ZeroConfig:
    """Offload settings of a DeepSpeed configuration.

    ``values``: value of each "section.key", with defaults for missing keys. The name of a nested
    section is only its last part, such as "offload_param".
    """

    values: Mapping[str, Any]
    given: frozenset[str]
    """Keys that the DeepSpeed configuration file contains, as "section.key"."""
    remarks: tuple[str, ...]
    """Remarks on the configuration file for the user: defaults used for "auto", and unknown
    keys."""

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    @property
    def checkpointing(self) -> bool:
        """True if the configuration file enables a form of activation checkpointing."""
        section = "activation_checkpointing."
        return bool(
            self[section + "partition_activations"]
            or self[section + "cpu_checkpointing"]
            or self[section + "number_checkpoints"]
        )


def read_deepspeed(path: str | PathLike[str]) -> ZeroConfig:
    """Read the offload settings in a ds_config.json.

    Raises TraceError if the file is invalid; its message is one line with file, key, value and
    valid values.
    """
    where = str(path)
    content = _json(where)
    values: dict[str, Any] = {}
    given: set[str] = set()
    remarks: list[str] = []
    for section, keys in KEYS.items():
        short = section.rpartition(".")[2]
        table = _section(content, section, where)
        for key, value in table.items():
            if key in keys and value is not None:
                given.add(f"{short}.{key}")
                values[f"{short}.{key}"] = _value(where, f"{section}.{key}", value, *keys[key])
                if value == "auto":
                    default = json.dumps(keys[key][1])
                    remarks.append(
                        f'{section}.{key} is "auto", so DeepSpeed\'s default of {default} applies.'
                    )
            elif key not in keys and key not in SILENT[section]:
                near = difflib.get_close_matches(key, [*keys, *SILENT[section]], n=1, cutoff=0.6)
                hint = f" The nearest known key is {near[0]}." if near else ""
                remarks.append(f"{section}.{key} is unknown to ondie and ignored.{hint}")
        for key, (_, default) in keys.items():
            values.setdefault(f"{short}.{key}", default)
    for section in {name.partition(".")[0] for name in KEYS} - content.keys():
        for key in difflib.get_close_matches(section, content, n=1, cutoff=0.8):
            remarks.append(
                f"{key} is unknown to ondie and ignored. The nearest known key is {section}."
            )
    steps = content.get("gradient_accumulation_steps", 1)
    if isinstance(steps, int) and steps > 1:
        remarks.append(
            f"gradient_accumulation_steps is {steps}, but ondie writes gradients once per step."
        )
    return ZeroConfig(values, frozenset(given), tuple(remarks))


def _json(where: str) -> dict[str, Any]:
    """Return the JSON object in a file. Raises TraceError if the file cannot be read or does not
    contain a JSON object with the key zero_optimization."""
    try:
        text = Path(where).read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{where}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{where}: is not UTF-8 text; must be a ds_config.json") from error
    try:
        content = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise TraceError(
            f"{where}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from error
    except RecursionError:
        raise TraceError(f"{where}: not JSON: nested too deeply") from None
    except ValueError as error:
        raise TraceError(f"{where}: {error}") from error
    if not isinstance(content, dict):
        raise TraceError(f"{where}: {_short(content)}; must be an object with zero_optimization")
    if "zero_optimization" not in content:
        raise TraceError(
            f"{where}: zero_optimization is missing; is this a DeepSpeed configuration?"
        )
    return content


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object from its (key, value) pairs; a duplicate key is an error, as in DeepSpeed.

    Raises ValueError for a key that appears twice.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} appears twice; state it once")
        found[key] = value
    return found


def _section(content: Mapping[str, Any], section: str, where: str) -> Mapping[str, Any]:
    """Return the section with a dotted name, such as "zero_optimization.offload_param".

    A missing section is empty. Raises TraceError if a section is not an object.
    """
    table: Any = content
    for part in section.split("."):
        table = table.get(part)
        if table is None:
            return {}
        if not isinstance(table, dict):
            raise TraceError(f"{where}: {section} = {_short(table)}: must be an object")
    return dict(table)


def _value(where: str, key: str, value: Any, kind: Kind, default: Any) -> Any:
    """Return the value of a key after a check of its type; "auto" becomes the default.

    Raises TraceError for an invalid value.
    """
    if value == "auto":
        return default
    good, made = False, value
    if kind == "any":
        good = True
    elif kind == "bool":
        good = isinstance(value, bool)
    elif kind == "device":
        good = value in DEVICES
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        if kind == "share":
            good = 0 <= value <= 1
        else:  # DeepSpeed accepts 1e9 as a whole number
            good = value == int(value) and (kind == "count") <= value <= LARGEST
            made = int(value) if good else value
    if not good:
        raise TraceError(f"{where}: {key} = {_short(value)}, expected {WANTED[kind]}")
    return made


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
