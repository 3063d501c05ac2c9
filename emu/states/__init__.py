"""States of an optimizer in the reservoir of a drive: updates beside commands, and recovery."""
