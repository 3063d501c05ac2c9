"""Update strategies as plans: the rows of work of one training step on host and drives.

Owns the resource and the order of each piece of work. Does not own time or the event loop, which
are in engine/.
"""
