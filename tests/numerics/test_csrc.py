"""Does the C compile by itself, without warnings, into what each instruction set promises?"""

import platform
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache

import pytest

X86 = platform.machine() == "x86_64"
FORBIDDEN = ("-ffast-math", "-Ofast", "-march=native", "-funsafe-math-optimizations")
COMPILER = shutil.which("gcc")


@pytest.fixture(scope="module")
def flags(root):
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return project["tool"]["setuptools"]["ext-modules"][0]["extra-compile-args"]


@pytest.fixture(scope="module")
def compiled(root, flags, tmp_path_factory):
    """File of csrc, without its ending -> its assembler code, of a compilation without warnings."""
    if COMPILER is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("asm")

    @cache
    def code(name):
        target = folder / f"{name}.s"
        quiet = [] if name.startswith(("isa", "dispatch", "count")) else ["-Wno-unused"]
        strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", *quiet, "-S"]
        command = [COMPILER, *flags, *strict, root / "csrc" / f"{name}.c", "-o", target]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return target.read_text()

    return code


@pytest.fixture(scope="module")
def assembler(compiled):
    """name -> function name -> its instructions, of the object of one instruction set."""

    @cache
    def functions_of(isa):
        functions, name = {}, None
        for line in compiled(f"isa_{isa}").splitlines():
            if label := re.match(r"(\w+):", line):
                name = label.group(1)
                functions[name] = ""
            elif name and line.startswith("\t") and not line.startswith("\t."):
                functions[name] += line + "\n"
        return functions

    return functions_of


def test_every_file_compiles_alone_without_warnings(root, compiled):
    for source in sorted((root / "csrc").glob("*.c")):
        assert "Python.h" not in source.read_text(encoding="utf-8")
        assert compiled(source.stem)


def test_flags_keep_ieee_arithmetic(flags):
    assert {"-ffp-contract=off", "-fno-math-errno", "-O3", "-std=c11"} <= set(flags)
    assert not set(flags) & set(FORBIDDEN)


@pytest.mark.skipif(not X86, reason="x86-64 only")
@pytest.mark.parametrize("isa, register", [("base", "xmm"), ("avx2", "ymm"), ("avx512", "zmm")])
def test_loops_use_the_full_width(isa, register, assembler):
    """Square root and division included, which are scalar unless errno is left alone."""
    functions = assembler(isa)
    forms = ("plain",) if isa == "base" else ("plain", "torch_plain")
    for form in (*forms, "bf16_all", "stochastic"):
        code = functions[f"adam_{form}_{isa}"]
        for operation in ("sqrtps", "divps", "mulps"):
            assert re.search(rf"v?{operation}\s.*%{register}", code), f"{operation} in adam_{form}"
    for name in (
        "to_fp16",
        "to_bf16",
        "from_fp16",
        "from_bf16",
        "unscale",
        "square_block",
        "limit",
        "limit28",
    ):
        assert register in functions[f"{name}_{isa}"], name


@pytest.mark.skipif(not X86, reason="x86-64 only")
@pytest.mark.parametrize("isa", ["base", "avx2", "avx512"])
def test_nothing_is_fused_or_approximated_but_by_order(isa, assembler):
    """The torch form and codes in 512-bit vectors ask for fma by name."""
    for name, code in assembler(isa).items():
        assert not re.search(r"\bv?r(sqrt|cp)", code), f"approximation in {name}"
        if "torch" not in name and not (isa == "avx512" and "codes" in name):
            assert not re.search(r"\bvfn?m(add|sub)", code), f"contraction in {name}"
    fused = assembler(isa)[f"adam_torch_plain_{isa}"]
    assert ("fmaf" in fused) if isa == "base" else ("vfmadd" in fused)


def test_loading_the_extension_leaves_denormals_alone():
    """Fast-math at link time would set flush-to-zero for the whole process."""
    code = "import numpy as np, ondie.kernels; print(np.float32(2**-140) * np.float32(0.5) > 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
