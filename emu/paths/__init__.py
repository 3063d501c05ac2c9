"""Update strategies: each path plans the work of one training step on the host and the drives.

Owns the assignment of a step's operations to resources, and their order. Does not own time or the
event loop, which are in engine/.
"""
