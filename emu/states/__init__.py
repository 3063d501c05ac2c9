"""States of an optimizer in the reservoir of a drive: updates, recovery, concurrent programs.

Owns the start, the progress and the recovery of updates of these states. Does not own the drive
(ondie.emu.drive) or the plan rows and data of an update (ondie.emu.paths.on_die). Source: see each
module.
"""
