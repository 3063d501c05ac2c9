"""Preconditioning: state of a drive after many overwrites, computed without timed simulation.

Owns the placement of the pages and the wear of the blocks in that state. Does not own the timed FTL
(the other modules of ondie.emu.ftl). Source: see each module.
"""
