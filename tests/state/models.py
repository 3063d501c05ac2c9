"""Owns: training runs small enough for a test of the machine: a few odd tensors, two groups.
Does not: know any path or device.
Source: own.
"""

from typing import Any

import numpy as np

from ondie.traces import Memory, Step, Trace, flat_tensors

HYPER: dict[str, tuple[dict[str, float | bool], ...]] = {
    "sgd": ({"lr": 0.1}, {"lr": 0.05, "weight_decay": 0.01}),
    "momentum": ({"lr": 0.1, "momentum": 0.9}, {"lr": 0.05, "momentum": 0.8, "dampening": 0.1}),
    "nesterov": ({"lr": 0.1, "momentum": 0.9}, {"lr": 0.05, "momentum": 0.8}),
    "adam": (
        {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
        {"lr": 0.02, "beta1": 0.8, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1},
    ),
    "adamw": (
        {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1},
        {"lr": 0.02, "beta1": 0.8, "beta2": 0.99, "eps": 1e-8},
    ),
    "adagrad": ({"lr": 0.1, "eps": 1e-10}, {"lr": 0.05, "eps": 1e-10, "lr_decay": 0.1}),
}
SHAPES = (("a", (3, 1367), 0), ("b", (5003,), 1), ("c", (7, 11, 101), 0))  # 16881 parameters


def model(
    op: str = "adamw",
    steps: int = 3,
    shapes: tuple[tuple[str, tuple[int, ...], int], ...] = SHAPES,
    payload: bool = True,
    skipped: tuple[int, ...] = (),
    seconds: float = 1e-4,
    **changes: Any,
) -> Trace:
    """A run of ``steps`` steps; the layers' gradients become ready from the last to the first.

    With payload: random weights, gradients and (non-zero) states, the same at every call."""
    tensors = flat_tensors([(n, s, g, len(shapes) - 1 - i) for i, (n, s, g) in enumerate(shapes)])
    n = sum(t.size for t in tensors)
    rng = np.random.default_rng(7)
    source = Memory()
    if payload:
        states = {"m": rng.normal(size=n) / 8, "v": rng.random(n)}
        source = Memory(
            gradients={i: rng.normal(size=n).astype(np.float32) for i in range(steps)},
            weight_vectors={"initial": rng.normal(size=n).astype(np.float32)},
            state_vectors={name: x.astype(np.float32) for name, x in states.items()},
        )
    return Trace(
        name="small",
        payload="recorded" if payload else "none",
        timing_source="recorded",
        op=op,
        form="canonical",
        gradient_dtype="float32",
        groups=2,
        tensors=tensors,
        steps=tuple(
            Step(
                index=i,
                loss=1.0,
                samples=8,
                forward_s=seconds / 2,
                backward_s=seconds,
                optimizer_s=seconds,
                ready_s=seconds * np.arange(len(tensors), 0, -1) / len(tensors),
                hyper=HYPER[op],
                count=i + 4,  # the recording starts in the middle of a run
                found_inf=i in skipped,
                skipped=i in skipped,
            )
            for i in range(steps)
        ),
        samples_per_step=8,
        bytes_per_sample=100,
        macs_forward=1000,
        macs_backward=2000,
        dataset_samples=80,
        private_samples=0,
        source=source,
        **changes,
    )
