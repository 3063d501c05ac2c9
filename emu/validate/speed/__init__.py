"""`ondie bench engine`: page operations per second, memory and start-up of the flash engine.

Owns its drives, workloads, anchors and rows. Does not own whether a figure is good enough: targets
are shown. Source: none. One core, compilation excluded unless it is what is measured, best of a
number of runs: a busy neighbour only ever adds time.
"""
