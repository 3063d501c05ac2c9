"""Flash translation layer (firmware): mapping, writes, garbage collection, wear leveling, recovery.

Owns the tables and the decisions of the firmware. Does not own the flash hardware (ondie.emu.nand)
or the host interface (ondie.emu.nvme).
"""
