"""Summary of a trace as a dictionary, for display and for JSON.

This module owns info(), the content of `ondie trace info`. It does not own the output on the
terminal.
Source: the trace; the summary contains nothing beyond its data.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ondie.traces.hdf5_read import FileSource
from ondie.traces.model import Trace


def info(trace: Trace) -> dict[str, Any]:
    """Return a summary of the trace as a dictionary for JSON.

    The keys cover tensors, steps, timing, hyperparameters, storage and hashes.
    """
    steps = trace.steps
    first, last = steps[0], steps[-1]
    losses = [step.loss for step in steps if step.loss is not None]
    out: dict[str, Any] = {
        "name": trace.name,
        "origin": Path(trace.origin).name if isinstance(trace.source, FileSource) else trace.origin,
        "payload": trace.payload,
        "timing_source": trace.timing_source,
        "op": trace.op,
        "form": trace.form,
        "tensors": len(trace.tensors),
        "trainable_tensors": len(trace.trainable),
        "params": trace.n_params,
        "groups": trace.groups,
        "gradient_dtype": trace.gradient_dtype,
        "steps": len(steps),
        "skipped_steps": sum(step.skipped for step in steps),
        "clipped_steps": sum(step.clip_coefficient < 1 for step in steps),
        "samples_per_step": trace.samples_per_step,
        "bytes_per_sample": trace.bytes_per_sample,
        "macs_forward": trace.macs_forward,
        "macs_backward": trace.macs_backward,
        "dataset_samples": trace.dataset_samples,
        "private_samples": trace.private_samples,
        "loss": [losses[0], losses[-1]] if losses else None,
        "first_count": first.count,
        "loss_scale": [first.scale, last.scale],
        "median_s": {
            name: float(np.median([getattr(step, f"{name}_s") for step in steps]))
            for name in ("forward", "backward", "optimizer")
        },
        "hyper": [dict(entry) for entry in first.hyper],
        "sha256": trace.sha256,
        "attributes": dict(trace.attrs),
    }
    if isinstance(trace.source, FileSource):
        out["file_bytes"] = trace.source.path.stat().st_size
        if trace.payload == "recorded":
            stored = [trace.source.storage(s.index) for s in steps if not s.skipped]
            out["gradient_storage"] = dict(Counter(storage for storage, _, _ in stored))
            out["gradient_shifts"] = sorted({k for _, shift, _ in stored for k in shift})
            out["gradient_bytes"] = sum(size for _, _, size in stored)
            out["weights"] = [w for w in ("initial", "final") if trace.weights(w) is not None]
            out["states"] = sorted(trace.source.states())
            out["buffers"] = len(trace.buffers())
    return out
