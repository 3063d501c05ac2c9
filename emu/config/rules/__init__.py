"""Rules between leaves: conditions that a configuration must meet before a drive is built.

Owns the rules, by subject, and their check. Does not own the checks of single leaves
(config/loader.py) or the requirements of a model (the paths). Source: geometry arithmetic; NVMe,
whose commands are whole pages here; limits of the flash engine.
"""
