"""Measurement of emu/compute/instructions.toml: instructions per parameter of the C kernels.

This script owns that file. It does not estimate time; emu/compute divides the counts by cores, IPC
and frequency.
Source: valgrind's callgrind, which counts executed instructions; its counts repeat exactly.

    python csrc/instructions.py            measure everything and write the file
    python csrc/instructions.py --check    measure everything and compare with the file

It requires gcc, valgrind and the installed package (for the coefficients). It builds three targets
from the same sources. `base` and `avx2` are the objects that the package ships for x86-64. `fma128`
is the base object with FMA and FP16 conversions in 128-bit vectors; it is the x86 target nearest to
NEON, which has both. The torch form on `base` calls libm's fmaf for every FMA; use `fma128` for an
ARM core. Formats other than FP32 are counted only on `fma128` and only in bulk.
"""

import datetime
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ondie.kernels import FORMATS, FORMS, OPS, get
from ondie.kernels.codes import codes

HERE = Path(__file__).resolve().parent
TARGET_FILE = HERE.parent / "emu" / "compute" / "instructions.toml"
SIZES = {"page": 4096, "bulk": 1 << 18}  # parameters: a 16 KiB page; negligible overhead
HYPER = {
    "lr": 1e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "momentum": 0.9,
}
TAKES = {
    "sgd": ("lr",),
    "momentum": ("lr", "momentum"),
    "nesterov": ("lr", "momentum"),
    "adam": ("lr", "beta1", "beta2", "eps"),
    "adamw": ("lr", "beta1", "beta2", "eps"),
    "adagrad": ("lr", "eps"),
}
GRADIENT = ("scale", "unscale", "squares", "to_fp16", "from_fp16", "to_bf16", "from_bf16")
# target -> (extra flags for isa_base.c, number in enum ondie_isa, vector bits, meaning)
TARGETS = {
    "base": ((), 0, 128, "SSE2, as shipped"),
    "fma128": (
        (
            "-mfma",
            "-mf16c",
            "-mprefer-vector-width=128",
            "-DONDIE_HALVES=4",
            "-include",
            "immintrin.h",
        ),
        0,
        128,
        "128-bit with FMA, nearest to NEON",
    ),
    "avx2": ((), 1, 256, "AVX2 with FMA, as shipped"),
}


FORMATS_OF = "fma128"


class Entry(NamedTuple):
    """One instruction count: its table and key in instructions.toml, and the call to measure."""

    # ("base", "adam"), ("base", "adam", "torch"), ("fma128", "adam", "bf16_all"), ("base", "scale")
    table: tuple[str, ...]
    key: str  # "page", "bulk", "page_l2", "bulk_l2"
    target: str
    function: str
    variant: int
    n: int
    coef: tuple[float, ...]
    codes: str = ""


def flags() -> list[str]:
    """Return the compiler flags of the package."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    return project["tool"]["setuptools"]["ext-modules"][0]["extra-compile-args"]


def entries() -> Iterator[Entry]:
    """Yield all entries of instructions.toml in the order of the file."""
    for target in TARGETS:
        for op in OPS:
            for form in FORMS:
                kernel = get(op, backend="numpy", form=form)
                hyper = {name: HYPER[name] for name in TAKES[op]}
                for suffix, decay in (("", 0.0), ("_l2", 0.01)):
                    coef = kernel.coefficients(hyper | {"weight_decay": decay}, 10)
                    function = "adam" if op == "adamw" else op
                    for size, n in SIZES.items():
                        table = (target, op) if form == FORMS[0] else (target, op, form)
                        numbers = tuple(float(c) for c in coef)
                        variant = FORMS.index(form)
                        yield Entry(table, size + suffix, target, function, variant, n, numbers)
            if target == FORMATS_OF:
                yield from narrow(op)
        for function in GRADIENT:
            for size, n in SIZES.items():
                yield Entry((target, function), size, target, function, 0, n, (0.5,))


def narrow(op: str) -> Iterator[Entry]:
    """Yield the entries of operation ``op`` in each storage format except FP32."""
    kernel = get(op, backend="numpy")
    hyper = {name: HYPER[name] for name in TAKES[op]}
    for name, f in FORMATS.items():
        if name == "fp32" or (f.codes and not kernel.states):
            continue
        for suffix, decay in (("", 0.0), ("_l2", 0.01)):
            coef = kernel.coefficients(hyper | {"weight_decay": decay}, 10)
            yield Entry(
                (FORMATS_OF, op, name), "bulk" + suffix, FORMATS_OF,
                "adam" if op == "adamw" else op, f.variant, SIZES["bulk"],
                tuple(float(c) for c in coef), f.codes,
            )  # fmt: skip


def maps(name: str) -> bytes:
    """Return the bytes of ondie_codes[2] of a code map: the signed map, then the unsigned one."""
    parts = []
    for signed in (True, False):
        m = codes(name, signed)
        parts += [m.value, m.bucket, np.array([m.zero, m.base], np.int32), m.line, m.limit]
        parts += [m.to_line, np.array([m.least], np.float32)]
    return b"".join(part.tobytes() for part in parts)


def build(target: str, folder: Path) -> Path:
    """Compile the counting program of one target; objects that targets share are compiled once."""
    program = folder / f"count-{target}"
    objects = []
    for name in ("isa_base", "isa_avx2", "isa_avx512", "dispatch", "threads", "crc", "count"):
        own = TARGETS[target][0] if name == "isa_base" else ()
        compiled = folder / (f"{name}-{target}.o" if own else f"{name}.o")
        if not compiled.exists():
            command = ["gcc", *flags(), *own, "-c", HERE / f"{name}.c", "-o", compiled]
            subprocess.run(command, check=True)
        objects.append(compiled)
    subprocess.run(["gcc", *objects, "-lm", "-lpthread", "-o", program], check=True)
    return program


def count(program: Path, entry: Entry) -> int:
    """Return the number of instructions that callgrind counts in one call of a function."""
    file = "-"
    if entry.codes:
        file = str(program.with_name(f"maps-{entry.codes}"))
        Path(file).write_bytes(maps(entry.codes))
    arguments = [entry.function, entry.variant, TARGETS[entry.target][1], entry.n, file]
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += ["--toggle-collect=counted", str(program)]
    command += [str(a) for a in (*arguments, *entry.coef)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None:
        raise RuntimeError(f"callgrind: no count of {entry.function}: {done.stderr}")
    return int(found.group(1))


def measure(wanted: Iterator[Entry], folder: Path) -> dict[tuple[str, ...], dict[str, float]]:
    """Return instructions per parameter by table and key; the programs remain in ``folder``."""
    tables: dict[tuple[str, ...], dict[str, float]] = {}
    programs: dict[str, Path] = {}
    for entry in wanted:
        if entry.target not in programs:
            programs[entry.target] = build(entry.target, folder)
        value = count(programs[entry.target], entry) / entry.n
        tables.setdefault(entry.table, {})[entry.key] = round(value, 4)
    return tables


def first_line(*command: str) -> str:
    """Run a command and return the first line of its output."""
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[0]


def text(tables: dict[tuple[str, ...], dict[str, float]]) -> str:
    """Return the contents of instructions.toml for measured ``tables``."""
    lines = [
        "# Instructions per parameter of the C kernels, counted by callgrind. Written by",
        "# csrc/instructions.py; do not edit. page: one call on 4096 parameters, a 16 KiB page;",
        "# bulk: one call on 2^18. _l2: with coupled weight decay (adamw: no change).",
        "# [target.function] is the canonical form, [target.function.torch] the torch form,",
        "# [target.function.FORMAT] the canonical form with vectors stored in that format.",
        "",
        "[measured]",
        'command = "python csrc/instructions.py"',
        f'date = "{datetime.date.today().isoformat()}"',
        f'compiler = "{first_line("gcc", "--version")}"',
        f'flags = "{" ".join(flags())}"',
        f'counter = "{first_line("valgrind", "--version")}, callgrind"',
        "",
    ]
    for name, (extra, _, bits, meaning) in TARGETS.items():
        lines += [f"[{name}]", f"vector_bits = {bits}", f'extra_flags = "{" ".join(extra)}"']
        lines += [f'meaning = "{meaning}"', ""]
        for table, values in tables.items():
            if table[0] == name:
                lines.append(f"[{'.'.join(table)}]")
                lines += [f"{key} = {value}" for key, value in values.items()] + [""]
    return "\n".join(lines[:-1]) + "\n"


def stored(table: tuple[str, ...]) -> dict[str, float]:
    """Return the stored instruction counts of one table of instructions.toml, by key."""
    there = tomllib.loads(TARGET_FILE.read_text(encoding="utf-8"))
    for name in table:
        there = there[name]
    return there


def main(arguments: list[str]) -> int:
    """Measure, then write the file or, with --check, compare; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        tables = measure(entries(), Path(folder))
    if arguments == ["--check"]:
        worst = max(
            abs(value / stored(table)[key] - 1)
            for table, values in tables.items()
            for key, value in values.items()
        )
        print(f"largest difference from the stored counts {worst:.2%}, allowed 2%")
        return int(worst > 0.02)
    TARGET_FILE.write_text(text(tables), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
