"""Allreduce algorithms and the links that they use."""
