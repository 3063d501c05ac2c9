"""Does the C compile by itself, without warnings, and does the extension have the instructions that
each instruction set promises?"""

import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib

import numpy as np
import pytest

from ondie.kernels import _native

X86 = platform.machine() == "x86_64"
FORBIDDEN = ("-ffast-math", "-Ofast", "-march=native", "-funsafe-math-optimizations")
COMPILER = shutil.which("gcc")
DISASSEMBLER = shutil.which("objdump")


@pytest.fixture(scope="module")
def flags(root):
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return project["tool"]["setuptools"]["ext-modules"][0]["extra-compile-args"]


@pytest.fixture(scope="module")
def functions():
    """Function name -> its instructions, of the extension that this process uses."""
    if DISASSEMBLER is None:
        pytest.skip("objdump is not installed")
    command = [DISASSEMBLER, "-d", "--no-show-raw-insn", _native.__file__]
    found, name = {}, None
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    ):
        if label := re.fullmatch(r"[0-9a-f]+ <(.+)>:", line):
            name = label.group(1)
            found[name] = ""
        elif name and (instruction := re.match(r" *[0-9a-f]+:(\t.*)", line)):
            found[name] += instruction.group(1) + "\n"
    return found


@pytest.fixture(scope="module")
def assembler(functions):
    """name -> the functions of one instruction set, whose names end with it."""

    def of_set(isa):
        return {
            name: code
            for name, code in functions.items()
            if name.partition(".")[0].endswith(f"_{isa}")
        }

    return of_set


@pytest.mark.soak
def test_every_file_compiles_alone_without_warnings(root, flags, tmp_path):
    """At -O1, which finds what -O3 warns of in a third of its time."""
    if COMPILER is None:
        pytest.skip("gcc is not installed")
    headers = (sysconfig.get_paths()["include"], np.get_include())
    python = [word for folder in headers for word in ("-isystem", folder)]
    for source in sorted((root / "csrc").glob("*.c")):
        is_call = source.stem == "call"
        assert is_call == ("Python.h" in source.read_text(encoding="utf-8"))
        quiet = [*python, "-Wno-pedantic"] if is_call else []
        quiet += [] if source.stem.startswith(("isa", "dispatch", "count")) else ["-Wno-unused"]
        strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", *quiet, "-O1", "-S"]
        command = [COMPILER, *flags, *strict, source, "-o", tmp_path / "code.s"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


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
    """The torch form and codes in vectors ask for fma by name."""
    for name, code in assembler(isa).items():
        assert not re.search(r"\bv?r(sqrt|cp)", code), f"approximation in {name}"
        if "torch" not in name and not (isa != "base" and "codes" in name):
            assert not re.search(r"\bvfn?m(add|sub)", code), f"contraction in {name}"
    fused = assembler(isa)[f"adam_torch_plain_{isa}"]
    assert ("fmaf" in fused) if isa == "base" else ("vfmadd" in fused)


def test_loading_the_extension_leaves_denormals_alone():
    """Fast-math at link time would set flush-to-zero for the whole process."""
    code = "import numpy as np, ondie.kernels; print(np.float32(2**-140) * np.float32(0.5) > 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.skipif(not X86, reason="x86-64 only")
def test_error_correction_uses_the_instructions_of_its_form(functions):
    """Products and linear maps at full width; the plain form has neither."""
    for part, avx2, avx512 in (
        ("remainder", r"pclmul\w*qdq\s.*%xmm", r"vpclmul\w*qdq\s.*%zmm"),
        ("locator", r"vpshufb\s.*%ymm", r"vgf2p8affineqb\s.*%zmm"),
        ("roots", r"vpshufb\s.*%ymm", r"vgf2p8affineqb\s.*%zmm"),
    ):
        assert re.search(avx2, functions[f"bch_{part}_avx2"]), part
        assert "zmm" not in functions[f"bch_{part}_avx2"], part
        assert re.search(avx512, functions[f"bch_{part}_avx512"]), part
        assert not re.search(r"[yz]mm|pclmul", functions[f"{part}_plain"]), part
