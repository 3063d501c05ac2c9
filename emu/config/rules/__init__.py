"""Rules between leaves: what a configuration must satisfy before a drive is built from it.

Owns the rules, by subject, and their check. Does not own the checks of single leaves
(config/loader.py) or what a model needs of a drive (the paths).
Source: geometry arithmetic; NVMe, whose commands are whole pages here; limits of the flash engine.
"""
