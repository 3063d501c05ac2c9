"""The one error of this room.

Owns: TraceError.
Does not: print or exit; the command line turns it into one line and exit code 2.
Source: the error contract of this project.
"""


class TraceError(ValueError):
    """A trace that cannot be read, written or recorded; the message is one line."""
