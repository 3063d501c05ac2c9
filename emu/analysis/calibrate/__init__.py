"""Calibration: constants of a preset fitted to measurements of a real drive with fio.

Owns the job file for fio, the reading of fio's results, the fit, and the document of its result.
Does not own the command (cli/commands/calibrate.py) or the tables (results/calibration.py).
Source: this project.
"""
