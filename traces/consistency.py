"""Consistency rules of a trace, which are checked when a Trace is constructed.

This module owns check(), and the valid names of operations, optimizer states and data types. It
does not read the payload; gradients are checked on access (model.Trace.gradient).
Source: the trace contract of this project.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ondie.traces.errors import TraceError
from ondie.traces.records import Contents, Step

#: State vectors of each operation, in the order of the kernels' arguments.
OP_STATES: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("m",),
    "nesterov": ("m",),
    "adam": ("m", "v"),
    "adamw": ("m", "v"),
    "adagrad": ("v",),
    "other": (),
}
FLOAT_TYPES = ("float32", "float16", "bfloat16")
MAX_ELEMENTS = 1 << 60  # an offset in bytes must fit into 64 bits
MAX_NUMBER = (1 << 63) - 1

Fail = Callable[[str, object, str], None]


def check(trace: Contents) -> None:
    """Raise TraceError with a one-line message if the trace is inconsistent."""
    where = trace.origin

    def fail(key: str, value: object, right: str) -> None:
        raise TraceError(f"{where}: {key} is {value!r}; {right}")

    if trace.payload not in ("recorded", "none"):
        fail("payload", trace.payload, "must be 'recorded' or 'none'")
    if trace.timing_source not in ("recorded", "synthetic"):
        fail("timing_source", trace.timing_source, "must be 'recorded' or 'synthetic'")
    if trace.timing_source == "synthetic" and trace.payload != "none":
        fail("payload", trace.payload, "must be 'none' in a synthetic trace")
    if trace.op not in OP_STATES:
        fail("op", trace.op, f"must be one of {', '.join(OP_STATES)}")
    if trace.form not in ("torch", "canonical"):
        fail("form", trace.form, "must be 'torch' or 'canonical'")
    if trace.gradient_dtype not in FLOAT_TYPES:
        fail("gradient_dtype", trace.gradient_dtype, f"must be one of {', '.join(FLOAT_TYPES)}")
    for key in ("samples_per_step", "groups"):
        if getattr(trace, key) < 1:
            fail(key, getattr(trace, key), "must be at least 1")
    for key in (
        "bytes_per_sample",
        "macs_forward",
        "macs_backward",
        "dataset_samples",
        "private_samples",
    ):
        if getattr(trace, key) < 0:
            fail(key, getattr(trace, key), "must be 0 (unknown) or more")
        if getattr(trace, key) > MAX_NUMBER:
            fail(key, getattr(trace, key), f"must be at most {MAX_NUMBER}")
    if trace.private_samples > trace.dataset_samples > 0:
        fail(
            "private_samples",
            trace.private_samples,
            f"must be at most dataset_samples = {trace.dataset_samples}",
        )
    _check_tensors(trace, fail)
    if not trace.steps:
        fail("steps", 0, "must be at least 1")
    for position, step in enumerate(trace.steps):
        _check_step(trace, position, step, fail)


def _check_tensors(trace: Contents, fail: Fail) -> None:
    """Raise TraceError for invalid names, shapes, types, groups or offsets of tensors."""
    names: set[str] = set()
    for tensor in trace.tensors:
        key = f"tensor {tensor.name!r}: "
        if tensor.name in names:
            fail("tensor name", tensor.name, "must be unique")
        names.add(tensor.name)
        if any(d < 0 for d in tensor.shape):
            fail(key + "shape", tensor.shape, "must be sizes of 0 or more")
        if tensor.size != math.prod(tensor.shape):
            fail(key + "size", tensor.size, f"must be {math.prod(tensor.shape)} for its shape")
        if tensor.size > MAX_ELEMENTS:
            fail(key + "size", tensor.size, f"must be at most {MAX_ELEMENTS}")
        if tensor.dtype not in FLOAT_TYPES and tensor.trainable:
            fail(key + "dtype", tensor.dtype, f"must be one of {', '.join(FLOAT_TYPES)}")
        if tensor.trainable and not 0 <= tensor.group < trace.groups:
            fail(key + "group", tensor.group, f"must be from 0 to {trace.groups - 1}")
        if not tensor.trainable and tensor.offset != -1:
            fail(key + "offset", tensor.offset, "must be -1, because the tensor is not trainable")
        if not -1 <= tensor.ready_order < len(trace.tensors):
            fail(key + "ready_order", tensor.ready_order, "must be -1 or a rank")
    expected = 0
    for tensor in trace.trainable:
        if tensor.offset != expected:
            fail(
                f"tensor {tensor.name!r}: offset",
                tensor.offset,
                f"must be {expected} (tensors are contiguous)",
            )
        expected += tensor.size
    if expected == 0:
        fail("trainable parameters", 0, "must be at least 1")
    if expected > MAX_ELEMENTS:
        fail("trainable parameters", expected, f"must be at most {MAX_ELEMENTS}")


def _check_step(trace: Contents, position: int, step: Step, fail: Fail) -> None:
    """Raise TraceError for an invalid number in the step at ``position``."""
    key = f"step {position}: "
    if step.index != position:
        fail(key + "index", step.index, f"must be {position}")
    if step.samples < 1:
        fail(key + "samples", step.samples, "must be at least 1")
    if step.count < 1:
        fail(key + "count", step.count, "must be at least 1")
    for name in ("forward_s", "backward_s", "optimizer_s"):
        if not (math.isfinite(getattr(step, name)) and getattr(step, name) >= 0):
            fail(key + name, getattr(step, name), "must be a time of 0 s or more")
    if not (math.isfinite(step.scale) and step.scale > 0):
        fail(key + "scale", step.scale, "must be a positive number")
    if not 0 <= step.clip_coefficient <= 1:
        fail(key + "clip_coefficient", step.clip_coefficient, "must be from 0 to 1")
    if step.gradient_norm is not None and not step.gradient_norm >= 0:
        fail(key + "gradient_norm", step.gradient_norm, "must be at least 0")
    if step.skipped and not step.found_inf:
        fail(key + "skipped", True, "must be false, because found_inf is false")
    if len(step.hyper) != trace.groups:
        fail(key + "length of hyper", len(step.hyper), f"must be {trace.groups}, one per group")
    for group, hyper in enumerate(step.hyper):
        for name, value in hyper.items():
            if not math.isfinite(value):
                fail(f"{key}group {group}: {name}", value, "must be a finite number")
    if step.fused and len(step.fused) != trace.groups:
        fail(key + "length of fused", len(step.fused), f"must be {trace.groups}, one per group")
    if step.ready_s is not None:
        if step.ready_s.shape != (len(trace.tensors),):
            fail(
                key + "shape of ready_s",
                list(step.ready_s.shape),
                f"must be [{len(trace.tensors)}], one time per tensor",
            )
        if (step.ready_s < 0).any() or np.isinf(step.ready_s).any():
            fail(key + "ready_s", float(np.nanmin(step.ready_s)), "must be times of 0 s or more")
