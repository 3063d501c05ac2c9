"""Stannis: a training step shared by a host and its drives; batch sizes, data and gradients."""
