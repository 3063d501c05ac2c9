"""Data-parallel training by a host and N drives: batches, data split, collectives, HyperTune.

Does not own the emulation of flash.
Source: STANNIS (DAC 2020) and HyperTune.
"""
