"""Construction of a drive's state, and the event loop, which calls the drive's other packages."""
