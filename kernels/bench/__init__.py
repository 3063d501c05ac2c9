"""`ondie bench kernels`: speed of the update kernels compared with other libraries, on the CPU.

This package owns the contenders, the timing and the roofline figure. It does not own the kernels
and needs no device.
Source: each module names its source.
"""
