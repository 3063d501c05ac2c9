"""HyperTune: batch sizes that follow the measured speed of each node."""
