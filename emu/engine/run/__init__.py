"""Event loop, which calls the other packages of the drive, and construction of a drive."""
