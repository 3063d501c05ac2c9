"""Studies without published results: training with number formats and with raw bit errors, and
updates of encrypted and randomized pages on the die.

Some modules import torch when they are loaded. Therefore, only the command line may import this
package, and only inside functions.
"""
