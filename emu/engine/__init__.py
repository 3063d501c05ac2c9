"""Event-driven engine: packages `core` (tables, event queue, plan rows) and `run` (event loop)."""
