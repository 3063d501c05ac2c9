"""Studies without published results: training with number formats and with raw bit errors, and
updates on the die of pages that are encrypted and randomized.

The modules of trainings import torch when they are loaded. Therefore, only the command line may
import this package, and only inside functions.
"""
