"""Rules between leaves: conditions that a configuration must meet before a drive is built.

Owns the rules, by subject, and their check. Does not own the checks of single leaves
(config/leaf.py) or the requirements of an update strategy (ondie.emu.paths).
Source: arithmetic of the geometry; NVMe (in this program, commands transfer whole pages); limits of
the flash engine.
"""
