"""Printed tables of results. Does not own the numbers (ondie.emu.analysis, ondie.emu.replay)."""
