"""Owns: small traces made by hand, and a file of one, for the tests of the trace room.
Does not: use torch or the shipped recordings.
Source: own.
"""

from pathlib import Path

import numpy as np

from ondie.traces import Memory, Step, Tensor, Trace, flat_tensors, write
from ondie.traces.model import vector_sha256

HYPER = {
    "lr": 0.01,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "maximize": False,
}


def tensors() -> tuple[Tensor, ...]:
    """Two groups, 3 x 4 + 5 + 300 elements, and a frozen one that is in no vector."""
    flat = flat_tensors([("a", (3, 4), 0, 2), ("b", (5,), 1, 1), ("c", (30, 10), 1, 0)])
    return (*flat, Tensor("frozen", (7, 7), "float32", -1, 49, False, -1, -1))


def sample(
    steps: int = 3, skipped: tuple[int, ...] = (), gradient: np.ndarray | None = None, **changes
) -> Trace:
    """A recorded Adam trace of 317 parameters; `changes` replace fields of the Trace."""
    rng = np.random.default_rng(5)
    n = 317
    vectors = {
        i: gradient if gradient is not None else rng.normal(size=n).astype(np.float32)
        for i in range(steps)
        if i not in skipped
    }
    rows = tuple(
        Step(
            index=i,
            loss=1.5 - i,
            samples=8,
            forward_s=0.25,
            backward_s=0.5,
            optimizer_s=0.125,
            ready_s=np.array([0.3, 0.2, 0.1, np.nan]),
            hyper=({**HYPER, "lr": 0.01 * i}, {**HYPER, "maximize": True}),
            count=i + 1,
            scale=2.0**i,
            clip_coefficient=0.5,
            found_inf=i in skipped,
            skipped=i in skipped,
            gradient_norm=None if i in skipped else 3.0,
            gradient_sha256=None if i in skipped else vector_sha256(vectors[i]),
            fused=(True, False),
            order=np.arange(8) + i,
        )
        for i in range(steps)
    )
    memory = Memory(
        gradients=vectors,
        weight_vectors={k: rng.normal(size=n).astype(np.float32) for k in ("initial", "final")},
        state_vectors={"m": rng.normal(size=n).astype(np.float32)},
        buffer_arrays={"mean": np.arange(3.0), "count": np.array(7)},
    )
    given = {
        "name": "sample",
        "payload": "recorded",
        "timing_source": "recorded",
        "op": "adam",
        "form": "torch",
        "gradient_dtype": "float32",
        "groups": 2,
        "tensors": tensors(),
        "steps": rows,
        "samples_per_step": 8,
        "bytes_per_sample": 64,
        "macs_forward": 10,
        "macs_backward": 20,
        "dataset_samples": 100,
        "private_samples": 3,
        "attrs": {"framework": "none", "seed": 5, "deterministic": True, "ratio": 0.5},
        "source": memory,
    }
    return Trace(**{**given, **changes})


def sample_file(folder: Path, name: str = "sample.h5", **changes) -> Path:
    """The sample, written."""
    write(folder / name, sample(**changes))
    return folder / name
