"""Preconditioning: a drive's state after years of writes, without simulating them in time."""
