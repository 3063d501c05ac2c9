"""HyperTune: adapts batch sizes to the measured speed of each node."""
