"""Error class of the traces package.

This module owns TraceError. It does not print or exit; the command line converts the error to one
line and exit code 2.
Source: the error contract of this project.
"""


class TraceError(ValueError):
    """Error: a trace cannot be read, written or recorded. The message has one line."""
