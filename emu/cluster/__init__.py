"""Data-parallel training of one model by hosts and their drives: batch sizes, data split,
all-reduce, and HyperTune (batch resizing during the training).

Does not own the emulation of flash.
Source: STANNIS (DAC 2020) and HyperTune.
"""
