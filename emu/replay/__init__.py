"""Block traces and synthetic requests through one drive; statistics and the request log."""
