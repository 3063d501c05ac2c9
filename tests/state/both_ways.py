"""Owns: the output of a short program in this process, compiled, and in one without compilation.
Does not own: the programs. Source: none.
"""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def printed(script: str) -> tuple[str, str]:
    """What ``script`` prints compiled and uncompiled; a warning ends the uncompiled one."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(script, "script", "exec"), {})
    env = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out.getvalue(), done.stdout
