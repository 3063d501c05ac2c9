"""NAND flash: geometry, timing, ONFI, die scheduler, channel, cell errors and ECC.

Does not own decisions of firmware (ondie.emu.ftl). Source: see each module.
"""
