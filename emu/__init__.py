"""The emulator: an emulated computational storage device, and training runs that use it.

Owns the package name `ondie.emu`. This file imports nothing, so that the command `ondie` starts
fast. Importing the package as top-level `emu` raises ImportError, because other distributions use
that name.
Source: PEP 420 (namespace packages): `ondie` itself has no `__init__`.
"""

if __name__ == "emu":
    raise ImportError("import this package as ondie.emu, after installing the distribution ondie")
