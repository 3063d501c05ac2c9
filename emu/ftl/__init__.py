"""Flash translation layer (decisions of firmware): mapping, writes, GC, wear leveling, recovery.

Does not own the flash hardware (ondie.emu.nand) or the host interface (ondie.emu.nvme).
"""
