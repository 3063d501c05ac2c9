"""The command line of ondie: options, commands, tables and figures.

No other folder of emu prints. Owns the arguments that the user types, and the output. Does not own
results: other packages return rows and figures. Source: this project.
"""

import errno
import os
import resource
import signal
import sys
import threading
import time

from ondie.emu.cli.ending import ENDING, end_in_order, interruption

REFUSED = "the system refused memory; raise the limit of the address space (ulimit -v)"
GRACE_S = 5.0
"""Time (s) from an interrupt until a process that has compiled a user-defined policy is ended
forcibly."""


def start() -> None:
    """Run `ondie`. If an interrupt arrives or a memory allocation fails during the imports, print
    one line."""
    end_in_order()
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        # Under ulimit -v, OpenBLAS retries a refused allocation of its threads' buffers forever.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from ondie.emu.cli.main import main

        watch_interrupts()
        main()
    except KeyboardInterrupt as error:
        end(*interruption(error))
    except (OSError, ImportError, MemoryError) as error:
        if not is_refused_memory(error):
            raise
        end(REFUSED, 2)


def watch_interrupts() -> None:
    """Start a thread that ends this process GRACE_S seconds after an interrupt if the process has
    compiled a user-defined policy.

    The exit code is 130 after SIGINT, and 128 plus the signal number after a signal of ENDING. Does
    nothing if SIGINT is ignored. Python runs signal handlers only between two instructions of
    Python code, so an endless loop in a compiled policy would ignore Ctrl-C.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)

    def wait() -> None:
        while True:
            number = os.read(receiver, 1)[0]
            if number in (signal.SIGINT, *ENDING):
                time.sleep(GRACE_S)
                _end_if_policy(128 + number)

    threading.Thread(target=wait, name="interrupt", daemon=True).start()


def _end_if_policy(code: int) -> None:
    """End the process with a message of one line and exit code ``code`` if it has compiled a
    user-defined policy."""
    state = sys.modules.get("ondie.emu.engine.core.state")
    if state and state.user_policies:
        line = (
            f"ondie: interrupted; nothing was written; the simulation with the policy "
            f"{', '.join(state.user_policies)} did not return within {GRACE_S:g} s\n"
        )
        os.write(2, line.encode())
        os._exit(code)


def is_refused_memory(error: BaseException | None) -> bool:
    """Return True if ``error``, or an error that caused it, is due to a failed memory allocation.

    The allocation may have failed in this program or while Python loaded a shared library. For a
    library that cannot be loaded, the reason is in the cause or in the context of ``error``.
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
