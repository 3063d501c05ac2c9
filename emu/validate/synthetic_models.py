"""Synthetic models of the validation, with all parameters in one tensor.

Owns the traces of these models. Does not own the trace format (ondie.traces). Source: this project.
"""

from __future__ import annotations

from ondie.traces import Step, Trace, flat_tensors

SAMPLE_PARAMS = 40_000_000


HYPER: dict[str, dict[str, float | bool]] = {
    "sgd": {"lr": 1e-3},
    "momentum": {"lr": 1e-3, "momentum": 0.9},
    "adagrad": {"lr": 1e-3, "eps": 1e-10},
    "adam": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
}


def model(op: str, n_params: int) -> Trace:
    """Return a trace of one step of a model with ``n_params`` parameters in one tensor.

    The trace has no payload; forward and backward take no time.
    """
    step = Step(
        index=0, loss=None, samples=1, forward_s=0.0, backward_s=0.0, optimizer_s=0.0,
        ready_s=None, hyper=(HYPER[op],), count=1,
    )  # fmt: skip
    return Trace(
        name=f"{op} {n_params:,}", payload="none", timing_source="synthetic", op=op,
        form="canonical", gradient_dtype="float32", groups=1,
        tensors=flat_tensors([("w", (n_params,), 0, 0)]), steps=(step,), samples_per_step=1,
        bytes_per_sample=0, macs_forward=0, macs_backward=0, dataset_samples=0, private_samples=0,
    )  # fmt: skip
