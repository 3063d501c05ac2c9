"""Schema of the configuration tree: one file per section, and the table of all keys.

Owns every leaf of a device and its host: type, unit, least value, choices, meaning. No numbers:
presets/*.toml state every leaf, and there is no default.
Source: the block diagrams of Newport, Laguna and OptimStore; ONFI, NVMe and DeepSpeed names.
"""
