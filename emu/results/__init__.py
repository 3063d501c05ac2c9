"""Results of runs as objects: tables, rows, files.

Owns the result classes that notebooks and the command line use. Does not own the numbers
(ondie.emu.analysis, ondie.emu.replay) or standard output (ondie.emu.cli).
Source: this project.
"""
