"""What trains and computes for real.

Owns the torch optimizers that run our kernels, and closed loops with them. Does not own kernels
(ondie.kernels), models or loops (ondie.traces.scripts). torch is imported here when a module is
loaded, so nothing but the command line may import this room, and only where it is asked for.
Source: own.
"""
