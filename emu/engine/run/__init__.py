"""The event loop, which calls the rooms of the drive, and the construction of a drive."""
