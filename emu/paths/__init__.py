"""Update strategies: each path plans the work of one training step on the host and the drives.

Owns the resource and the order of each operation of a step. Does not own time or the event loop,
which are in engine/.
"""
