"""The command line: options, commands, tables and figures. The only room that prints.

Owns the arguments that a user types and the output. Does not own a result: the other rooms return
rows and figures. Source: none.
"""

import errno
import os
import resource
import sys

REFUSED = "the system refused memory; raise the limit of the address space (ulimit -v)"


def start() -> None:
    """Entry point of `ondie`: an interrupt or refused memory while modules load is one line too."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        # Under ulimit -v, OpenBLAS retries a refused allocation of its threads' buffers forever.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from ondie.emu.cli.main import main

        main()
    except KeyboardInterrupt:
        end("interrupted; nothing was written", 130)
    except (OSError, ImportError, MemoryError) as error:
        if not is_refused_memory(error):
            raise
        end(REFUSED, 2)


def is_refused_memory(error: BaseException | None) -> bool:
    """Return True if the system refused memory: to the program, or to a library that it loads.

    The reason of a library that cannot be loaded is in the error that led to ``error``.
    """
    while error is not None:
        text = str(error)
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        if os.strerror(errno.ENOMEM) in text or "failed to map segment" in text:
            return True
        error = error.__cause__ or error.__context__
    return False


def end(message: str, code: int) -> None:
    """Print one line on standard error and end with ``code``."""
    sys.stderr.write(f"ondie: {message}\n")
    sys.exit(code)
