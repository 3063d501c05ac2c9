"""Calibration: constants of a drive fitted to measurements of fio."""
