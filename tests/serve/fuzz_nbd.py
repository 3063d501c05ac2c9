"""Owns: coverage-guided fuzzing of the parsers of NBD, with atheris, in a process of its own:
`NUMBA_DISABLE_JIT=1 python -m tests.serve.fuzz_nbd TARGET [libFuzzer's arguments]`.
Does not own: what must hold (fuzz_targets.py). Source: atheris's documentation.
"""

import sys

import atheris

with atheris.instrument_imports(include=["ondie.emu.serve"]):
    from tests.serve.fuzz_targets import TARGETS

if __name__ == "__main__":
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
