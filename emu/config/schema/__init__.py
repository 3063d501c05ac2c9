"""Schema of the configuration tree: the sections, and the table of all keys.

Owns every leaf of a device and its host: type, unit, minimum, choices, meaning. Does not own
numbers: presets/*.toml state every leaf, and there are no defaults.
Source: the block diagrams of Newport, Laguna and OptimStore; ONFI, NVMe and DeepSpeed names.
"""
