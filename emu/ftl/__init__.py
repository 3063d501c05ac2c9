"""Flash translation layer: what firmware decides. Mapping, writes, GC, wear leveling, recovery.

Does not own what silicon does (ondie.emu.nand) or the host interface (ondie.emu.nvme).
"""
