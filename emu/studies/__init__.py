"""Studies: training with number formats and with raw bit errors, without published results.

The modules import torch when they are loaded. Therefore, only the command line may import this
package, and only inside functions.
"""
