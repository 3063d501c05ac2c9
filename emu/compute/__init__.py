"""Models of the processors (host CPU, ISP cores, and the dies' processing elements, PEs) and of the
drive's engines for encryption, randomizing and NaN comparison.

This package owns the time of an update on each processor, and the functions that these engines
apply to data. It does not own the arithmetic of updates (ondie.kernels).
Source: see each module.
"""
