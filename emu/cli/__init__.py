"""The command line: arguments, commands, tables and figures. The only room that prints.

Owns what a user types and sees. Does not own a result: the other rooms return rows and figures.
Source: none.
"""
