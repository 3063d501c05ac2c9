"""Preconditioning: state of a drive after many overwrites, computed without timed simulation."""
