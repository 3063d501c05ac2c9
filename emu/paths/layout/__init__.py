"""Placement of weights, gradients and states: formats, stripes, regions, RAID 0."""
