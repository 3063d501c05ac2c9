"""Studies without published results: training with number formats and with raw bit errors, and
updates of encrypted and randomized pages on the die.

Owns the training runs of the studies, their rows, tables and figures. Does not own the options
(cli/commands/study.py) or the row format (analysis/row.py).
Source: this project.

Some modules import torch when they are loaded. Therefore, only the command line may import this
package, and only inside functions.
"""
