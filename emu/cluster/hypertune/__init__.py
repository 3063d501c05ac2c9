"""HyperTune: resizes the batches of nodes during the training, according to the measured speed of
each node."""
