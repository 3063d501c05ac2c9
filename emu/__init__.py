"""The machine: an emulated computational storage device and everything that trains through it.

Owns the package name `ondie.emu`; imports nothing, so that starting the command stays cheap.
Does not work as a top-level `emu`, a name that belongs to other distributions.
Source: PEP 420 (namespace packages): `ondie` itself has no `__init__`.
"""

if __name__ == "emu":
    raise ImportError("import this package as ondie.emu: install the distribution ondie")
