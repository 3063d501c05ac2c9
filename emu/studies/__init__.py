"""Trainings with number formats and bit errors: results that validate nothing.

Imports torch when a module is loaded, so only the command line may import this room, lazily.
"""
