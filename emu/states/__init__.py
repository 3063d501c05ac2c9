"""States of an optimizer in the reservoir of a drive: updates, recovery, concurrent programs."""
