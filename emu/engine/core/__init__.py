"""Core of the engine, used by all packages of a drive: state, event tree, transactions, plan rows,
random numbers.

Imports no other package of the drive. Source: named in each module.
"""
