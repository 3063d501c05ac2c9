"""The configuration: one frozen tree of numbers, each with a unit, a range and a source; presets.

Owns the schema, the rules between values, the loader and the shipped presets. No behavior.
"""
