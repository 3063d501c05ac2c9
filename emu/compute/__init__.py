"""Processor models: host CPU, ISP cores and the processing elements (PEs) on the dies; functions of
the engines for encryption, randomizing and NaN comparison on bytes.

This package owns the time of an update on each processor, and the functions of these engines. It
does not own the arithmetic of updates (ondie.kernels).
Source: see each module.
"""
