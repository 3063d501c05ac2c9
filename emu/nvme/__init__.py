"""The host interface: NVMe commands, queue pairs, command split, data cache, SATA HBA.

Does not own the mapping (ondie.emu.ftl) or the flash (ondie.emu.nand).
Source: each module names its own.
"""
