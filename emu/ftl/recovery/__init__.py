"""Recovery of the tables of a drive from the pages on flash, after a power loss."""
