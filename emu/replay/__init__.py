"""Replay of block traces and synthetic requests on one drive; statistics and the request log;
export and import of drive images."""
