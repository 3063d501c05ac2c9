"""Commands of the command line, each from its files to its files. Own no arguments (cli.py)."""
