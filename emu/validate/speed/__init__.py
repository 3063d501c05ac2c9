"""`ondie bench engine`: page operations per second, memory and start-up time of the flash engine.

Owns the drives, workloads, reference measurements and rows of this benchmark. Does not check its
results: targets are only shown. Source: this project.

All measurements run on one core. Only the start-up rows include compilation. Each result is the
best of several runs, because other programs can only increase a time.
"""
