"""The command line: arguments, commands, tables and figures. The only room that prints.

Owns what a user types and sees. Does not own a result: the other rooms return rows and figures.
Source: none.
"""

import sys


def start() -> None:
    """Entry point of `ondie`: an interrupt while modules are loaded is one line, too."""
    try:
        from ondie.emu.cli.main import main
    except KeyboardInterrupt:
        sys.stderr.write("ondie: interrupted; nothing was written\n")
        sys.exit(130)
    main()
