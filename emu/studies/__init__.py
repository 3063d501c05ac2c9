"""Studies: training with number formats and with raw bit errors, without published results.

Its modules import torch when they are loaded, so only the command line may import this package, and
only inside functions.
"""
