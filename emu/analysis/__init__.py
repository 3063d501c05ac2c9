"""Runs and their results: comparison, ledger, energy, lifetime, extrapolation, sensitivity, sweeps.

Returns rows and records. Does not print (ondie.emu.cli).
"""
