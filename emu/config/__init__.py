"""Configuration: one frozen tree of values, each with a unit, a range and a source; presets.

Owns the schema, the rules between values, the loader and the shipped presets. Does not own any
behavior of a drive.
"""
