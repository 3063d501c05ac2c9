"""A host and N drives that train together: batches, data split, collectives, load, HyperTune.

Knows no flash. Source: Stannis (DAC 2020) and HyperTune.
"""
