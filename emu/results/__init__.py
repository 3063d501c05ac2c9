"""Results of runs as objects: tables, rows, files.

Owns what a result offers to a notebook and to the command line. Does not own the numbers
(ondie.emu.analysis, ondie.emu.replay) or standard output (ondie.emu.cli). Source: none.
"""
