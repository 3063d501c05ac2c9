"""The emulator: an emulated computational storage device and the training that uses it.

Owns the package name `ondie.emu`; it imports nothing, so that the command starts fast. It cannot be
imported as a top-level `emu`, a name that belongs to other distributions. Source: PEP 420
(namespace packages): `ondie` itself has no `__init__`.
"""

if __name__ == "emu":
    raise ImportError("import this package as ondie.emu: install the distribution ondie")
