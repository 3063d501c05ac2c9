"""Processor models: host CPU, ISP cores and the processing elements (PEs) on the dies.

This package owns the time of an update on each processor. It does not own the arithmetic
(ondie.kernels).
Source: see each module.
"""
