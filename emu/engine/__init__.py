"""The event-driven engine: `core` (tables, event tree, plan rows) and `run` (the loop)."""
