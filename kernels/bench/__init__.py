"""`ondie bench kernels`: speed of the kernels compared with other libraries, on the CPU.

This package owns the contenders (the measured calls of kernels, of other libraries and of the
hardware limits), the timing and the roofline figure. It does not own the kernels, and it does not
use an emulated device.
Source: each module names its source.
"""
