"""What every room of a drive uses: state, event tree, transactions, plan rows, random numbers.

Knows no other room of the drive. Source: each module names its own.
"""
