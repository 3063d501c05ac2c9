"""Update strategies as plans: the rows of work that one training step gives host and drives.

Owns which resource does what, in which order. Does not own time or the engine.
"""
