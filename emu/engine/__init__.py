"""Event-driven engine: package `core` (tables, event queue, plan rows) and `run` (event loop)."""
