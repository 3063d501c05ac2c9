"""Contenders of `ondie bench kernels` for an operation, a format and a shape.

This module owns the cases, the arrays and the measured calls: kernels, the memory limit and the
compute limit. It also owns the number of arithmetic operations per parameter. It does not own
timing (run.py), packages other than torch (others.py) or kernels.
Source: this project; Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.

The memory limit is a call with the DRAM traffic of the update and almost no arithmetic
(csrc/limit.c).

The compute limit is the rate of fused FP32 multiply-adds. The compiler chooses the vector width and
enough independent chains to hide the latency. The loop runs PER_LOAD multiply-adds between load and
store of each number, and the numbers stay in the first-level cache. Updates cannot reach this
limit. Their definitions round after every operation, so a multiplication and an addition are two
instructions. Divisions and square roots take longer.

Shapes: `flat` is one array. `page` is one page of 4096 parameters that is updated repeatedly, as a
prepared call and, as contender "c, k(w, g, ...)", as a call with all arguments. `tensors` divides
the parameters into 2000 arrays. `pages` divides them into pages of 4096 in random order and adds a
contender that updates the same parameters in one array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numba
import numpy as np

from ondie.kernels import (
    FORMATS,
    OPS,
    KernelError,
    Update,
    aligned_empty,
    backends,
    get,
    isas,
    native,
    one,
    pages,
    tensors,
)
from ondie.kernels.bench.others import OTHERS, Other, Remark, contender
from ondie.kernels.threads import pool

LIMIT = "memory limit"
PEAK = "compute limit"
PER_LOAD = 8
NUMBERS = 1024  # per thread: 4 KiB
TIMES = 20_000  # passes over the numbers: about 1 ms, so the start of threads is negligible
TORCH = "torch operator"
LINEAR = "c, one array"
NEAREST = "c, to nearest"
CALL = "c, k(w, g, ...)"
NARROWER = "c, avx2"
THREE = "torch, three passes"
OPTIMIZERS = {f"torch.optim {kind}": kind for kind in ("fused", "foreach")}
PAGE = 4096
TENSORS = 2000
KEY = 12345  # key of stochastic rounding
SHAPES = ("flat", "page", "tensors", "pages")
HYPER = {
    "sgd": {"lr": 1e-3},
    "momentum": {"lr": 1e-3, "momentum": 0.9},
    "nesterov": {"lr": 1e-3, "momentum": 0.9},
    "adam": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    "adamw": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
    "adagrad": {"lr": 1e-3, "eps": 1e-10},
}
Contender = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One case of the bench: an operation on ``n`` parameters with a storage format and a shape of
    the arrays."""

    op: str
    n: int
    format: str = "fp32"
    shape: str = "flat"
    threads: int = 1

    def __post_init__(self) -> None:
        for what, name, known in (
            ("operation", self.op, OPS),
            ("format", self.format, tuple(FORMATS)),
            ("shape", self.shape, SHAPES),
        ):
            if name not in known:
                raise KernelError(f"unknown {what} {name!r} (known: {', '.join(known)})")
        if self.n < 1:
            raise KernelError(f"size: {self.n} parameters; must be at least 1")
        if self.shape == "tensors" and self.n < TENSORS:
            raise KernelError(
                f"size: {self.n} parameters; must be at least {TENSORS} for shape tensors"
            )
        if self.shape == "pages" and self.n % PAGE:
            raise KernelError(
                f"size: {self.n} parameters; must be a multiple of {PAGE} for shape pages"
            )
        if self.shape == "page" and self.n != PAGE:
            raise KernelError(f"size: {self.n} parameters; must be {PAGE} for shape page")

    @property
    def name(self) -> str:
        """Name of the case in the result rows.

        The name consists of the operation, of the format unless it is "fp32", and of the shape
        unless it is "flat".
        """
        more = [word for word in (self.format, self.shape) if word not in ("fp32", "flat")]
        return "/".join([self.op, *more])

    def kernel(self, backend: str = "auto") -> Update:
        """Return the update kernel of the case on a backend."""
        return get(self.op, backend=backend, format=self.format)

    @property
    def narrower(self) -> bool:
        """True if the AVX2 kernel is an additional contender: for 8-bit states on a processor with
        AVX-512."""
        return bool(FORMATS[self.format].codes) and isas()[-1:] == ("avx512",)

    def names(self) -> tuple[str, ...]:
        """Return the names of the contenders, starting with the anchor (the contender with which
        the others are compared).

        The names depend on the installed packages; no contender is created and no package is
        imported. `contenders` may omit a package that fails.
        """
        found: tuple[str, ...] = (LIMIT,) if native.lib is not None else ()
        for backend in reversed(backends()):
            found += (backend,)
            if backend == "c":
                found += (LINEAR,) if self.shape == "pages" else ()
                found += (NEAREST,) if self.format == "bf16_stochastic" else ()
                found += (CALL,) if self.shape == "page" else ()
                found += (NARROWER,) if self.narrower else ()
        if find_spec("torch") is None:
            return found
        return found + _torch_names(self) + tuple(other.name for other in self._others())

    def _others(self) -> list[Other]:
        """Return the other packages that are contenders of this case."""
        return [
            other
            for other in OTHERS
            if self.shape == "flat"
            and other.has(self.op, self.n, self.format)
            and other.installed()
        ]

    def contenders(self, remark: Remark = lambda words: None) -> dict[str, Contender]:
        """Return the contenders by name, the anchor first.

        All contenders except those of other packages use the same arrays. remark: callback that
        receives a message for each omitted contender.
        """
        kernel = self.kernel("numpy")
        arrays = filled(kernel, self.n)
        found: dict[str, Contender] = {}
        if native.lib is not None:
            found[LIMIT] = _limit(kernel, arrays, self.threads)
        found |= _ours(self, arrays)
        torch = torch_module()
        if torch is not None:
            found |= _theirs(torch, self, arrays)
            for other in self._others():
                step = contender(other, torch, self.op, HYPER[self.op], self.n, self.format, remark)
                if step is not None:
                    found[other.name] = step
        return found


def torch_module() -> Any:
    """Return the torch module, or None if it is not installed."""
    try:
        return import_module("torch")
    except (ImportError, OSError):  # torch or its shared libraries are missing
        return None


def filled(kernel: Update, count: int) -> list[np.ndarray]:
    """Return the arrays of an update of ``count`` parameters. Their values stay finite and normal
    in any number of steps."""
    arrays = []
    for slot in kernel.slots:
        array = aligned_empty(slot.size(count), slot.dtype)
        values = np.linspace(0.5, 1.5, array.size, dtype=np.float32)
        if slot.name != "g":
            values[:] = 1
        if slot.dtype == np.uint16:
            array[:] = values.view(np.uint32) >> 16
        else:
            array[:] = np.arange(array.size) % 256 if slot.dtype == np.uint8 else values
        arrays.append(array)
    return arrays


def _limit(kernel: Update, arrays: Sequence[np.ndarray], threads: int) -> Contender:
    """Return a function with the DRAM traffic of an update and almost no arithmetic.

    For FP32 it uses the given arrays, whose values stay normal. For other formats it uses separate
    arrays, because it leaves meaningless values in them.
    """
    count, isa = arrays[0].size, isas()[-1]
    if kernel.format == "fp32":
        pointer = native.pointer()
        plain = native.function(f"limit{kernel.bytes_per_param()}", isa, threads)
        cast = [pointer(array) for array in arrays]
        return lambda: plain(*cast, count)
    own = [aligned_empty(array.size, array.dtype) for array in arrays]
    for array in own:
        array.view(np.uint8)[:] = 0
    return native.limit(isa, threads, kernel.slots, kernel.places, own)


def _ours(case: Case, arrays: list[np.ndarray]) -> dict[str, Contender]:
    """Return the kernels of this project as contenders, by name."""
    found: dict[str, Contender] = {}
    for backend in reversed(backends()):
        kernel = case.kernel(backend)
        coef = kernel.coefficients(HYPER[case.op], 10)
        found[backend] = _call(case, kernel, arrays, coef)
        if backend == "c" and case.shape == "pages":
            found[LINEAR] = partial(kernel.run, arrays, coef, case.threads, 0, KEY)
        if backend == "c" and case.format == "bf16_stochastic":
            nearest = get(case.op, format="bf16_all")
            found[NEAREST] = _call(case, nearest, arrays, coef)
        if backend == "c" and case.shape == "page":
            w, g, *rest = arrays
            out = rest.pop() if kernel.slots[-1].name == "out" else None
            key = KEY if kernel.random else None
            found[CALL] = partial(kernel, w, g, tuple(rest), coef, case.threads, out=out, key=key)
        if backend == "c" and case.narrower:
            narrower = get(case.op, "c", isa="avx2", format=case.format)
            found[NARROWER] = _call(case, narrower, arrays, coef)
    return found


def _call(case: Case, kernel: Update, arrays: list[np.ndarray], coef: np.ndarray) -> Contender:
    """Return a function that runs a kernel on the arrays in the shape of the case."""
    if case.shape == "flat":
        return partial(kernel.run, arrays, coef, case.threads, 0, KEY)
    if case.shape == "page":
        table = one(kernel, *arrays)
    elif case.shape == "tensors":
        table = tensors(kernel, list(zip(*(cut(array, case.n, slot.share) for array, slot in
                                           zip(arrays, kernel.slots, strict=True)),
                                         strict=True)))  # fmt: skip
    else:
        order = np.random.default_rng(0).permutation(case.n // PAGE)
        table = pages(kernel, arrays, PAGE, order)
    return partial(table, coef, case.threads, KEY if kernel.random else None)


def sizes(count: int) -> list[int]:
    """Return the number of parameters of each of the TENSORS tensors into which ``count``
    parameters are divided."""
    return [count // TENSORS + (i < count % TENSORS) for i in range(TENSORS)]


def cut(array: np.ndarray, parameters: int, share: int = 1) -> list[np.ndarray]:
    """Split an array of an update of ``parameters`` parameters into the arrays of TENSORS tensors.

    ``share``: number of parameters per array entry. Arrays of scales (share above 1) are not split
    but allocated for each tensor.
    """
    if share == 1:
        return np.array_split(array, TENSORS)
    return [np.ones(-(-count // share), array.dtype) for count in sizes(parameters)]


# --- torch, on the same arrays


def _tensor(torch: Any, array: np.ndarray) -> Any:
    """Return a torch tensor that uses the memory of an array; uint16 becomes BF16."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def _torch_names(case: Case) -> tuple[str, ...]:
    """Return the names of torch's contenders for a case."""
    if FORMATS[case.format].codes or case.format == "bf16_stochastic":
        return ()
    return (THREE,) if case.format in ("fp16", "bf16") else (TORCH, *OPTIMIZERS)


def _theirs(torch: Any, case: Case, arrays: list[np.ndarray]) -> dict[str, Contender]:
    """Return torch's fused operator and its optimizers as contenders.

    For a 16-bit gradient with FP32 weights, the only contender makes three passes over the same
    arrays: cast, update, cast back.
    """
    kernel = case.kernel("numpy")
    if not _torch_names(case):
        return {}
    cuts = [cut(array, case.n) if case.shape == "tensors" else [array] for array in arrays]
    lists = [[_tensor(torch, array) for array in part] for part in cuts]
    count = len(kernel.states)
    w, g, states = lists[0], lists[1], lists[2 : 2 + count]
    if case.format in ("fp16", "bf16"):
        wide = [torch.empty_like(x) for x in w]
        operator = _operator(torch, case.op, w, wide, states)
        if operator is None:
            return {}
        out = lists[2 + count]

        def three() -> None:
            for x, y in zip(wide, g, strict=True):
                x.copy_(y)
            operator()
            for x, y in zip(out, w, strict=True):
                x.copy_(y)

        return {THREE: three}
    found: dict[str, Contender] = {}
    operator = _operator(torch, case.op, w, g, states)
    if operator is not None:
        found[TORCH] = operator
    for name, kind in OPTIMIZERS.items():
        if kind == "foreach" and case.op == "nesterov":  # it modifies the gradient
            w, g = ([x.clone() for x in xs] for xs in (w, g))
        found[name] = _optimizer(torch, case.op, w, g, kind).step
    return found


def _operator(torch: Any, op: str, w: list[Any], g: list[Any], states: list[Any]) -> Any:
    """Return a function that calls torch's fused operator, or None if this torch version has no
    such operator."""
    steps = [torch.tensor(10.0) for _ in w]
    options: dict[str, Any] = dict(HYPER[op])
    fixed = {"weight_decay": options.get("weight_decay", 0.0), "maximize": False}
    if op in ("adam", "adamw"):
        name, lists = f"_fused_{op}_", [w, g, *states, [], steps]
        options |= fixed | {"amsgrad": False}
    elif op == "adagrad":
        name, lists = "_fused_adagrad_", [w, g, *states, steps]
        options |= fixed | {"lr_decay": 0.0}
    else:
        name, lists = "_fused_sgd_", [w, g, states[0] if states else []]
        options |= fixed | {"dampening": 0.0, "nesterov": op == "nesterov"}
        options |= {"is_first_step": False} | ({} if states else {"momentum": 0.0})
    operator = getattr(torch, name, None)
    return None if operator is None else (lambda: operator(*lists, **options))


def _optimizer(torch: Any, op: str, w: list[Any], g: list[Any], kind: str) -> Any:
    """Return the step function of torch's optimizer on the given tensors; kind: "fused" or
    "foreach"."""
    classes = {"adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad"}
    options: dict[str, Any] = dict(HYPER[op])
    if "beta1" in options:
        options["betas"] = (options.pop("beta1"), options.pop("beta2"))
    if op == "nesterov":
        options["nesterov"] = True
    parameters = [torch.nn.Parameter(tensor) for tensor in w]
    for parameter, gradient in zip(parameters, g, strict=True):
        parameter.grad = gradient
    return getattr(torch.optim, classes.get(op, "SGD"))(parameters, **options, **{kind: True})


class Operations(NamedTuple):
    """Numbers of arithmetic operations of one update per parameter, by kind of operation."""

    adds: int  # additions and subtractions
    multiplies: int
    divides: int = 0
    roots: int = 0


OPERATIONS = {
    "sgd": Operations(1, 1),
    "momentum": Operations(2, 3),
    "nesterov": Operations(3, 4),
    "adam": Operations(4, 8, 1, 1),
    "adamw": Operations(4, 8, 1, 1),
    "adagrad": Operations(3, 2, 1, 1),
}
"""Numbers of arithmetic operations per parameter of each update, in the canonical form.

The operations with the coefficient l2 (coupled weight decay) are not counted, because they are
skipped when l2 = 0. Casts, codes and random bits of other formats are not counted, because they
belong to the storage and not to the update.
"""


def multiply_adds(values: Any, times: int) -> None:
    """Run ``times`` passes of multiply-adds over ``values`` (float32[n]); the values converge to
    1."""
    half = np.float32(0.5)
    for _ in range(times):
        for i in range(len(values)):
            value = values[i]
            for _ in range(PER_LOAD):
                value = value * half + half
            values[i] = value


@cache
def compiled() -> Any:
    """Return `multiply_adds` compiled directly by Numba.

    It is not compiled by `ondie.kernels.jit`, whose rules exclude fused multiply-adds.
    """
    return numba.njit(nogil=True, error_model="numpy", fastmath={"contract"})(multiply_adds)


def peak(threads: int) -> tuple[Callable[[], object], int]:
    """Return a function that runs only multiply-adds on ``threads`` threads, and the number of
    floating-point operations per call."""
    loop = compiled()
    arrays = [np.full(NUMBERS, 2, np.float32) for _ in range(threads)]

    def call() -> object:
        if threads == 1:
            return loop(arrays[0], TIMES)
        return list(pool(threads).map(lambda values: loop(values, TIMES), arrays))

    return call, 2 * PER_LOAD * NUMBERS * TIMES * threads
