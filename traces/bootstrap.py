"""Child process of `ondie record`: runs the user's program as Python would, under a Recorder.

This module owns the program's sys.argv, sys.path and __main__, the output of its uncaught
exception, its exit code, and the report to the parent. It does not own the command line of
`ondie record` (launch.py) or the recording (record.py).
Source: Python's rules for a script, -m module and -c code; runpy.

Call: python -m ondie.traces.bootstrap OUT JSON -- PROGRAM ARGUMENTS...
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from ondie.traces.errors import TraceError
from ondie.traces.record import Recorder


def run(program: list[str]) -> None:
    """Run a script, -m module or -c code as __main__ of this process."""
    if program[0] == "-m":
        sys.argv = [program[1], *program[2:]]
        _first_path(os.getcwd())
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    elif program[0] == "-c":
        sys.argv = ["-c", *program[2:]]
        _first_path("")
        exec(compile(program[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = list(program)
        _first_path(str(Path(program[0]).resolve().parent))
        runpy.run_path(program[0], run_name="__main__")


def _first_path(folder: str) -> None:
    """Replace the first entry of sys.path, set by -m ondie.traces.bootstrap, by ``folder``."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def main(out: str, given: str, program: list[str]) -> int:
    """Run the program under a Recorder.

    out: path of the trace. given: JSON object with the options and paths. Returns the exit
    code (1 if the program raised an exception, 2 if the recording failed), or re-raises the
    program's SystemExit.
    """
    settings: dict[str, Any] = json.loads(given)
    status = Path(settings["status"])
    script = None if program[0] in ("-m", "-c") else Path(program[0]).resolve()
    try:
        recorder = Recorder(out, partial=settings["partial"], script=script, **settings["options"])
    except TraceError as error:
        status.write_text(json.dumps({"error": str(error)}))
        return 2
    code: int = 0
    ending: SystemExit | None = None
    try:
        recorder.__enter__()
        run(program)
    except SystemExit as error:
        ending = error
        code = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
    except Exception as error:  # noqa: BLE001  (as the interpreter does)
        if recorder.error is None:
            _print(error)
        code = 1
    finally:
        error_line = recorder.error
        try:
            if (
                code == 0
                and sys.exc_info()[0] is None
                and not recorder.finished
                and error_line is None
            ):
                recorder.finish()
        except TraceError as error:
            error_line = str(error)
        recorder.close()
        told = {"error": error_line} if error_line else {"steps": len(recorder.steps)}
        if recorder.finished or error_line:
            status.write_text(json.dumps(told))
    if error_line:
        return 2
    if ending is not None:
        raise ending
    return code


def _print(error: BaseException) -> None:
    """Print the traceback of the user's program without the frames of this module and runpy."""
    trace = error.__traceback__
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[4:]))
