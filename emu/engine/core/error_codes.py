"""Error codes of compiled code.

Owns the numeric codes. Does not own the detection of errors (events.fail and its callers,
state_type.py) or the error messages (engine/run/errors.py).
Source: this project.
"""

from __future__ import annotations

(
    E_NONE, E_POOL, E_VICTIM, E_PAST_END, E_RESERVOIR, E_REGISTER, E_BLOCK_VALID, E_RESOURCE,
    E_UNWRITTEN, E_STREAM, E_FULL,
    E_OUTSIDE,  # a policy read outside a table
    E_TIME,  # an event before the clock
) = range(13)  # fmt: skip
