"""Preconditioning: state of a drive after years of writes, computed without timed simulation."""
