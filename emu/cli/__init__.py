"""The command line: options, commands, tables and figures. This is the only room that prints.

Owns the arguments that a user types and the output. Does not own a result: the other rooms return
rows and figures. Source: none.
"""

import errno
import os
import resource
import sys

REFUSED = "the system refused memory; raise the limit of the address space (ulimit -v)"


def start() -> None:
    """Run `ondie`; an interrupt or a refusal of memory during the imports also prints one line."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        # Under ulimit -v, OpenBLAS retries a refused allocation of its threads' buffers forever.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from ondie.emu.cli import interrupt
        from ondie.emu.cli.main import main

        interrupt.watch()
        main()
    except KeyboardInterrupt:
        end("interrupted; nothing was written", 130)
    except (OSError, ImportError, MemoryError) as error:
        if not is_refused_memory(error):
            raise
        end(REFUSED, 2)


def is_refused_memory(error: BaseException | None) -> bool:
    """Return True if ``error``, or an error that caused it, says that the system refused memory.

    The memory was refused to this program or to a shared library that Python loads. For a library
    that cannot be loaded, the reason is in the cause or in the context of ``error``.
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
    """Print ``message`` as one line on standard error and exit with ``code``."""
    sys.stderr.write(f"ondie: {message}\n")
    sys.exit(code)
