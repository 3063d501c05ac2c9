"""Host interface of a drive: NVMe commands, queue pairs, command split, data cache, SATA HBA.

Does not own the mapping table (ondie.emu.ftl) or the flash (ondie.emu.nand).
Source: see each module.
"""
