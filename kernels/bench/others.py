"""Updates of bitsandbytes, torchao and DeepSpeed as contenders, if they are installed.

This module owns the creation of each optimizer and the check of its result. It omits an optimizer
that fails in its first step, is not compiled in time or stores its states in a type other than the
requested one, and reports the reason. It does not own torch's optimizers (contenders.py) or timing
(run.py).
Source: bitsandbytes 0.50, torchao 0.18, DeepSpeed 0.19. Adam8bit of bitsandbytes selects 8-bit
blockwise states on the CPU; below `min_8bit_size` the states are FP32. torchao has 8-bit states
only for tensors of at least 4096 parameters, in whole blocks of 256 values. Only its optimizer
_AdamW has stochastic rounding, and only of the weights. DeepSpeedCPUAdam is compiled on first use,
which requires a C++ compiler and ninja and takes most of a minute.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

Remark = Callable[[str], object]
BUILD_S = 300.0
"""Time limit for the compilation of another package's code on its first use, s."""
Make = Callable[[Any, str, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Other:
    """Another package whose optimizer is a contender of the bench: the names of the optimizer's
    states m and v, and the type of these states in each format."""

    name: str  # the module name in lower case
    moments: tuple[str, str]
    types: Mapping[str, str]
    make: Make  # creates an optimizer from parameters, an operation and hyperparameters
    builds: bool = False  # compiles code on first use

    def installed(self) -> bool:
        """Return True if the package is installed; the package is not imported."""
        return find_spec(self.name.lower()) is not None

    def has(self, op: str, count: int, form: str) -> bool:
        """Return True if the package supports operation ``op`` on ``count`` parameters in format
        ``form``."""
        if self.name == "torchao" and form == "int8_dynamic" and (count % 256 or count < 4096):
            return False  # the states would be FP32
        return op in ("adam", "adamw") and form in self.types


def contender(
    other: Other,
    torch: Any,
    op: str,
    hyper: Mapping[str, float],
    count: int,
    form: str,
    remark: Remark,
) -> Callable[[], object] | None:
    """Return a function that runs a step of the package's optimizer on separate memory.

    Returns None and calls ``remark`` if the optimizer fails or stores its states in a type other
    than the one that the format requires.
    """
    if other.builds and (reason := _build(other.name, tuple(sys.path))):
        remark(f"{other.name} is excluded from {op}, {form}: {reason}")
        return None
    options: dict[str, Any] = dict(hyper)
    options["betas"] = (options.pop("beta1"), options.pop("beta2"))
    wide = torch.bfloat16 if form == "bf16_stochastic" else torch.float32
    parameter = torch.nn.Parameter(torch.ones(count, dtype=wide))
    parameter.grad = torch.linspace(0.5, 1.5, count).to(wide)
    try:
        with silence():
            optimizer = other.make([parameter], op, options)
            optimizer.step()
    except (Exception, SystemExit) as error:  # noqa: BLE001  (third-party code may raise anything)
        lines = str(error).strip().splitlines() or [""]
        remark(f"{other.name} is excluded from {op}, {form}: {type(error).__name__}: {lines[0]}")
        return None
    found = {_type(optimizer.state[parameter].get(moment)) for moment in other.moments}
    if found != {f"torch.{other.types[form]}"}:
        words = " and ".join(sorted(found))
        remark(f"{other.name} is excluded from {op}, {form}: its states are {words}")
        return None
    return optimizer.step


@cache
def _build(name: str, path: tuple[str, ...]) -> str | None:
    """Run a package's first optimizer step in a separate process, which compiles its code.

    Returns None, or the reason if the step fails or takes longer than BUILD_S. After BUILD_S, the
    process and its children are killed; otherwise a build that waits for the lock of another build
    would never end. ``path``: value of sys.path.
    """
    words = [sys.executable, "-c", f"from {__name__} import first_step; first_step({name!r})"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(BUILD_S)
        except subprocess.TimeoutExpired:
            return f"its code was not compiled within {BUILD_S:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode == 0:
            return None
        said.seek(0)
        lines = said.read().decode("utf-8", "replace").strip().splitlines() or ["no message"]
        return f"its code does not compile: {lines[-1]}"


def first_step(name: str) -> None:
    """Run the first step of a package's Adam on a few parameters."""
    import torch

    other = next(other for other in OTHERS if other.name == name)
    parameter = torch.nn.Parameter(torch.ones(64))
    parameter.grad = torch.ones(64)
    other.make([parameter], "adam", {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}).step()


def _type(moment: Any) -> str:
    """Return the name of the type of an optimizer state (first or second moment); for torchao, of
    the type of its codes."""
    return str(getattr(getattr(moment, "codes", moment), "dtype", None))


@contextmanager
def silence() -> Iterator[None]:
    """Discard standard output and standard error, including those of C code and child processes."""
    streams: Sequence[Any] = (sys.stdout, sys.stderr)
    for stream in streams:
        stream.flush()
    before = [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (1, 2):
            os.dup2(nowhere, number)
        yield
    finally:
        for stream in streams:
            stream.flush()
        for number, kept_as in zip((1, 2), before, strict=True):
            os.dup2(kept_as, number)
        for number in (*before, nowhere):
            os.close(number)


def _bitsandbytes(parameters: list[Any], op: str, options: Mapping[str, Any]) -> Any:
    kinds = import_module("bitsandbytes").optim
    kind = kinds.AdamW8bit if op == "adamw" else kinds.Adam8bit
    return kind(parameters, **options, min_8bit_size=0)


def _torchao(parameters: list[Any], op: str, options: Mapping[str, Any]) -> Any:
    kinds = import_module("torchao.optim")
    if parameters[0].element_size() == 2:  # AdamW without weight decay equals Adam
        return kinds._AdamW(
            parameters, **({"weight_decay": 0.0} | dict(options)), bf16_stochastic_round=True
        )
    return (kinds.AdamW8bit if op == "adamw" else kinds.Adam8bit)(parameters, **options)


def _deepspeed(parameters: list[Any], op: str, options: Mapping[str, Any]) -> Any:
    kind = import_module("deepspeed.ops.adam").DeepSpeedCPUAdam
    return kind(parameters, **options, adamw_mode=op == "adamw")


ADAM = ("exp_avg", "exp_avg_sq")
OTHERS = (
    Other("bitsandbytes", ("state1", "state2"), {"int8_dynamic": "uint8"}, _bitsandbytes),
    Other("torchao", ADAM, {"int8_dynamic": "uint8", "bf16_stochastic": "bfloat16"}, _torchao),
    Other("DeepSpeed", ADAM, {"fp32": "float32"}, _deepspeed, builds=True),
)
