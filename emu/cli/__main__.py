"""`python -m ondie.emu.cli`: the command line without the installed script."""

from ondie.emu.cli import start

if __name__ == "__main__":
    start()
