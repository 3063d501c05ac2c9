"""Calibration: fits constants of a preset to fio measurements of a real drive.

Owns the job file for fio, the reading of fio's results, the fit, and the JSON document of the fit's
result. Does not own the command (cli/commands/calibrate.py) or the tables (results/calibration.py).
Source: this project.
"""
