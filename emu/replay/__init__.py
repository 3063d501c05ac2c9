"""Replay of block traces and synthetic requests on one drive; statistics and the request log;
images to and from a drive."""
