"""Comparison runs and their results: ledger, energy, lifetime, extrapolation, sensitivity, sweeps.

Owns the records that runs return. Does not own printing (ondie.emu.cli).
Source: this project.
"""
