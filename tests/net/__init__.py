"""Recorded results of the command line, and the program that compares new runs with them."""
