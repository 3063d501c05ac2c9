"""Replay of block traces and synthetic requests on one drive, with statistics, the request log, and
export and import of drive images."""
