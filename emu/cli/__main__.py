"""`python -m ondie.emu.cli`: the command line without the installed script."""

from ondie.emu.cli.main import main

if __name__ == "__main__":
    main()
