"""The command line: arguments, commands, tables and figures. The only room that prints.

Owns what a user types and sees. Does not own a result: the other rooms return rows and figures.
Source: none.
"""

import errno
import os
import resource
import sys


def start() -> None:
    """Entry point of `ondie`: an interrupt while modules are loaded is one line, too."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        # Under ulimit -v, OpenBLAS retries refused buffers of its threads for ever.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from ondie.emu.cli.main import main
    except KeyboardInterrupt:
        sys.stderr.write("ondie: interrupted; nothing was written\n")
        sys.exit(130)
    try:
        main()
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        sys.stderr.write("ondie: the system refused memory (ulimit -v?); raise the limit\n")
        sys.exit(1)
