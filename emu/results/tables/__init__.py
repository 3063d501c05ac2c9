"""Results as printed tables. Does not own the numbers (ondie.emu.analysis, ondie.emu.replay)."""
