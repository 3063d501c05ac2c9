"""Core of the engine, used by all packages of a drive: state, event tree, transactions, plan rows,
random numbers.

This package does not import other packages of the drive.
Source: given in each module.
"""
