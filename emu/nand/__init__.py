"""NAND flash: what silicon does. Geometry, timing, ONFI, die scheduler, channel, cell errors, ECC.

Does not own decisions of firmware (ondie.emu.ftl). Source: each module names its own.
"""
